"""Approximate neighbours with an index of faiss, for sides so large that an exact search takes too long.

The searched side is indexed part by part, so that memory is bounded. What the index proposes is compared with the
vectors themselves, so similarities are exact; only some neighbours may be missing. The vectors of a part are held in
memory with its index: read from their file, they would be many more bytes than the queries, in small pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from xrep.errors import UserError
from xrep.progress import Advance
from xrep.retrieval.topk import TopK, pair_similarities
from xrep.store.arrays import block_bounds

_BLOCK, _MOST_PROPOSALS = 1 << 14, 1 << 22
"""Number of rows that are read, and of neighbours that are proposed, at a time."""
_MOST_CELLS, _TRAINING_ROWS_A_CELL, _TRAINING_BYTES = 4096, 48, 1 << 28
_PROPOSED = 8
"""An index of fewer than 16 bits for each number proposes this many times k neighbours."""


class Rows(Protocol):
    """Vectors [N, D] that are read some at a time, float32 and L2-normalised."""

    @property
    def size(self) -> int: ...

    @property
    def dtype(self) -> np.dtype:
        """The type of the numbers where they are stored."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: slice | np.ndarray) -> np.ndarray: ...


def make_index(name: str, size: int, rows: int = 1 << 20) -> tuple[Any, Any]:
    """Return an empty index of faiss for inner products, and the inverted file in it, an IndexIVF, if there is one.

    ``name`` is a string of faiss's own factory, or ``ivf`` for cells of ``rows`` vectors, whose numbers have 16 bits. A
    UserError says that faiss knows no such index of vectors of that size.
    """
    import faiss

    cells = max(1, min(_MOST_CELLS, int(4 * math.sqrt(rows)), rows // _TRAINING_ROWS_A_CELL))
    with _possible(name):
        factory = f"IVF{cells},SQfp16" if name == "ivf" else name
        index = faiss.index_factory(size, factory, faiss.METRIC_INNER_PRODUCT)
    lists: Any = faiss.try_extract_index_ivf(index)
    lists = lists if lists is None else faiss.downcast_index(lists)
    for trained in (lists, *(getattr(each, "pq", None) for each in (lists, index))):
        if trained is not None:
            trained.cp.seed, trained.cp.min_points_per_centroid = 1234, 1  # with fewer, faiss warns on stderr
    return index, lists


@contextmanager
def _possible(name: str) -> Iterator[None]:
    """Context manager in which an error of faiss is one of the user, who chose this index."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        reason = str(error).strip().split("\n")[0].rpartition(": ")[2]
        problem = f"`index` {name} is not possible: {reason}"
        raise UserError(problem, cure="choose another `index`, such as flat or IVF4096,SQ8") from None


def train_index(index: Any, name: str, vectors: Rows, start: int, stop: int, least: int) -> None:
    """Train an index with some of the rows ``start`` to ``stop`` - 1, which are drawn with a fixed seed: 48 a cell, and
    at least so many, if there are as many and they need no more than 256 MB."""
    import faiss

    lists = faiss.try_extract_index_ivf(index)
    cells, rows = lists.nlist if lists is not None else 1, stop - start
    wanted = max(least, _TRAINING_ROWS_A_CELL * cells)
    few = min(rows, wanted, max(cells, _TRAINING_BYTES // (4 * vectors.size)))
    training_rows = start + np.sort(np.random.default_rng(0).choice(rows, few, replace=False, shuffle=False))
    with _possible(name):
        index.train(vectors.read(training_rows))


def add_rows(index: Any, name: str, vectors: Rows, start: int, stop: int, advance: Advance = lambda _: None) -> None:
    """Add the rows ``start`` to ``stop`` - 1 to an index."""
    with _possible(name):
        for first in range(start, stop, _BLOCK):
            index.add(vectors.read(slice(first, min(first + _BLOCK, stop))))
            advance(0)  # so that the time left is told anew


def _code_bytes(index: Any, lists: Any) -> int:
    """Return the bytes of a vector in an index."""
    return lists.code_size if lists is not None else getattr(index, "code_size", 4 * index.d)


def parts_of(name: str, side: Rows, gigabytes: float) -> list[tuple[int, int]]:
    """Return the parts of a side that are indexed one after the other, (start, stop) each. They are of equal size, and
    the index of one takes, with its vectors as they are stored, at most so many gigabytes."""
    row_bytes = _code_bytes(*make_index(name, side.size)) + 8 + side.size * side.dtype.itemsize
    parts = max(1, math.ceil(len(side) * row_bytes / (1e9 * gigabytes)))
    return block_bounds(len(side), math.ceil(len(side) / parts))


def trained_index(name: str, side: Rows) -> Any:
    """Return an empty index of faiss, trained on rows of a side that are drawn with a fixed seed."""
    import faiss

    index, lists = make_index(name, side.size, len(side))
    if isinstance(lists, faiss.IndexIVFScalarQuantizer):
        lists.by_residual = False  # as exact, and faster
    train_index(index, name, side, 0, len(side), 0 if name == "ivf" else _TRAINING_ROWS_A_CELL * _MOST_CELLS)
    return index


class PartIndex:
    """The index of a part of a side, in which neighbours are numbered as in the whole side.

    Args:
        name: What ``make_index`` makes it of.
        index: An empty index that was trained; the part is added to it.
        part: The vectors of the part. Some of them are read for each query, so they should be in memory.
        start: The number of the first one in the whole side.
        probes: Number of cells of an inverted file that are searched for each query.
    """

    def __init__(self, name: str, index: Any, part: Rows, start: int, probes: int) -> None:
        import faiss

        self._part, self._start, self._index = part, start, index
        add_rows(index, name, part, 0, len(part))
        lists: Any = faiss.try_extract_index_ivf(index)
        lists = lists if lists is None else faiss.downcast_index(lists)
        if lists is not None:
            lists.nprobe = min(probes, lists.nlist)
        self._times = 1 if _code_bytes(index, lists) >= 2 * part.size else _PROPOSED

    def search(self, queries: Rows, start: int, stop: int, best: TopK, advance: Advance) -> None:
        """Add what is found for the queries ``start`` to ``stop`` - 1 to their best neighbours."""
        wanted = min(self._index.ntotal, self._times * best.k)
        step = min(_BLOCK, max(1, _MOST_PROPOSALS // wanted))
        for first in range(start, stop, step):
            x_BD = queries.read(slice(first, min(first + step, stop)))
            _, proposed_BP = self._index.search(x_BD, wanted)
            some = best.slice(first - start, first - start + len(x_BD))
            compare_proposed(some, x_BD, proposed_BP, self._part, 0, self._start)
            advance(len(x_BD))


def compare_proposed(
    best: TopK, x_BD: np.ndarray, proposed_BP: np.ndarray, side: Rows, first: int, number: int
) -> None:
    """Compare queries with the vectors of the rows that an index proposes for each, and add them to their neighbours.

    ``proposed_BP`` has rows of the part of a side that is indexed, -1 for none. Row ``first`` of the side is the first
    one of the part, and ``number`` is what neighbours call it.
    """
    queries, step = torch.from_numpy(x_BD), max(1, _BLOCK // proposed_BP.shape[1])
    for start in range(0, len(x_BD), step):
        proposed = torch.from_numpy(proposed_BP[start : start + step])
        distinct, column = (proposed.clamp(min=0) + first).unique(return_inverse=True)
        row = torch.arange(start, start + len(proposed)).repeat_interleave(proposed.size(1))
        vectors = torch.from_numpy(side.read(distinct.numpy()))
        similarity = pair_similarities(queries, vectors, row, column.flatten()).view(proposed.shape)
        numbers = (proposed + number).masked_fill_(proposed < 0, -1)
        found = TopK(similarity.masked_fill_(proposed < 0, -torch.inf), numbers)
        best.slice(start, start + len(proposed)).merge(found)
