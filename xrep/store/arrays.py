"""Arrays in .npy files of any size, read and written row by row, so that they cost no memory of the process."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike

from xrep.errors import UserError
from xrep.files import naming
from xrep.store.addresses import Address, is_local
from xrep.store.contents import Bytes

_HEADER_BYTES = 128
"""Bytes of the header of a .npy file, whatever its number of rows."""
_MOST_HEADER_BYTES = 1 << 12
"""Bytes of the longest header of a .npy file of numbers, whoever wrote it."""
READ_BYTES = 1 << 24
"""Bytes of an array that are read at a time."""


def open_array(path: Path, content: str, cure: str) -> np.memmap:
    """Map the array of a .npy file into memory. A UserError, which names its ``content``, says that there is no such
    file, or no whole array in it."""
    _, offset, shape, is_fortran, dtype = _opened(path, content, cure)
    return np.memmap(path, dtype, "r", offset, shape, "F" if is_fortran else "C")


def _opened(address: Address, content: str, cure: str) -> tuple[Bytes, int, tuple[int, ...], bool, np.dtype]:
    """Open a .npy file and return it with what its header says: where the array begins, its shape, whether it is in
    Fortran's order, and its type; a UserError as ``open_array``."""
    if is_local(address) and os.path.exists(address) and not os.path.isfile(address):
        raise UserError("not a regular file", path=address, cure=cure)
    try:
        file = Bytes(address)
    except FileNotFoundError:
        raise UserError("no such file", path=address, cure="check the name") from None
    beginning = BytesIO(file.read(0, min(file.size, _MOST_HEADER_BYTES)))
    try:
        version = np.lib.format.read_magic(beginning)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that need more parsing
            shape, is_fortran, dtype = read(beginning)
        offset = beginning.tell()
        if not dtype.hasobject and offset + math.prod(shape) * dtype.itemsize <= file.size:
            return file, offset, shape, is_fortran, dtype
    except Exception:  # numpy reads headers with Python's parser, which raises errors of many types
        pass
    raise UserError(f"not a file of {content}, or a truncated one", path=address, cure=cure)


class ArrayFile:
    """An array [N, ...] in a file. Each read copies some rows, and nothing of the file stays in memory.

    Args:
        file: The bytes to read, or a new file that is written first.
        offset: Where the first row begins, in bytes.
        width: The shape of a row.
    """

    def __init__(
        self, file: Bytes | IO[bytes], offset: int, rows: int, width: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self._file, self._offset, self._rows = file, offset, rows
        self.width, self.dtype, self.row_bytes = width, dtype, math.prod(width) * dtype.itemsize
        self._content = file if isinstance(file, Bytes) else Bytes(file)

    @classmethod
    def open(cls, address: Address, content: str, cure: str) -> ArrayFile:
        """Open a .npy file to read it; a UserError, which names its ``content``, says if there is no such file, or it
        has no rows in C order."""
        file, offset, shape, is_fortran, dtype = _opened(address, content, cure)
        if is_fortran or not shape:
            cure = "save it with numpy.ascontiguousarray"
            raise UserError("the rows do not lie one after the other", path=address, cure=cure)
        return cls(file, offset, shape[0], shape[1:], dtype)

    @classmethod
    def create(cls, path: Path, dtype: DTypeLike, width: tuple[int, ...] = ()) -> ArrayFile:
        """Create a .npy file without rows, which ``append`` adds; ``close`` completes it."""
        with naming(path):
            return cls(open(path, "w+b"), _HEADER_BYTES, 0, width, np.dtype(dtype))

    @classmethod
    def temporary(cls, folder: Path | None, dtype: DTypeLike, width: tuple[int, ...] = ()) -> ArrayFile:
        """Create an array without rows in a file without a name, which vanishes with the object. Without a folder it is
        where temporary files are."""
        with naming(folder or tempfile.gettempdir()):
            return cls(tempfile.TemporaryFile(dir=folder), 0, 0, width, np.dtype(dtype))

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, [n, ...], in the order of ``rows``: a slice without a step, or their numbers."""
        numbers = np.arange(*rows.indices(self._rows)) if isinstance(rows, slice) else rows
        found = np.empty((len(numbers), *self.width), self.dtype)
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1).tolist()  # neighbours are read together
        self._content.fill(
            (self._offset + int(numbers[start]) * self.row_bytes, found[start:end].reshape(-1).view(np.uint8).data)
            for start, end in pairwise([*starts, len(numbers)])
        )
        return found

    def blocks(self, size: int = READ_BYTES) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows, about ``size`` bytes at a time: the number of the first one, and the rows."""
        step = max(1, size // max(1, self.row_bytes))
        for start in range(0, self._rows, step):
            yield start, self.read(slice(start, start + step))

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...] at the end."""
        assert not isinstance(self._file, Bytes)
        self._file.seek(self._offset + self._rows * self.row_bytes)
        self._file.write(np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)
        self._file.flush()
        self._rows += len(rows)

    def close(self) -> None:
        """Complete the file that ``create`` made, and wait until it is on disk."""
        assert not isinstance(self._file, Bytes)
        self._file.seek(0)
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": (self._rows, *self.width)}
        np.lib.format.write_array_header_1_0(self._file, described)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def blocks(rows: int, size: int) -> list[tuple[int, int]]:
    """Return where blocks of at most ``size`` rows, but at least one, begin and end."""
    return [(start, min(start + size, rows)) for start in range(0, rows, max(1, size))]


def by_part(starts: Sequence[int], rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each part that has some of these rows, of parts that begin at ``starts``: its number, which of the rows
    they are, bool [n], and their numbers in the part."""
    part_of = np.searchsorted(starts, rows, "right") - 1
    for part in np.unique(part_of).tolist():
        its = part_of == part
        yield part, its, rows[its] - starts[part]
