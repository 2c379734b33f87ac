"""Files, folders and links appear whole or not at all, whoever else writes them."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.runs import contents, environment
from xrep.errors import UserError
from xrep.files import (
    build_once,
    check_output,
    digests_of,
    directory_aside,
    is_stream,
    link_or_copy,
    locked,
    point_link,
    remove_files,
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


def test_two_that_write_one_file_do_not_mix_their_text(tmp_path: Path) -> None:
    """Processes of two containers may have the same number."""
    with write_aside(tmp_path / "file") as one:
        one.write_text("one")
        with write_aside(tmp_path / "file") as other:
            other.write_text("other")
        assert (tmp_path / "file").read_text() == "other"
    assert (tmp_path / "file").read_text() == "one" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_linked_or_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("content")
    link_or_copy(tmp_path / "file", tmp_path / "link")
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(18, "Invalid cross-device link")))
    link_or_copy(tmp_path / "file", tmp_path / "copy")
    assert (tmp_path / "link").samefile(tmp_path / "file") and not (tmp_path / "copy").samefile(tmp_path / "file")
    assert (tmp_path / "copy").read_text() == "content"


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
    with pytest.raises(KeyboardInterrupt), directory_aside(destination, "marker") as folder:
        (folder / "half").write_text("")
        assert not destination.exists()
        raise KeyboardInterrupt
    assert list(destination.parent.iterdir()) == []
    destination.mkdir()
    for name in ("marker", "notes", "deep/weights"):
        (destination / name).parent.mkdir(exist_ok=True)
        (destination / name).write_text("old")
    with pytest.raises(ValueError), directory_aside(destination, "marker") as folder:
        raise ValueError
    with directory_aside(destination, "marker") as slower:
        with directory_aside(destination, "marker") as faster:
            (faster / "deep").mkdir()
            for name in ("marker", "deep/weights"):
                (faster / name).write_text("faster")
        (slower / "marker").write_text("slower")
    assert contents(destination) == {"marker": b"faster", "notes": b"old", "deep/weights": b"faster"}
    assert list(destination.parent.iterdir()) == [destination]
    assert stat.S_IMODE(destination.stat().st_mode) == 0o777 & ~_umask()


def test_a_folder_that_is_not_replaced_whole_has_no_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    for name in ("a", "marker", "z"):
        (tmp_path / "model" / name).write_text("old")
    replace = os.replace

    def fail_at_z(one: Path, other: Path) -> None:
        if Path(one).name == "z":
            raise KeyboardInterrupt
        replace(one, other)

    monkeypatch.setattr(os, "replace", fail_at_z)
    with pytest.raises(KeyboardInterrupt), directory_aside(tmp_path / "model", "marker") as folder:
        for name in ("a", "marker", "z"):
            (folder / name).write_text("new")
    assert set(contents(tmp_path)) == {"model/a", "model/z"}


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
    (cache / "marker").unlink()
    (cache / "notes").mkdir()
    (cache / "notes" / "a.txt").write_text("of somebody else")
    (cache / "notes" / "a.txt").chmod(0o640)
    build_once(cache, "marker", build)
    assert contents(cache) == {"data": b"whole", "marker": b"", "notes/a.txt": b"of somebody else"}
    assert mode(cache / "notes" / "a.txt") == 0o640

    def slow(folder: Path) -> None:
        build_once(tmp_path / "raced", "marker", build)
        (folder / "marker").write_text("slower")

    build_once(tmp_path / "raced", "marker", slow)
    assert contents(tmp_path / "raced") == {"data": b"whole", "marker": b""}


def test_modes_stay(tmp_path: Path) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    write_json(file, 1)
    assert mode(file) == 0o666 & ~_umask()
    for wanted in (0o640, 0o400, 0o666):
        file.chmod(wanted)
        with write_aside(file) as aside:
            assert not mode(aside) & ~(wanted | 0o200)
            aside.write_text("new")
        assert mode(file) == wanted and file.read_text() == "new"
    folder.mkdir(0o700)
    for wanted in (0o700, 0o755):
        folder.chmod(wanted)
        with directory_aside(folder, "marker") as aside:
            assert mode(aside) == wanted
            (aside / "data").write_text("new")
            (aside / "later").write_text("")
        assert mode(folder) == wanted and mode(folder / "data") == (0o666 & ~_umask() if wanted == 0o700 else 0o600)
        (folder / "data").chmod(0o600)
        assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    empty = tmp_path / "empty"
    empty.mkdir(0o700)
    with directory_aside(empty) as aside:
        (aside / "data").write_text("")
    assert mode(empty) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root changes owners")
def test_owners_stay_where_the_system_permits_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    names = ("file", "folder/data", "folder")
    for name in names:
        if name != "folder":
            (tmp_path / name).write_text("old")
        os.chown(tmp_path / name, 12345, 12346)
    write_json(tmp_path / "file", 1)
    with directory_aside(tmp_path / "folder", "marker") as aside:
        (aside / "data").write_text("new")
    assert (tmp_path / "folder" / "data").read_text() == "new"
    for name in names:
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid) == (12345, 12346), name


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    for name in ("old/a", "old/tokenizer/b", "kept/a", "kept/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("old", "kept"):
        remove_files(tmp_path / name, ["a", "tokenizer/b"])
    assert set(contents(tmp_path)) == {"kept/notes.txt"}
    assert not (tmp_path / "old").exists()


def test_a_link_takes_the_place_of_links_only(tmp_path: Path) -> None:
    (tmp_path / "best").write_text("mine")
    with pytest.raises(FileExistsError, match="no link"):
        point_link(tmp_path / "best", "checkpoint")
    assert (tmp_path / "best").read_text() == "mine"


def test_json_links_and_digests(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_json(tmp_path / "x.json", {"Bär": [1]})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"Bär": [1]}
    for target in ("a", "elsewhere"):
        point_link(tmp_path / "link", target)
        assert os.readlink(tmp_path / "link") == target
    (tmp_path / "a" / "b").write_bytes(b"")
    assert digests_of(tmp_path / "a") == {"b": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}


def test_a_process_waits_until_another_one_has_left_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "lock"
    code = f"from pathlib import Path; from xrep.files import locked\nwith locked(Path({str(lock)!r})): print('in')"
    other = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=environment())  # fmt: skip
    with locked(lock):
        assert other.stderr and other.stderr.readline() == f"waiting for another process, which has locked {lock}\n"
        assert other.poll() is None
    assert other.communicate(timeout=60) == ("in\n", "") and not os.listdir(lock.parent)
    lock.touch()  # a process that was killed
    with locked(lock):
        pass
    assert not os.listdir(lock.parent)


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


def test_what_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert is_stream("/dev/null") and is_stream("/dev/stdout")
    assert not any(map(is_stream, (tmp_path, tmp_path / "file", tmp_path / "absent")))
