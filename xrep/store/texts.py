"""The lines of texts in files, any of which can be read without the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from xrep.files import naming
from xrep.hashing import hash_bytes
from xrep.store.addresses import Address
from xrep.store.arrays import ArrayFile, block_bounds, by_part
from xrep.store.contents import Bytes

TEXT_FILES = LINES_FILE, OFFSETS, NUMBERS, CHUNKS = "lines.txt", "offsets.npy", "numbers.npy", "chunks.npy"
HASHES = "hashes.npy"
CHUNK_LINES = 1 << 12
"""Number of lines that are written, and later encoded, at a time."""
CHUNK_CHARACTERS = 8_000_000
"""Number of characters after which a chunk ends early, so that memory does not grow with the length of the lines."""


def stored(line: str) -> bytes:
    r"""Return a line as it is in the file: one line, so with spaces in place of ``\n`` and ``\r`` inside."""
    return line.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def line_hash(line: str) -> int:
    """Return 64 bits of a hash of a line; 0 if it is empty."""
    return hash_bytes(line.encode("utf-8", "replace")) if line else 0


def write_lines(folder: Path, numbered: Iterable[tuple[int, str]], hash_of: Callable[[str], int] | None = None) -> int:
    """Copy lines, of which each comes with its number, into a folder that exists (see ``stored``), and return how many
    they are. With ``hash_of``, a further file has the hash of each line, if it is not 0, and its row, uint64."""
    ends, rows = np.zeros(1, np.int64), 0
    arrays = offsets, numbers, chunks = [ArrayFile.create(folder / name, np.int64) for name in TEXT_FILES[1:]]
    offsets.append(ends)
    chunks.append(ends)
    hashes = ArrayFile.create(folder / HASHES, np.uint64, (2,)) if hash_of else None
    with naming(folder / LINES_FILE), open(folder / LINES_FILE, "wb") as file:
        for chunk in _chunks(numbered):
            lines = [stored(line) for _, line in chunk]
            file.write(b"".join(lines))
            ends = ends[-1] + np.cumsum([len(line) for line in lines], dtype=np.int64)
            offsets.append(ends)
            numbers.append(np.array([number for number, _ in chunk], np.int64))
            if hash_of and hashes is not None:
                hashed = ((hash_of(text), row) for row, (_, text) in enumerate(chunk, rows))
                hashes.append(np.array([pair for pair in hashed if pair[0]], np.uint64).reshape(-1, 2))
            rows += len(chunk)
            chunks.append(np.array([rows]))
    for array in (*arrays, *([] if hashes is None else [hashes])):
        array.close()
    return rows


def _chunks(numbered: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield chunks, which end after CHUNK_LINES, or after the line that reaches CHUNK_CHARACTERS."""
    chunk, characters = list[tuple[int, str]](), 0
    for number, line in numbered:
        chunk.append((number, line))
        characters += len(line)
        if len(chunk) >= CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _opened(lines: Address, *arrays: Address) -> tuple[Bytes, list[ArrayFile]]:
    return Bytes(lines), [ArrayFile.open(file, "numbers of lines", "make it again") for file in arrays]


class Texts:
    """The lines of texts that ``write_lines`` has copied, one text after the other, of which few are open at a time.

    Layout of a text::

        lines.txt      the lines, each with a line end
        offsets.npy    int64 [N + 1]: where in lines.txt each line begins, and the end of the last one
        numbers.npy    int64 [N]: the number of each line in the text that it was copied from, from 1
        chunks.npy     int64 [C + 1]: the first line of each chunk, and N

    Args:
        files: The addresses of these files of each text.
        counts: The number of lines of each.
    """

    def __init__(self, files: Sequence[Sequence[Address]], counts: Sequence[int]) -> None:
        self._text = lru_cache(maxsize=64)(lambda number: _opened(*files[number]))
        self.starts = [0, *accumulate(counts)]
        """The number of the first line of each text, and the number of all lines."""

    def __len__(self) -> int:
        return self.starts[-1]

    def chunks(self) -> list[int]:
        """Return where the chunks of all texts begin, and the number of all lines."""
        starts = [0]
        for number, first in enumerate(self.starts[:-1]):
            _, (_, _, chunks) = self._text(number)
            starts += (first + chunks.read(slice(1, None))).tolist()
        return starts

    def place(self, line: int) -> tuple[int, int]:
        """Return the number of the text in which a line is, and the number that it had there, from 1."""
        text = bisect_right(self.starts, line) - 1
        _, (_, numbers, _) = self._text(text)
        return text, int(numbers.read(np.array([line - self.starts[text]]))[0])

    def read(self, start: int, stop: int) -> list[str]:
        """Return the lines ``start`` to ``stop`` - 1."""
        return self.take(np.arange(start, stop))

    def take(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return some lines, in the order of ``rows``."""
        distinct, place = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        lines = list[str]()
        for number, _, some in by_part(self.starts, distinct):
            content, (offsets, *_) = self._text(number)
            first = np.flatnonzero(np.diff(some, prepend=-2) != 1)  # of lines that follow each other, and are one part
            last = np.append(first[1:], len(some)) - 1
            begins, ends = offsets.read(some[first]).tolist(), offsets.read(some[last] + 1).tolist()
            for part in content.read_all(zip(begins, ends, strict=True)):
                lines += part[:-1].decode().split("\n")
        return [lines[number] for number in place.tolist()]


class SomeTexts(Texts):
    """Some lines of texts, whose rows are in a file in ascending order."""

    def __init__(self, texts: Texts, rows: ArrayFile) -> None:
        self._texts, self._rows, self.starts = texts, rows, [0, len(rows)]

    def chunks(self) -> list[int]:
        return [0, *(stop for _, stop in block_bounds(len(self), CHUNK_LINES))]

    def place(self, line: int) -> tuple[int, int]:
        return self._texts.place(int(self._rows.read(np.array([line]))[0]))

    def take(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        return self._texts.take(self._rows.read(np.asarray(rows, np.int64)))
