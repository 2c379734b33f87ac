"""Fuzzing of readers: whatever a file holds, a reader returns a value or raises a UserError.

``fuzz`` runs a reader on generated files, most of which are a valid file that was damaged. The rule for each of them:
a UserError or a value, within SECONDS of processor time and MEGABYTES of memory, and nothing written.

A test reads 1,000 files; ``scripts/test tests/hostile --fuzz-minutes 5`` reads other ones for five minutes a reader.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.runs import contents
from xrep.errors import UserError

INPUTS = 1000
SECONDS = 4.0
"""Two seconds of a current processor; older ones need up to twice as long."""
MEGABYTES = 200
WARM_UP = 20

HOSTILE = (
    b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t\t", b'"', b"{", b"[" * 2000, b"(" * 300, b"NaN", b"-1",
    b"1e999", b"9" * 400, b"null", b"true", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"..", b"/etc/passwd", b"&a", b"*a",
    b"!!python/object:os.system", b"${oc.env:HOME}", b"\\u0000", b"\\ud800", b"0", b"[]", b"{}", b"''",
)  # fmt: skip
"""Pieces that a damaged file gets: bytes that are not UTF-8, deep nesting, numbers that do not fit, references."""


@st.composite
def damaged(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """Draw one of the valid files with up to six damages: a span removed, repeated, moved or replaced."""
    content = draw(st.sampled_from(list(valid)))
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 1, 1, 2, 4, 8, 64, 100_000])))
        piece = draw(st.one_of(st.just(b""), st.sampled_from(HOSTILE), st.binary(max_size=8)))
        piece = content[start:end] * 2 if draw(st.integers(0, 5)) == 0 else piece
        content = content[:start] + piece + content[end:]
    return content


def files_like(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for files: damaged valid ones most of the time, any bytes, and any text."""
    text = st.text(max_size=200).map(lambda value: value.encode("utf-8", "surrogatepass"))
    return st.one_of(damaged(valid), damaged(valid), damaged(valid), st.binary(max_size=200), text)


class Fuzz:
    """Runs readers on generated files. The fixture ``fuzz`` makes one for each test."""

    def __init__(self, folder: Path, minutes: float, report: Callable[[str], None]) -> None:
        self.folder, self.minutes, self.report = folder, minutes, report

    def __call__(
        self,
        name: str,
        file: str,
        files: st.SearchStrategy[bytes],
        read: Callable[[Path], object],
        inputs: int = INPUTS,
    ) -> None:
        """Check the rule for a reader.

        Args:
            name: What is read, for the report.
            file: Name of the file in the folder of the test. Its other files stay as they are.
            files: Strategy for its content.
            read: The reader, called with the path of the file. What it returns lazily, it must read itself.
            inputs: Number of generated files.
        """
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        counts = {"read": 0, "refused": 0}

        def check(content: bytes) -> None:
            path.write_bytes(content)
            before = contents(self.folder)
            start = time.process_time()
            try:
                read(path)
                counts["read"] += 1
            except UserError as error:
                assert str(error).strip(), "the message is empty"
                counts["refused"] += 1
            assert time.process_time() - start < SECONDS, "the reader took too long"
            assert contents(self.folder) == before, "the reader wrote something"

        chosen = settings(
            max_examples=inputs, suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink]
        )
        if inputs > WARM_UP:  # imports and caches, which are not the reader's memory
            settings(chosen, max_examples=WARM_UP)(given(files)(check))()
            counts.update(read=0, refused=0)
        _reset_peak()
        held = _status("VmRSS")
        chosen(given(files)(check))()
        end = time.monotonic() + 60 * self.minutes
        while time.monotonic() < end:
            settings(chosen, derandomize=False)(given(files)(check))()
        assert _status("VmHWM") - held < MEGABYTES * 1000, "the reader took too much memory"
        assert counts["read"] + counts["refused"] >= inputs * 0.9, "the strategy has too few different files"
        self.report(f"{name}: {counts['read']:,} read, {counts['refused']:,} refused")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(field: str) -> int:
    """Return a field of the process's status, in kilobytes: VmRSS is held now, VmHWM was the most since the reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])


@pytest.fixture
def fuzz(tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Fuzz:
    """A ``Fuzz`` in an empty folder."""
    minutes = request.config.getoption("--fuzz-minutes")
    return Fuzz(tmp_path / "fuzz", minutes, lambda line: record_property("fuzz", line))
