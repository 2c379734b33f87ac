"""Arrays in .npy files of any size, read and written row by row, so that they cost no memory of the process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from xrep.errors import UserError
from xrep.store.addresses import Address
from xrep.store.contents import Bytes

_HEADER_BYTES = 128
"""Bytes of the header of a .npy file, whatever its number of rows."""
_MOST_HEADER_BYTES = 1 << 12
"""Bytes of the longest header of a .npy file of numbers, whoever wrote it."""
READ_BYTES = 1 << 24
"""Bytes of an array that are read at a time."""


def open_array(path: Path, content: str, cure: str) -> np.memmap:
    """Map the array of a .npy file into memory; errors as of ``ArrayFile.open``."""
    array = ArrayFile.open(path, content, cure)
    return np.memmap(path, array.dtype, "r", array.offset, (len(array), *array.width))


class ArrayFile:
    """An array [N, ...] in a file. Each read copies some rows, and nothing of the file stays in memory.

    Args:
        file: The bytes to read, or a new file to write.
        offset: Where the first row begins, in bytes.
        width: The shape of a row.
    """

    def __init__(
        self, file: Bytes | IO[bytes], offset: int, rows: int, width: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self._file, self.offset, self._rows = file, offset, rows
        self.width, self.dtype, self.row_bytes = width, dtype, math.prod(width) * dtype.itemsize

    @classmethod
    def open(cls, address: Address, content: str, cure: str) -> ArrayFile:
        """Open a .npy file to read it; a UserError, which names its ``content``, says if there is no such file, or no
        whole array in it, or one that has no rows in C order."""
        try:
            file = Bytes(address)
        except FileNotFoundError:
            raise UserError("no such file", path=address, cure="check the name") from None
        unreadable = UserError(f"not a file of {content}, or a truncated one", path=address, cure=cure)
        beginning = BytesIO(file.read(_MOST_HEADER_BYTES))
        try:
            is_first = np.lib.format.read_magic(beginning) == (1, 0)
            read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(beginning)
            is_whole = not dtype.hasobject and beginning.tell() + math.prod(shape) * dtype.itemsize <= file.size
        except Exception:  # numpy reads headers with Python's parser, which raises errors of many types
            raise unreadable from None
        if not is_whole:
            raise unreadable
        if is_fortran or not shape:
            cure = "save it with numpy.ascontiguousarray"
            raise UserError("the rows do not lie one after the other", path=address, cure=cure)
        return cls(file, beginning.tell(), shape[0], shape[1:], dtype)

    @classmethod
    def create(cls, path: Path, dtype: DTypeLike, width: tuple[int, ...] = ()) -> ArrayFile:
        """Create a .npy file without rows, which ``append`` adds; ``close`` completes it."""
        file = open(path, "wb")
        file.seek(_HEADER_BYTES)
        return cls(file, _HEADER_BYTES, 0, width, np.dtype(dtype))

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, [n, ...], in the order of ``rows``: a slice without a step, or their numbers."""
        assert isinstance(self._file, Bytes)
        numbers = np.arange(*rows.indices(self._rows)) if isinstance(rows, slice) else rows
        found = np.empty((len(numbers), *self.width), self.dtype)
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()  # neighbours are read together
        self._file.fill(
            (self.offset + int(numbers[start]) * self.row_bytes, found[start:end].reshape(-1).view(np.uint8).data)
            for start, end in pairwise([*starts, len(numbers)])
        )
        return found

    def blocks(self, size: int = READ_BYTES) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows, about ``size`` bytes at a time: the number of the first one, and the rows."""
        step = max(1, size // max(1, self.row_bytes))
        for start in range(0, self._rows, step):
            yield start, self.read(slice(start, start + step))

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...] at the end of a file that ``create`` made."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)
        self._rows += len(rows)

    def close(self) -> None:
        """Complete the file that ``create`` made, and wait until it is on disk."""
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": (self._rows, *self.width)}
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(self._file, described)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def block_bounds(rows: int, size: int) -> list[tuple[int, int]]:
    """Return where blocks of at most ``size`` rows, but at least one, begin and end."""
    return [(start, min(start + size, rows)) for start in range(0, rows, max(1, size))]


def by_part(starts: Sequence[int], rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each part that has some of these rows, of parts that begin at ``starts``: its number, which of the rows
    they are, bool [n], and their numbers in the part."""
    part_of = np.searchsorted(starts, rows, "right") - 1
    for part in np.unique(part_of).tolist():
        its = part_of == part
        yield part, its, rows[its] - starts[part]
