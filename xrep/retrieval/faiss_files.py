"""Files of faiss indexes of any size, written block by block.

faiss itself writes an index that it holds in memory. A file here is what faiss writes for a trained index without
vectors, with the number of vectors changed and their codes behind it, so ``faiss.read_index`` (for binary codes
``faiss.read_index_binary``) reads it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.files import naming
from xrep.memory import check_memory
from xrep.retrieval.ivf import cells_of, drawn
from xrep.retrieval.vectors import VectorFile

Quantize = Literal["none", "int8", "binary"]
PROBES = 32
"""Number of inverted lists that are searched for each query, unless the user wants another."""
_BLOCK_BYTES = 1 << 23
"""Bytes of the float32 vectors that are read and encoded at a time."""
_NO_LISTS = b"sprs" + bytes(8)
"""How the file of an index without vectors in its inverted lists ends."""


@dataclass(frozen=True)
class Shape:
    """What determines the structure of a file: ``rows`` vectors of ``size`` numbers, in ``cells`` inverted lists, or
    without any (0), which is searched completely. Without quantisation a number takes 32 bits, in inverted lists 16."""

    size: int
    rows: int
    cells: int
    quantize: Quantize

    @property
    def code_bytes(self) -> int:
        """The bytes of a vector."""
        return {"none": (2 if self.cells else 4) * self.size, "int8": self.size, "binary": self.size // 8}[
            self.quantize
        ]

    @property
    def exact(self) -> bool:
        """Whether a search finds the nearest vectors by their exact similarities."""
        return not self.cells and self.quantize == "none"

    def suits(self, rows: int) -> bool:
        """Return whether the cells, which were chosen for fewer rows, still suit so many."""
        return bool(self.cells) and cells_of(rows) <= 2 * self.cells

    def new(self) -> Any:
        """Return a faiss index without vectors, which is not trained."""
        import faiss

        index: Any
        if self.quantize == "binary":
            flat = faiss.IndexBinaryFlat(self.size)
            index = faiss.IndexBinaryIVF(flat, self.size, self.cells) if self.cells else flat
        else:
            kind = faiss.ScalarQuantizer.QT_fp16 if self.quantize == "none" else faiss.ScalarQuantizer.QT_8bit
            flat, metric = faiss.IndexFlatIP(self.size), faiss.METRIC_INNER_PRODUCT
            index = flat
            if self.cells:
                index = faiss.IndexIVFScalarQuantizer(flat, self.size, self.cells, kind, metric, False)
            elif self.quantize == "int8":
                index = faiss.IndexScalarQuantizer(self.size, kind, metric)
        if self.cells:
            index.cp.seed, index.cp.min_points_per_centroid = 1234, 1
            index.nprobe = min(PROBES, self.cells)
        return index

    def head(self, index: Any) -> bytes:
        """Return the beginning of the file: the trained ``index``, the number of vectors and, of inverted lists, what
        is before their lengths."""
        import faiss

        binary = self.quantize == "binary"
        data = bytearray((faiss.serialize_index_binary if binary else faiss.serialize_index)(index).tobytes())
        place = 12 if binary else 8
        data[place : place + 8] = self.rows.to_bytes(8, "little")
        if self.cells:
            assert data.endswith(_NO_LISTS), "this version of faiss writes another format"
            return bytes(data[: -len(_NO_LISTS)]) + b"full" + self.cells.to_bytes(8, "little")
        numbers = self.rows * (self.size if self.quantize == "none" else self.code_bytes)
        return bytes(data[:-8]) + numbers.to_bytes(8, "little")

    def encode(self, index: Any, x_ND: np.ndarray) -> np.ndarray:
        """Return the codes of vectors: uint8 [N, code_bytes]."""
        if self.quantize == "binary":
            return np.packbits(x_ND > 0, axis=1)
        return x_ND.view(np.uint8) if self.exact else index.sq.compute_codes(x_ND)

    def query(self, x_ND: np.ndarray) -> np.ndarray:
        """Return vectors as the search of the index takes them."""
        return np.packbits(x_ND > 0, axis=1) if self.quantize == "binary" else x_ND


def write_index(path: Path, shape: Shape, vectors: VectorFile, old: tuple[Path, Shape] | None = None) -> None:
    """Write the index of the vectors [N, D] of a file in constant memory.

    Args:
        old: Inverted lists of the first rows of the same vectors, and their shape, which has as many cells: they are
            copied, and the new rows are put into their cells.

    Raises:
        UserError: As ``open_index``, for the old index.
    """
    if old is None:
        index = shape.new()
        if not index.is_trained or shape.cells:
            index.train(shape.query(vectors.read(drawn(len(vectors), max(shape.cells, 256), vectors.size))))
    else:
        import faiss

        index = open_index(*old)
        lists: Any = faiss.ArrayInvertedLists(shape.cells, shape.code_bytes)
        lists.this.disown()
        index.replace_invlists(lists, True)
        index.ntotal = 0
    with naming(path), open(path, "w+b") as file:
        if shape.cells:
            _write_lists(file, shape, index, vectors, old)
        else:
            file.write(shape.head(index))
            for _, x_ND in _blocks(vectors, 0):
                file.write(shape.encode(index, x_ND).tobytes())


def _blocks(vectors: VectorFile, first: int) -> Iterator[tuple[int, np.ndarray]]:
    step = max(1, _BLOCK_BYTES // (4 * vectors.size))
    for start in range(first, len(vectors), step):
        yield start, vectors.read(slice(start, min(start + step, len(vectors))))


def _write_lists(
    file: IO[bytes], shape: Shape, index: Any, vectors: VectorFile, old: tuple[Path, Shape] | None
) -> None:
    """Write inverted lists, each the codes of its rows and then their numbers, after counting the rows of each."""
    head, width, first = shape.head(index), shape.code_bytes, old[1].rows if old else 0
    before = _lengths(old[0], shape, len(head)) if old else np.zeros(shape.cells, dtype=np.int64)
    with tempfile.TemporaryFile(dir=Path(file.name).parent) as cells:
        counts = before.copy()
        for _, x_ND in _blocks(vectors, first):
            cell_N = index.quantizer.search(shape.query(x_ND), 1)[1].ravel().astype(np.int32)
            cells.write(cell_N.tobytes())
            counts += np.bincount(cell_N, minlength=shape.cells)
        file.write(head + counts.astype(np.uint64).tobytes())
        file.flush()
        start = _starts(file.tell(), counts, width)
        file.truncate(int(start[-1]))
        if old is not None:
            _copy_lists(file, old[0], _starts(file.tell(), before, width), start, before, counts, width)
        cells.seek(0)
        filled = before
        for number, x_ND in _blocks(vectors, first):
            cell_N = np.frombuffer(cells.read(4 * len(x_ND)), dtype=np.int32)
            order = np.argsort(cell_N, kind="stable")
            codes, ids = shape.encode(index, x_ND)[order], (number + order).astype(np.int64)
            some, begins = np.unique(cell_N[order], return_index=True)
            for cell, begin, end in zip(some, begins, [*begins[1:], len(order)], strict=True):
                place = int(start[cell])
                os.pwrite(file.fileno(), codes[begin:end].tobytes(), place + int(filled[cell]) * width)
                place += int(counts[cell]) * width + 8 * int(filled[cell])
                os.pwrite(file.fileno(), ids[begin:end].tobytes(), place)
                filled[cell] += end - begin


def _starts(first: int, counts: np.ndarray, width: int) -> np.ndarray:
    """Return the place in the file of each list, and of the end of the last one: int64 [cells + 1]."""
    return first + np.append(0, np.cumsum(counts * (width + 8)))


def _copy_lists(
    file: IO[bytes],
    old: Path,
    old_start: np.ndarray,
    start: np.ndarray,
    before: np.ndarray,
    counts: np.ndarray,
    width: int,
) -> None:
    with open(old, "rb") as lists:
        for cell in np.flatnonzero(before).tolist():
            lists.seek(int(old_start[cell]))
            for place, size in ((0, width * before[cell]), (width * counts[cell], 8 * before[cell])):
                os.pwrite(file.fileno(), lists.read(int(size)), int(start[cell] + place))


def _lengths(path: Path, shape: Shape, place: int) -> np.ndarray:
    """Return the lengths of the inverted lists, int64 [cells]."""
    with open(path, "rb") as file:
        file.seek(place)
        return np.frombuffer(file.read(8 * shape.cells), dtype=np.uint64).astype(np.int64)


def open_index(path: Path, shape: Shape) -> Any:
    """Open the index of a file whose checksum was compared: inverted lists stay on disk, others are read into memory.

    Raises:
        UserError: It needs more memory than there is.
    """
    import faiss

    if not shape.cells:
        check_memory(path.stat().st_size, f"the index {path}", cure="build it with inverted files")
    read = faiss.read_index_binary if shape.quantize == "binary" else faiss.read_index
    return read(str(path), faiss.IO_FLAG_MMAP if shape.cells else 0)


def let_go(index: Any, shape: Shape) -> None:
    """Release the pages of inverted lists that a search has read, so that they cost no memory of the process."""
    if shape.cells:
        import faiss

        lists: Any = faiss.downcast_InvertedLists(index.invlists)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(int(lists.ptr)), ctypes.c_size_t(lists.totsize), mmap.MADV_DONTNEED)


def shape_for(vectors: VectorFile, rows: int, kind: Literal["flat", "ivf"], quantize: Quantize) -> Shape:
    """Return the shape of a new index of so many vectors.

    Raises:
        UserError: The vectors cannot be made binary.
    """
    if quantize == "binary" and vectors.size % 8:
        problem = f"vectors of {vectors.size} numbers, which fill no whole bytes with a bit each"
        raise UserError(problem, cure="choose another `quantize`")
    return Shape(vectors.size, rows, cells_of(rows) if kind == "ivf" else 0, quantize)
