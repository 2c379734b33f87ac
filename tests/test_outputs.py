"""Outputs never destroy what is not theirs: devices, pipes, links, and the files that a command reads."""

from __future__ import annotations

import os
from pathlib import Path

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


def test_what_is_a_stream(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert is_stream("/dev/null") and is_stream("/dev/stdout")
    assert not any(map(is_stream, (tmp_path, tmp_path / "file", tmp_path / "absent")))
