"""Sorting of hashes on disk, in memory that does not grow with their number."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_RUN = 1 << 18  # rows in memory before they are sorted and written
_PARTS = 256  # by the first byte of the hash


class DiskSort:
    """Rows of 64-bit numbers that begin with a hash, to be read in the order of their hashes.

    They are written in sorted runs to a file without a name, which vanishes with this process. Memory holds one run,
    and one of 256 parts of all rows while they are read; a hash that very many rows have makes its part larger.

    Args:
        folder: Where the file is.
        width: Numbers in a row.
    """

    def __init__(self, folder: Path, width: int = 1) -> None:
        self._folder, self._width = folder, width
        self._held, self._count = list[np.ndarray](), 0
        self._runs = list[tuple[int, np.ndarray]]()  # place of each run in the file, in rows, and borders of its parts
        self._written, self._file = 0, None

    def add(self, rows: np.ndarray) -> None:
        """Add rows: uint64 [N, width] (or [N] if the width is 1)."""
        self._held.append(rows.reshape(-1, self._width))
        self._count += len(rows)
        if self._count >= _RUN:
            self._write()

    def parts(self) -> Iterator[np.ndarray]:
        """Yield all rows, uint64 [n, width], in the order of their hashes, and of equal hashes in that of their adding.

        Rows with equal hashes are in the same part.
        """
        self._write()
        for part in range(_PARTS if self._runs else 0):
            pieces = [self._read(start + borders[part], borders[part + 1] - borders[part])
                      for start, borders in self._runs]  # fmt: skip
            yield _in_order(np.concatenate(pieces))

    def save_distinct(self, path: Path) -> None:
        """Write the distinct hashes in ascending order: a file of numpy, uint64 [N]."""
        with path.open("xb") as file:
            header = {"descr": "<u8", "fortran_order": False, "shape": (0,)}
            np.lib.format.write_array_header_1_0(file, header)
            size = file.tell()
            for rows in self.parts():
                file.write(np.unique(rows[:, 0]).tobytes())
            header["shape"] = ((file.tell() - size) // 8,)
            file.seek(0)  # a header has room for any number
            np.lib.format.write_array_header_1_0(file, header)

    def _write(self) -> None:
        if not self._count:
            return
        rows = _in_order(np.concatenate(self._held))
        self._held, self._count = [], 0
        if self._width == 1:
            rows = np.unique(rows).reshape(-1, 1)
        starts = np.arange(_PARTS, dtype=np.uint64) << np.uint64(56)
        self._runs.append((self._written, np.append(np.searchsorted(rows[:, 0], starts), len(rows))))
        self._file = self._file or tempfile.TemporaryFile(dir=self._folder)
        self._file.seek(0, os.SEEK_END)
        self._file.write(rows.tobytes())
        self._file.flush()
        self._written += len(rows)

    def _read(self, first: int, count: int) -> np.ndarray:
        assert self._file is not None
        size = 8 * self._width
        block = os.pread(self._file.fileno(), int(count) * size, int(first) * size)
        return np.frombuffer(block, np.uint64).reshape(-1, self._width)


def _in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.argsort(rows[:, 0], kind="stable")]
