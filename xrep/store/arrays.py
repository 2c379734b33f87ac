"""Arrays in .npy files of any size, read and written row by row, so that they cost no memory of the process."""

from __future__ import annotations

import io
import math
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from xrep.errors import UserError
from xrep.files import naming

_HEADER_BYTES = 128
"""Bytes of the header of a .npy file, whatever its number of rows."""
READ_BYTES = 1 << 24
"""Bytes of an array that are read at a time."""


def open_array(path: Path, content: str, cure: str) -> np.memmap:
    """Map the array of a .npy file into memory; ``content`` names in messages what it should have.

    Raises:
        UserError: There is no such file, it is not a regular one, not an array, or truncated.
    """
    if not path.exists():
        raise UserError("no such file", path=path, cure="check the name")
    if not path.is_file():
        raise UserError("not a regular file", path=path, cure=cure)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that overflow and of headers that need more parsing
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception:  # numpy reads headers with Python's parser, which raises errors of many types
        array = None
    if not isinstance(array, np.memmap):
        raise UserError(f"not a file of {content}, or a truncated one", path=path, cure=cure)
    return array


class ArrayFile:
    """An array [N, ...] in a file. Each read returns a copy of some rows, and nothing of the file stays in memory.

    Args:
        descriptor: The open file, which is closed when the object is no longer used.
        offset: Where the first row begins, in bytes.
        width: The shape of a row.
    """

    def __init__(self, descriptor: int, offset: int, rows: int, width: tuple[int, ...], dtype: np.dtype) -> None:
        self._descriptor, self._offset, self._rows = descriptor, offset, rows
        self._closing = weakref.finalize(self, os.close, descriptor)
        self.width, self.dtype = width, dtype
        self.row_bytes = math.prod(width) * dtype.itemsize

    @classmethod
    def open(cls, path: Path, content: str, cure: str) -> ArrayFile:
        """Open a .npy file to read it; a UserError, as of ``open_array``, says if it has no rows in C order."""
        mapped = open_array(path, content, cure)
        if not mapped.flags.c_contiguous or not mapped.ndim:
            cure = "save it with numpy.ascontiguousarray"
            raise UserError("the rows do not lie one after the other", path=path, cure=cure)
        return cls(os.open(path, os.O_RDONLY), mapped.offset, len(mapped), mapped.shape[1:], mapped.dtype)

    @classmethod
    def create(cls, path: Path, dtype: DTypeLike, width: tuple[int, ...] = ()) -> ArrayFile:
        """Create a .npy file without rows, which ``append`` adds; ``close`` completes it."""
        with naming(path):
            return cls(
                os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666), _HEADER_BYTES, 0, width, np.dtype(dtype)
            )

    @classmethod
    def temporary(cls, folder: Path, dtype: DTypeLike, width: tuple[int, ...] = ()) -> ArrayFile:
        """Create an array without rows in a file without a name, which vanishes with the object."""
        with naming(folder), tempfile.TemporaryFile(dir=folder) as file:
            return cls(os.dup(file.fileno()), 0, 0, width, np.dtype(dtype))

    def __len__(self) -> int:
        return self._rows

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, [n, ...], in the order of ``rows``: a slice without a step, or their numbers."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self._rows)
            found = np.empty((max(0, stop - start), *self.width), self.dtype)
            self._fill(start, found)
            return found
        found = np.empty((len(rows), *self.width), self.dtype)
        ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]  # neighbours are read together
        start = 0
        for end in ends if len(rows) else []:
            self._fill(int(rows[start]), found[start:end])
            start = end
        return found

    def blocks(self, size: int = READ_BYTES) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows, about ``size`` bytes at a time: the number of the first one, and the rows."""
        step = max(1, size // max(1, self.row_bytes))
        for start in range(0, self._rows, step):
            yield start, self.read(slice(start, start + step))

    def append(self, rows: np.ndarray) -> None:
        """Add rows [n, ...] at the end."""
        content = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        self._put(self._offset + self._rows * self.row_bytes, content)
        self._rows += len(rows)

    def close(self) -> None:
        """Complete the file that ``create`` made, and wait until it is on disk."""
        header, shape = io.BytesIO(), (self._rows, *self.width)
        described = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        self._put(0, header.getvalue())
        os.fsync(self._descriptor)
        self._closing()

    def _fill(self, row: int, rows: np.ndarray) -> None:
        place, bytes_of = self._offset + row * self.row_bytes, rows.reshape(-1).view(np.uint8).data
        while len(bytes_of):  # the system reads at most 2 GB at a time
            done = os.preadv(self._descriptor, [bytes_of], place)
            if not done:
                raise UserError("a file of rows was truncated while it was read", cure="make it again")
            place, bytes_of = place + done, bytes_of[done:]

    def _put(self, place: int, content: bytes | memoryview) -> None:
        while len(content):
            done = os.pwrite(self._descriptor, content, place)
            place, content = place + done, content[done:]
