"""The lines of a text in a folder, any of which can be read without the others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from xrep.files import naming
from xrep.store.arrays import READ_BYTES, ArrayFile

FILES = LINES, OFFSETS, NUMBERS = "lines.txt", "offsets.npy", "numbers.npy"
_BLOCK = 1 << 14  # lines that are written at a time


def stored(line: str) -> bytes:
    r"""Return a line as it is in the file: one line, so with spaces in place of ``\n`` and ``\r`` inside."""
    return line.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


class Lines:
    """The lines of a text that ``write`` has copied to a folder.

    Layout::

        lines.txt      the lines, each with a line end
        offsets.npy    int64 [N + 1]: where in lines.txt each line begins, and the end of the last one
        numbers.npy    int64 [N]: the number of each line in the text that it was copied from, from 1
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._text = folder, open(folder / LINES, "rb", buffering=0)
        self._offsets, self._numbers = (
            ArrayFile.open(folder / name, "numbers of lines", "make it again") for name in (OFFSETS, NUMBERS)
        )

    @classmethod
    def write(cls, folder: Path, numbered: Iterable[tuple[int, str]]) -> Lines:
        """Copy lines, of which each comes with its number, into a folder that exists; see ``stored``."""
        numbered, ends = iter(numbered), np.zeros(1, np.int64)
        offsets, numbers = (ArrayFile.create(folder / name, np.int64) for name in (OFFSETS, NUMBERS))
        offsets.append(ends)
        with naming(folder / LINES), open(folder / LINES, "wb") as file:
            while some := list(islice(numbered, _BLOCK)):
                lines = [stored(line) for _, line in some]
                file.write(b"".join(lines))
                ends = ends[-1] + np.cumsum([len(line) for line in lines], dtype=np.int64)
                offsets.append(ends)
                numbers.append(np.array([number for number, _ in some], np.int64))
        offsets.close()
        numbers.close()
        return cls(folder)

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, start: int, stop: int) -> list[str]:
        """Return the lines ``start`` to ``stop`` - 1."""
        ends = self._offsets.read(slice(start, stop + 1)).tolist()
        content = self._bytes(ends[0], ends[-1])
        return [content[begin - ends[0] : end - ends[0] - 1].decode() for begin, end in pairwise(ends)]

    def take(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return some lines, in the order of ``rows``."""
        distinct, place = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        bounds = zip(*(self._offsets.read(distinct + end).tolist() for end in (0, 1)), strict=True)
        lines = [self._bytes(start, end - 1).decode() for start, end in bounds]
        return [lines[number] for number in place.tolist()]

    def numbers(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the numbers that some lines had, int64 [n], from 1."""
        return self._numbers.read(rows)

    def filled(self, start: int, stop: int) -> np.ndarray:
        """Return which of the lines ``start`` to ``stop`` - 1 are not empty, bool [n]."""
        return np.diff(self._offsets.read(slice(start, stop + 1))) > 1

    def digest(self, start: int = 0, stop: int | None = None) -> str:
        """Return the sha256 of the lines ``start`` to ``stop`` - 1 with their line ends, in hexadecimal digits."""
        digest, rows = hashlib.sha256(), np.array([start, len(self) if stop is None else stop])
        begin, end = self._offsets.read(rows).tolist()
        for place in range(begin, end, READ_BYTES):
            digest.update(self._bytes(place, min(end, place + READ_BYTES)))
        return digest.hexdigest()

    def _bytes(self, start: int, stop: int) -> bytes:
        return os.pread(self._text.fileno(), stop - start, start)
