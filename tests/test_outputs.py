"""Outputs never destroy what is not theirs: devices, pipes, links, and the files that a command reads."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.files import check_output, is_stream, same_file, write_aside
from xrep_cli import encode, eval, generate, mine, preprocess


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
    with pytest.raises(UserError, match="is a folder already"):
        check_output(tmp_path)


def test_one_file_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("", encoding="utf-8")
    (tmp_path / "b").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "c")
    (tmp_path / "d").write_text("", encoding="utf-8")
    assert same_file(tmp_path / "a", tmp_path / "b") and same_file(tmp_path / "b", tmp_path / "c")
    assert same_file(tmp_path / "later", tmp_path / "." / "later") and not same_file(tmp_path / "a", tmp_path / "d")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "s.txt": "eins\nzwei\n",
        "t.txt": "one\ntwo\n",
        "t[1].txt": "one\n",
        "p.de-en.tsv": "eins\tone\n",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "also-s.txt").symlink_to("s.txt")
    (tmp_path / "null.npy").symlink_to("/dev/null")
    monkeypatch.chdir(tmp_path)
    return tmp_path


MAINS = {
    "mine": (mine.main, "--path encoder --source s.txt --target t.txt"),
    "generate": (generate.main, "--path model --input s.txt"),
    "preprocess": (preprocess.main, "--bitext de-en=p.de-en.tsv --destdir bin"),
    "encode": (encode.main, "--path encoder"),
    "eval": (eval.main, "sts --path encoder"),
}
SAME = "is the same file as"


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("mine", "--output s.txt", f"--output {SAME} --source"),
        ("mine", "--output also-s.txt", f"--output {SAME} --source"),
        ("mine", "--output m --json t.txt", f"--json {SAME} --target"),
        ("mine", "--output m --json m", f"--json {SAME} --output"),
        ("mine", "--output m --json .", "is a folder already"),
        ("generate", "--output s.txt", f"--output {SAME} --input"),
        ("generate", "--reference t.txt --output t.txt", f"--output {SAME} --reference"),
        ("preprocess", "--json p.de-en.tsv", f"--json {SAME} a training, validation or test text"),
        ("encode", "--input s.npy --output s.npy", f"--output {SAME} --input"),
        ("eval", "--data . --list-sentences s.txt", f"--list-sentences {SAME} --data"),
        ("eval", "--data s.txt --json s.txt", f"--json {SAME} --data"),
        ("eval", "--data t[1].txt --json t[1].txt", f"--json {SAME} --data"),
    ],
)
def test_an_output_is_not_an_input(
    command: str, arguments: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, usual = MAINS[command]
    if "--data ." in arguments:
        (folder / "null.npy").unlink()  # evaluations refuse a device among their data first
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert main([*usual.split(), *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_vectors_are_written_where_a_link_leads(folder: Path) -> None:
    write_encoder(folder / "encoder")
    (folder / "store").mkdir()
    (folder / "v.npy").symlink_to(folder / "store" / "real.npy")
    assert encode.main(["--path", "encoder", "--input", "s.txt", "--lang", "de", "--output", "v.npy"]) == 0
    assert (folder / "v.npy").is_symlink() and (folder / "store" / "real.npy").stat().st_size > 128
