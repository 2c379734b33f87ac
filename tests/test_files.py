"""Files, folders and links appear whole or not at all, whoever else writes them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import contents, environment
from xrep.errors import UserError
from xrep.files import (
    build_once,
    check_output,
    digests_of,
    directory_aside,
    point_link,
    try_lock,
    write_aside,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(OSError, match="No space left"), write_aside(path) as temporary:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == ["out.json"] and path.read_text() == "old"


def test_places_that_cannot_be_written_are_found_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_output(tmp_path / "out.json")
    check_output(tmp_path / "vectors", folder=True)
    check_output(tmp_path, folder=True)
    for path, folder, message in (
        (tmp_path / "absent" / "out.json", False, "absent: no such folder; make it first"),
        (tmp_path, False, "is a folder already"),
        (tmp_path / "file", True, "is a file already"),
        (tmp_path / "file" / "out.json", False, "no such folder"),
    ):
        with pytest.raises(UserError, match=message):
            check_output(path, folder=folder)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "model"
    with pytest.raises(KeyboardInterrupt), directory_aside(destination, Path.exists) as folder:
        (folder / "half").write_text("")
        assert not destination.exists()
        raise KeyboardInterrupt
    assert list(destination.parent.iterdir()) == []

    def is_current(path: Path) -> bool:
        return (path / "new").exists()

    destination.mkdir()
    (destination / "old").write_text("")
    with pytest.raises(ValueError), directory_aside(destination, is_current) as folder:
        raise ValueError
    assert contents(destination) == {"old": b""}
    with directory_aside(destination, is_current) as slower:
        with directory_aside(destination, is_current) as faster:
            (faster / "new").write_text("faster")
        (slower / "new").write_text("slower")
    assert contents(destination) == {"new": b"faster"} and list(destination.parent.iterdir()) == [destination]
    assert stat.S_IMODE(destination.stat().st_mode) == 0o777 & ~_umask()


def test_a_link_to_a_folder_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("precious")
    (tmp_path / "model").symlink_to(tmp_path / "mine")
    with directory_aside(tmp_path / "model", lambda path: False) as folder:
        (folder / "new").write_text("")
    assert not (tmp_path / "model").is_symlink() and contents(tmp_path / "model") == {"new": b""}
    assert contents(tmp_path / "mine") == {"notes": b"precious"}


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def test_without_a_rule_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with directory_aside(tmp_path / "empty") as folder:
        (folder / "new").write_text("")
    assert contents(tmp_path / "empty") == {"new": b""}
    for taken in (tmp_path / "empty", tmp_path / "empty" / "new"):
        with pytest.raises(UserError, match="exists and is not empty"), directory_aside(taken):
            pass
    with pytest.raises(UserError, match="exists and is not empty"), directory_aside(tmp_path / "late") as folder:
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "file").write_text("of another process")
    assert sorted(os.listdir(tmp_path)) == ["empty", "late"]


def test_an_incomplete_folder_is_built_again(tmp_path: Path) -> None:
    cache, built = tmp_path / "deep" / "cache", []

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "data").write_text("whole")
        (folder / "marker").write_text("")

    cache.mkdir(parents=True)
    (cache / "data").write_text("half")
    for _ in range(2):
        build_once(cache, "marker", build)
        assert contents(cache) == {"data": b"whole", "marker": b""}
    assert len(built) == 1 and os.listdir(cache.parent) == ["cache"]

    def slow(folder: Path) -> None:
        build_once(tmp_path / "raced", "marker", build)
        (folder / "marker").write_text("slower")

    build_once(tmp_path / "raced", "marker", slow)
    assert contents(tmp_path / "raced") == {"data": b"whole", "marker": b""}


def test_json_links_and_digests(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_json(tmp_path / "x.json", {"Bär": [1]})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"Bär": [1]}
    for target in ("a", "elsewhere"):
        point_link(tmp_path / "link", target)
        assert os.readlink(tmp_path / "link") == target
    (tmp_path / "a" / "b").write_bytes(b"")
    assert digests_of(tmp_path / "a") == {"b": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}


@pytest.mark.parametrize("inherited", [True, False])
def test_a_lock_keeps_other_processes_out(tmp_path: Path, inherited: bool) -> None:
    code = f"try_lock(open({str(tmp_path / 'lock')!r}, 'w'), inherited={inherited})"
    command = [sys.executable, "-c", f"from xrep.files import try_lock; print({code})"]
    with open(tmp_path / "lock", "w") as file:
        assert try_lock(file, inherited=inherited)
        for expected in ("False", "True"):
            assert subprocess.run(command, capture_output=True, text=True, env=environment()).stdout.strip() == expected
            file.close()
