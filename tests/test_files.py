"""Writing of files: all or nothing, and problems that are found before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.files import check_output, write_aside


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
