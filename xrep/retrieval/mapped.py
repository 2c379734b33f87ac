"""Arrays with a row for each sentence, in files: memory holds only the parts of them that are being used."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from xrep.files import naming

_BLOCK_BYTES = 1 << 22
"""Bytes of an array that are read or written at a time."""


def allocate(folder: Path | None, rows: int, *width: int, dtype: DTypeLike) -> np.ndarray:
    """Return an array of zeros [rows, *width], in memory, or in a file without a name, which vanishes with the array.

    Args:
        folder: The folder of the file; None: in memory.

    Raises:
        OSError: The disk has no room for it. (Without room for a page that is mapped, the process would be ended.)
    """
    if folder is None:
        return np.zeros((rows, *width), dtype)
    shape = (max(1, rows), *width)  # an empty file cannot be mapped
    size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
    with naming(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype, "r+", shape=shape)[:rows]


def release(*arrays: np.ndarray) -> None:
    """Let go of the pages of mapped arrays, so that they cost no memory until they are used again."""
    for array in arrays:
        if isinstance(array, np.memmap):
            mapped: mmap.mmap = array._mmap  # type: ignore[attr-defined]
            mapped.madvise(mmap.MADV_DONTNEED)


def blocks_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of an array, some at a time; each block is released before the next one."""
    step = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        yield array[start : start + step]
        release(array)


def take(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[index]`` of a one-dimensional array, for an index of any shape and order."""
    taken = np.empty(index.shape, array.dtype)
    for places in _near(array, index):
        taken.reshape(-1)[places] = array[index.reshape(-1)[places]]
        release(array)
    return taken


def put(array: np.ndarray, index: np.ndarray, value: object) -> None:
    """Set some elements of a one-dimensional array to a value."""
    for places in _near(array, index):
        array[index[places]] = value
        release(array)


def _near(array: np.ndarray, index: np.ndarray) -> list[np.ndarray]:
    """Return the places in an index, in groups whose elements lie near each other in the file of the array."""
    if not isinstance(array, np.memmap):
        return [np.arange(index.size)]
    order = index.argsort(axis=None)
    part = index.reshape(-1)[order] // (_BLOCK_BYTES // array.itemsize)
    return np.split(order, np.flatnonzero(np.diff(part)) + 1)
