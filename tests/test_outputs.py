"""Outputs never destroy what is not theirs: devices, pipes, links, and the files that a command reads."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tests.support.commands import Commands
from xrep.files import check_output, is_stream, write_aside


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "real.txt").write_text("old", encoding="utf-8")
    (tmp_path / "link.txt").symlink_to(tmp_path / "store" / "real.txt")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "store" / "later.txt")
    for name, target in (("link.txt", "real.txt"), ("dangling.txt", "later.txt")):
        check_output(tmp_path / name)
        with write_aside(tmp_path / name) as aside:
            aside.write_text("new", encoding="utf-8")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "store" / target).read_text(encoding="utf-8") == "new"
    assert sorted(os.listdir(tmp_path / "store")) == ["later.txt", "real.txt"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    check_output(pipe)
    with write_aside(pipe) as aside:
        aside.write_text("through the pipe", encoding="utf-8")
    reader.join(timeout=60)
    assert received == ["through the pipe"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert is_stream("/dev/null") and is_stream("/dev/stdout")
    assert not any(map(is_stream, (tmp_path, tmp_path / "file", tmp_path / "absent")))


@pytest.mark.parametrize(
    ("command", "output", "other"),
    [
        ("mine --path encoder --source s.txt --target t.txt --output also-s.txt", "output", "--source"),
        ("mine --path encoder --source s.txt --target t.txt --output m --json t.txt", "json", "--target"),
        ("generate --path model --input s.txt --reference t.txt --output t.txt", "output", "--reference"),
        ("encode --path encoder --input s.npy --output s.npy", "output", "--input"),
        ("eval neighbours --path encoder --query eins --data t[1].txt --json t[1].txt", "json", "--data"),
    ],
)
def test_an_output_is_not_an_input(command: str, output: str, other: str, tmp_path: Path, cli: Commands) -> None:
    for name in ("s.txt", "t.txt", "t[1].txt"):
        (tmp_path / name).write_text("eins\n", encoding="utf-8")
    (tmp_path / "also-s.txt").symlink_to("s.txt")
    result = cli(*command.split())
    assert result.code == 2 and f"--{output} is the same file as {other}" in result.err and not result.wrote
