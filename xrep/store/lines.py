"""The lines of a text in a folder, any of which can be read without the others."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice, pairwise
from pathlib import Path

import numpy as np

from xrep.files import naming
from xrep.store.addresses import Address
from xrep.store.arrays import READ_BYTES, ArrayFile
from xrep.store.contents import Bytes

FILES = LINES, OFFSETS, NUMBERS = "lines.txt", "offsets.npy", "numbers.npy"
_BLOCK = 1 << 12  # lines that are written at a time


def stored(line: str) -> bytes:
    r"""Return a line as it is in the file: one line, so with spaces in place of ``\n`` and ``\r`` inside."""
    return line.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def write_lines(folder: Path, numbered: Iterable[tuple[int, str]]) -> None:
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


class Lines:
    """The lines of a text that ``write_lines`` has copied to a folder.

    Layout::

        lines.txt      the lines, each with a line end
        offsets.npy    int64 [N + 1]: where in lines.txt each line begins, and the end of the last one
        numbers.npy    int64 [N]: the number of each line in the text that it was copied from, from 1
    """

    def __init__(self, lines: Address, offsets: Address, numbers: Address) -> None:
        self._text = Bytes(lines)
        self._offsets, self._numbers = (
            ArrayFile.open(file, "numbers of lines", "make it again") for file in (offsets, numbers)
        )

    @classmethod
    def open(cls, folder: Path) -> Lines:
        """Open the lines in a folder."""
        return cls(*(folder / name for name in FILES))

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, start: int, stop: int) -> list[str]:
        """Return the lines ``start`` to ``stop`` - 1."""
        ends = self._offsets.read(slice(start, stop + 1)).tolist()
        content = self._text.read(ends[0], ends[-1])
        return [content[begin - ends[0] : end - ends[0] - 1].decode() for begin, end in pairwise(ends)]

    def take(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return some lines, in the order of ``rows``."""
        distinct, place = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        starts, ends = (self._offsets.read(distinct + end).tolist() for end in (0, 1))
        contents = self._text.read_all((start, end - 1) for start, end in zip(starts, ends, strict=True))
        lines = [content.decode() for content in contents]
        return [lines[number] for number in place.tolist()]

    def numbers(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the numbers that some lines had, int64 [n], from 1."""
        return self._numbers.read(rows)

    def filled(self, start: int, stop: int) -> np.ndarray:
        """Return which of the lines ``start`` to ``stop`` - 1 are not empty, bool [n]."""
        return np.diff(self._offsets.read(slice(start, stop + 1))) > 1

    def digest(self, start: int = 0, stop: int | None = None) -> str:
        """Return the sha256 of the lines ``start`` to ``stop`` - 1 with their line ends, in hexadecimal digits."""
        digest = hashlib.sha256()
        for block in self.contents(start, len(self) if stop is None else stop):
            digest.update(block)
        return digest.hexdigest()

    def contents(self, start: int, stop: int) -> Iterator[bytearray]:
        """Yield the bytes of the lines ``start`` to ``stop`` - 1 with their line ends, some at a time."""
        begin, end = self._offsets.read(np.array([start, stop])).tolist()
        for place in range(begin, end, READ_BYTES):
            yield self._text.read(place, min(end, place + READ_BYTES))


class Texts:
    """The lines of several texts, one after the other, of which few are open at a time.

    Args:
        files: The addresses of the files of each text, as ``Lines`` takes them.
        counts: The number of lines of each.
    """

    def __init__(self, files: Sequence[Sequence[Address]], counts: Sequence[int]) -> None:
        self._text = lru_cache(maxsize=64)(lambda number: Lines(*files[number]))
        self.starts = [0, *accumulate(counts)]
        """The number of the first line of each text, and the number of all lines."""

    def __len__(self) -> int:
        return self.starts[-1]

    def place(self, line: int) -> tuple[int, int]:
        """Return the number of the text in which a line is, and the number that it had there, from 1."""
        text = bisect_right(self.starts, line) - 1
        return text, int(self._text(text).numbers(np.array([line - self.starts[text]]))[0])

    def read(self, start: int, stop: int) -> list[str]:
        """Return the lines ``start`` to ``stop`` - 1."""
        return [line for text, *some in self._parts(start, stop) for line in text.read(*some)]

    def take(self, rows: np.ndarray) -> list[str]:
        """Return some lines, in the order of ``rows``."""
        found, text_of = np.empty(len(rows), object), np.searchsorted(self.starts, rows, "right") - 1
        for text in np.unique(text_of).tolist():
            found[text_of == text] = self._text(text).take(rows[text_of == text] - self.starts[text])
        return found.tolist()

    def filled(self, start: int, stop: int) -> np.ndarray:
        """Return which of the lines ``start`` to ``stop`` - 1 are not empty, bool [n]."""
        return np.concatenate([text.filled(*some) for text, *some in self._parts(start, stop)])

    def digest(self, start: int, stop: int) -> str:
        """Return the sha256 of the lines ``start`` to ``stop`` - 1 with their line ends, in hexadecimal digits."""
        digest = hashlib.sha256()
        for text, first, last in self._parts(start, stop):
            for block in text.contents(first, last):
                digest.update(block)
        return digest.hexdigest()

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Lines, int, int]]:
        for number, (first, last) in enumerate(pairwise(self.starts)):
            if start < last and first < stop:
                yield self._text(number), max(start, first) - first, min(stop, last) - first
