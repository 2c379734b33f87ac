"""Approximate neighbours with an index of faiss, for sides so large that an exact search takes too long.

The searched side is indexed part by part, so that memory is bounded. What the index proposes is compared with the
vectors themselves, so similarities are exact; only some neighbours may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from xrep.errors import UserError
from xrep.retrieval.topk import TopK, pair_similarities

_PART_BYTES = 1 << 30
"""Bytes of the index that is held at a time."""
_BLOCK = 1 << 14
"""Number of rows that are read at a time."""
_MOST_PROPOSALS = 1 << 22
"""Number of neighbours that are proposed at a time."""
_TRAINING_ROWS_A_CELL = 48
_TRAINING_BYTES = 1 << 28
_MOST_CELLS = 4096
_PROPOSED = 8
"""An index of fewer than 16 bits for each number proposes this many times k neighbours."""


class Rows(Protocol):
    """Vectors [N, D] that are read some at a time, float32 and L2-normalised."""

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...

    def read(self, rows: slice | np.ndarray) -> np.ndarray: ...


def make_index(name: str, size: int, rows: int = 1 << 20) -> tuple[Any, Any]:
    """Return an empty index of faiss for inner products, and the inverted file in it, an IndexIVF, if there is one.

    Args:
        name: A string of faiss's own factory, or ``ivf`` for cells of ``rows`` vectors, whose numbers have 16 bits.

    Raises:
        UserError: faiss knows no such index of vectors of that size.
    """
    import faiss

    cells = max(1, min(_MOST_CELLS, int(4 * math.sqrt(rows)), rows // _TRAINING_ROWS_A_CELL))
    factory = f"IVF{cells},SQfp16" if name == "ivf" else name
    try:
        index = faiss.index_factory(size, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError):
        cure = "give flat, ivf or a string of faiss's factory, such as IVF4096,SQ8"
        raise UserError(f"`index` {name}: no index of vectors of {size} numbers", cure=cure) from None
    lists: Any = faiss.try_extract_index_ivf(index)
    if lists is not None:
        lists = faiss.downcast_index(lists)
        lists.cp.seed, lists.cp.min_points_per_centroid = 1234, 1
        if isinstance(lists, faiss.IndexIVFScalarQuantizer):
            lists.by_residual = False  # as exact, and faster
    return index, lists


def _code_bytes(index: Any, lists: Any) -> int:
    """Return the bytes of a vector in an index."""
    return lists.code_size if lists is not None else getattr(index, "code_size", 4 * index.d)


def parts_of(name: str, side: Rows) -> list[tuple[int, int]]:
    """Return the parts of a side that are indexed one after the other, (start, stop) each."""
    row_bytes = _code_bytes(*make_index(name, side.size)) + 8
    step = max(1, math.ceil(len(side) / max(1, math.ceil(len(side) * row_bytes / _PART_BYTES))))
    return [(start, min(start + step, len(side))) for start in range(0, len(side), step)]


class PartIndex:
    """The index of a part of a side, trained on rows drawn with a fixed seed, so that all runs have the same.

    Args:
        number: The number by which neighbours call the first row of the side.
        probes: Number of cells of an inverted file that are searched for each query. More cells find more neighbours,
            but take longer.
        advance: Called now and then.
    """

    def __init__(
        self, name: str, side: Rows, start: int, stop: int, number: int, probes: int, advance: Callable[[int], object]
    ) -> None:
        self._side, self._start, self._number = side, start, number
        self._index, lists = make_index(name, side.size, stop - start)
        cells, rows = lists.nlist if lists is not None else 1, stop - start
        wanted = _TRAINING_ROWS_A_CELL * (cells if name == "ivf" else max(cells, _MOST_CELLS))
        few = min(rows, wanted, max(cells, _TRAINING_BYTES // (4 * side.size)))
        training = start + np.sort(np.random.default_rng(0).choice(rows, few, replace=False, shuffle=False))
        try:
            self._index.train(side.read(training))
        except RuntimeError:
            cure = "name an index with fewer cells or smaller codes"
            raise UserError(f"`index` {name}: {rows:,} sentences are too few for it", cure=cure) from None
        for first in range(start, stop, _BLOCK):
            self._index.add(side.read(slice(first, min(first + _BLOCK, stop))))
            advance(0)  # so that the time left is told anew
        if lists is not None:
            lists.nprobe = min(probes, lists.nlist)
        self._times = 1 if _code_bytes(self._index, lists) >= 2 * side.size else _PROPOSED

    def search(self, queries: Rows, start: int, stop: int, best: TopK, advance: Callable[[int], object]) -> None:
        """Add what is found for some queries to their best neighbours; ``advance`` is told how many are done."""
        wanted = min(self._index.ntotal, self._times * best.k)
        for first in range(start, stop, _BLOCK):
            x_BD = queries.read(slice(first, min(first + _BLOCK, stop)))
            step = max(1, _MOST_PROPOSALS // wanted)
            proposed = [
                self._index.search(x_BD[place : place + step], wanted)[1] for place in range(0, len(x_BD), step)
            ]
            some = best.slice(first - start, first - start + len(x_BD))
            compare_proposed(some, x_BD, np.concatenate(proposed), self._side, self._start, self._number + self._start)
            advance(len(x_BD))


def compare_proposed(
    best: TopK, x_BD: np.ndarray, proposed_BP: np.ndarray, side: Rows, first: int, number: int
) -> None:
    """Compare queries with the vectors of the rows that an index proposes for each, and add them to their neighbours.

    Args:
        best: The neighbours of the queries so far.
        x_BD: The queries.
        proposed_BP: Rows of the part of a side that is indexed, -1 for none.
        first: Which row of the side is the first one of the part.
        number: The number by which neighbours call that row.
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
