"""Vectors on disk, read block by block so that they need not fit in memory."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import naming
from xrep.retrieval.mapped import release
from xrep.retrieval.neighbours import normalize_rows

_SURVEY_BYTES = 1 << 24
_ROWS = 32
"""Number of scattered rows that are read at a time."""
HEADER_BYTES = 128


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file in C order: HEADER_BYTES bytes for any number of rows, so that it can be written
    before they are counted, and again at the end."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    assert header.tell() == HEADER_BYTES
    return header.getvalue()


def write_npy(path: Path, dtype: np.dtype, width: tuple[int, ...], blocks: Iterable[np.ndarray]) -> int:
    """Write the rows of arrays [n, *width] one after the other, and return the number of rows."""
    rows = 0
    with naming(path), open(path, "wb") as file:
        file.write(npy_header(dtype, (0, *width)))
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype).tobytes())
            rows += len(block)
        file.seek(0)
        file.write(npy_header(dtype, (rows, *width)))
    return rows


def raw_blocks(path: Path, dtype: np.dtype, width: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield the rows of such a file, [n, *width], some at a time; unlike those of a map, they cost memory once only."""
    numbers = math.prod(width)
    with open(path, "rb") as file:
        file.seek(HEADER_BYTES)
        while len(block := np.fromfile(file, dtype, max(1, _SURVEY_BYTES // (numbers * dtype.itemsize)) * numbers)):
            yield block.reshape(-1, *width)


def open_vectors(path: Path, cure: str) -> np.memmap:
    """Map the vectors of a .npy file, floats [N, D], into memory; a UserError says what else the file has."""
    vectors = open_array(path, "vectors", cure)
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or not vectors.size:
        raise UserError("not an array [N, D] of floats", path=path, cure=cure)
    return vectors


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


class VectorFile:
    """The vectors [N, D] of a .npy file, which is memory-mapped; pages are released after each read, so they cost no
    memory of the process. A UserError says why it is not a two-dimensional array of floats in C order."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        cure = "give a .npy file of floats [sentences, size], as xrep-encode writes it"
        self._rows: Any = open_vectors(self.path, cure)
        if not self._rows.flags.c_contiguous:
            raise UserError("the rows do not lie one after the other", path=path, cure="save it in C order")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        return self._rows.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self._rows.dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, L2-normalised: float32 [rows, D]."""
        if isinstance(rows, slice):
            vectors = np.asarray(self._rows[rows], dtype=np.float32)
            release(self._rows)
        else:
            vectors = np.empty((len(rows), self.size), np.float32)
            for start in range(0, len(rows), _ROWS):  # around each row that is read, the system maps others
                some = slice(start, start + _ROWS)
                vectors[some] = self._rows[rows[some]]
                release(self._rows)
        return normalize_rows(vectors)

    def survey(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield the rows as they are stored, some at a time: the number of the first one, the rows [n, D], which are
        valid until the next ones are read, and which of them are zero in float32, bool [n].

        Raises:
            UserError: a row contains a value that is not finite in float32.
        """
        step = max(1, _SURVEY_BYTES // (self.size * self.dtype.itemsize))
        for start in range(0, len(self), step):
            block = self._rows[start : start + step]
            with np.errstate(over="ignore", under="ignore"):
                values = block.astype(np.float32, copy=False)
            finite = np.isfinite(values).all(axis=1)
            if not finite.all():
                raise self.unusable("is not finite", start + int(np.argmin(finite)))
            yield start, block, ~values.any(axis=1)
            release(self._rows)

    def unusable(self, problem: str, row: int) -> UserError:
        """Return an error that names a row."""
        cure = "encode that sentence again, or leave it out here and in the text"
        return UserError(f"the vector of this row {problem}", path=self.path, line=row + 1, cure=cure)
