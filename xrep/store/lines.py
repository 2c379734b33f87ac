"""The lines of texts in files, any of which can be read without the others."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xrep.files import naming
from xrep.hashing import hash_bytes
from xrep.store.addresses import Address
from xrep.store.arrays import READ_BYTES, ArrayFile, by_part
from xrep.store.contents import Bytes

FILES = LINES, OFFSETS, NUMBERS, CHUNKS = "lines.txt", "offsets.npy", "numbers.npy", "chunks.npy"
CHUNK_LINES = 1 << 12
"""Number of lines that are written, and later encoded, at a time."""
CHUNK_CHARACTERS = 8_000_000
"""Number of characters after which a chunk ends early, so that memory does not grow with the length of the lines."""


def stored(line: str) -> bytes:
    r"""Return a line as it is in the file: one line, so with spaces in place of ``\n`` and ``\r`` inside."""
    return line.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace") + b"\n"


def write_lines(folder: Path, numbered: Iterable[tuple[int, str]], hashes: ArrayFile | None = None) -> int:
    """Copy lines, of which each comes with its number, into a folder that exists (see ``stored``), and return how many
    they are. ``hashes`` gets the hash and the row of each line that is not empty, uint64."""
    ends, rows = np.zeros(1, np.int64), 0
    arrays = offsets, numbers, chunks = [ArrayFile.create(folder / name, np.int64) for name in FILES[1:]]
    offsets.append(ends)
    chunks.append(ends)
    with naming(folder / LINES), open(folder / LINES, "wb") as file:
        for chunk in _chunks(numbered):
            lines = [stored(line) for _, line in chunk]
            file.write(b"".join(lines))
            ends = ends[-1] + np.cumsum([len(line) for line in lines], dtype=np.int64)
            offsets.append(ends)
            numbers.append(np.array([number for number, _ in chunk], np.int64))
            if hashes is not None:
                texts = ((row, text.encode("utf-8", "replace")) for row, (_, text) in enumerate(chunk, rows) if text)
                hashes.append(np.array([(hash_bytes(text), row) for row, text in texts], np.uint64).reshape(-1, 2))
            rows += len(chunk)
            chunks.append(np.array([rows]))
    for array in arrays:
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


class _Text(NamedTuple):
    """The files of a text, opened."""

    lines: Bytes
    offsets: ArrayFile
    numbers: ArrayFile
    chunks: ArrayFile

    @classmethod
    def open(cls, lines: Address, *arrays: Address) -> _Text:
        return cls(Bytes(lines), *(ArrayFile.open(file, "numbers of lines", "make it again") for file in arrays))


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
        self._text = lru_cache(maxsize=64)(lambda number: _Text.open(*files[number]))
        self.starts = [0, *accumulate(counts)]
        """The number of the first line of each text, and the number of all lines."""

    @classmethod
    def open(cls, folder: Path) -> Texts:
        """Open the one text of a folder."""
        files = [folder / name for name in FILES]
        return cls([files], [len(_Text.open(*files).numbers)])

    def __len__(self) -> int:
        return self.starts[-1]

    def chunks(self) -> list[int]:
        """Return where the chunks of all texts begin, and the number of all lines."""
        starts = [0]
        for number, first in enumerate(self.starts[:-1]):
            starts += (first + self._text(number).chunks.read(slice(1, None))).tolist()
        return starts

    def place(self, line: int) -> tuple[int, int]:
        """Return the number of the text in which a line is, and the number that it had there, from 1."""
        return bisect_right(self.starts, line) - 1, int(self.numbers(np.array([line]))[0])

    def read(self, start: int, stop: int) -> list[str]:
        """Return the lines ``start`` to ``stop`` - 1."""
        found = list[str]()
        for text, first, last in self._parts(start, stop):
            ends = text.offsets.read(slice(first, last + 1)).tolist()
            content = text.lines.read(ends[0], ends[-1])
            found += [content[begin - ends[0] : end - ends[0] - 1].decode() for begin, end in pairwise(ends)]
        return found

    def take(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return some lines, in the order of ``rows``."""
        distinct, place = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        lines = list[str]()
        for number, _, some in by_part(self.starts, distinct):
            text = self._text(number)
            starts, ends = (text.offsets.read(some + end).tolist() for end in (0, 1))
            contents = text.lines.read_all((start, end - 1) for start, end in zip(starts, ends, strict=True))
            lines += [content.decode() for content in contents]
        return [lines[number] for number in place.tolist()]

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """Return the numbers that some lines had in their texts, int64 [n], from 1."""
        found = np.empty(len(rows), np.int64)
        for text, its, some in by_part(self.starts, rows):
            found[its] = self._text(text).numbers.read(some)
        return found

    def filled(self, start: int, stop: int) -> np.ndarray:
        """Return which of the lines ``start`` to ``stop`` - 1 are not empty, bool [n]."""
        parts = self._parts(start, stop)
        return np.concatenate([np.diff(text.offsets.read(slice(first, last + 1))) > 1 for text, first, last in parts])

    def digest(self, start: int = 0, stop: int | None = None) -> str:
        """Return the sha256 of the lines ``start`` to ``stop`` - 1 with their line ends, in hexadecimal digits."""
        digest = hashlib.sha256()
        for text, *some in self._parts(start, len(self) if stop is None else stop):
            begin, end = text.offsets.read(np.array(some)).tolist()
            for place in range(begin, end, READ_BYTES):
                digest.update(text.lines.read(place, min(end, place + READ_BYTES)))
        return digest.hexdigest()

    def _parts(self, start: int, stop: int) -> Iterator[tuple[_Text, int, int]]:
        """Yield each text that has some of the lines ``start`` to ``stop`` - 1, and which of its own lines they are."""
        for number, (first, last) in enumerate(pairwise(self.starts)):
            if start < last and first < stop:
                yield self._text(number), max(start, first) - first, min(stop, last) - first
