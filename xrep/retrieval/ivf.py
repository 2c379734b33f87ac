"""Approximate neighbours with faiss's inverted files, for sides so large that an exact search takes too long.

Each direction is a separate search. The searched side is indexed part by part, so that memory is bounded. The rows that
the index proposes are compared again with the vectors themselves, so scores are exact; only some neighbours may be
missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from xrep.retrieval.mapped import take
from xrep.retrieval.search import SearchState, Side
from xrep.retrieval.topk import TopK, pair_similarities
from xrep.retrieval.vectors import VectorFile

if TYPE_CHECKING:
    import faiss

_PART_BYTES = 1 << 30
"""Bytes of the index that is held at a time."""
_QUERIES = 1 << 18
"""Number of queries in one unit of work."""
_BLOCK = 1 << 14
"""Number of rows that are read at a time."""
_MOST_PROPOSALS = 1 << 24
"""Number of neighbours that are proposed at a time."""
_TRAINING_ROWS_A_CELL = 48
_TRAINING_BYTES = 1 << 28
MOST_CELLS = 4096
_REFINED = 8
"""With product quantisation, this many times k neighbours are proposed."""


def search_ivf(
    x: Side, y: Side, state: SearchState, *, probes: int = 32, quantized: bool = False, show_progress: bool = False
) -> None:
    """Find neighbours in both directions, one after the other.

    If a sentence has fewer than k neighbours, the remaining places have index -1 and similarity -inf.

    Args:
        state: As in ``search_flat``.
        probes: Number of cells that are searched for each query. More cells find more neighbours, but take longer.
        quantized: Use product quantisation: 4 bits for 2 dimensions instead of 16 bits for each, and faster scans.
    """
    index, indexed = None, None
    units = list(_units(x, y, quantized))
    sizes = [stop - start for *_, (start, stop) in units]
    for (queries, side, direction, part, block), advance in state.work(units, sizes, "queries", show_progress):
        if indexed != (side, part):
            index = None  # free its memory before the next one is built
            index, indexed = _build(side, *part, probes, quantized, advance), (side, part)
        assert index is not None
        _search(index, queries, side, state, direction, part[0], block, _REFINED if quantized else 1, advance)


_Direction = Literal["xy", "yx"]
_Unit = tuple[Side, Side, _Direction, tuple[int, int], tuple[int, int]]


def _units(x: Side, y: Side, quantized: bool) -> Iterator[_Unit]:
    """Yield units of work: (queries, searched side, direction, part of the searched side, block of queries)."""
    directions: tuple[tuple[Side, Side, _Direction], ...] = ((x, y, "xy"), (y, x, "yx"))
    for queries, side, direction in directions:
        size = side.vectors.size
        row_bytes = (size // 4 if quantized and _can_be_quantized(size, len(side)) else 2 * size) + 8
        parts = math.ceil(len(side) * row_bytes / _PART_BYTES)
        for part in side.blocks(math.ceil(len(side) / max(1, parts))):
            for block in queries.blocks(_QUERIES):
                yield queries, side, direction, part, block


def _can_be_quantized(size: int, rows: int) -> bool:
    """Return whether product quantisation is possible; other vectors are stored in 16 bits."""
    return size % 2 == 0 and rows >= 256


def cells_of(rows: int) -> int:
    """Return the number of cells for so many vectors."""
    return max(1, min(MOST_CELLS, int(4 * math.sqrt(rows)), rows // _TRAINING_ROWS_A_CELL))


def drawn(rows: int, cells: int, size: int) -> np.ndarray:
    """Return the numbers of the rows that train so many cells, drawn with a fixed seed, in ascending order: fewer if
    vectors are of a large ``size``."""
    few = min(rows, cells * _TRAINING_ROWS_A_CELL, _TRAINING_BYTES // (4 * size))
    return np.sort(np.random.default_rng(0).choice(rows, few, replace=False, shuffle=False))


def _build(
    side: Side, start: int, stop: int, probes: int, quantized: bool, advance: Callable[[int], None]
) -> faiss.IndexIVF:
    """Build an index of some rows. Its cells are trained on rows drawn with a fixed seed, so all runs have the same."""
    import faiss

    count = stop - start
    cells = cells_of(count)
    size = side.vectors.size
    quantizer = faiss.IndexFlatIP(size)
    if quantized and _can_be_quantized(size, count):
        index = faiss.IndexIVFPQFastScan(quantizer, size, cells, size // 2, 4, faiss.METRIC_INNER_PRODUCT)
    else:
        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(quantizer, size, cells, kind, faiss.METRIC_INNER_PRODUCT, False)
    index.cp.seed, index.cp.min_points_per_centroid = 1234, 1
    index.train(side.vectors.read(take(side.rows, start + drawn(count, cells, side.vectors.size))))
    for first in range(start, stop, _BLOCK):
        index.add(side.read(first, min(first + _BLOCK, stop)))
        advance(0)  # so that the time left is told anew
    index.nprobe = min(probes, cells)
    return index


def _search(
    index: faiss.IndexIVF,
    queries: Side,
    side: Side,
    state: SearchState,
    direction: _Direction,
    first: int,
    block: tuple[int, int],
    refined: int,
    advance: Callable[[int], None],
) -> None:
    wanted = min(index.ntotal, refined * vars(state.nearest)[direction].shape[1])
    rows = max(1, min(_BLOCK, _MOST_PROPOSALS // wanted))
    for start in range(*block, rows):
        stop = min(start + rows, block[1])
        x_BD = queries.read(start, stop)
        _, proposed_BP = index.search(x_BD, wanted)
        proposed_BP = np.where(proposed_BP < 0, -1, proposed_BP + first)
        rows_BP = take(side.rows, np.maximum(proposed_BP, 0))
        with state.best(direction, start, stop) as best:
            refine(best, x_BD, side.vectors, rows_BP, proposed_BP)
        advance(stop - start)


def refine(best: TopK, x_BD: np.ndarray, vectors: VectorFile, rows_BP: np.ndarray, index_BP: np.ndarray) -> None:
    """Compare queries with the vectors of the rows proposed for each, and keep the best of them under the numbers
    ``index_BP``, which are -1 where there is none. Scores are exact, and of equal ones the lowest number stays."""
    number_BP = torch.from_numpy(index_BP)
    similarity_BP = _compare(torch.from_numpy(x_BD), vectors, rows_BP).masked_fill_(number_BP < 0, -torch.inf)
    best.merge(TopK(similarity_BP, number_BP))


def _compare(x_BD: torch.Tensor, vectors: VectorFile, rows_BP: np.ndarray) -> torch.Tensor:
    """Return the inner products of each query with the rows proposed for it, [B, P]."""
    products = []
    step = max(1, _BLOCK // rows_BP.shape[1])
    for start in range(0, len(rows_BP), step):
        some = rows_BP[start : start + step]
        distinct, place = np.unique(some, return_inverse=True)
        columns = torch.from_numpy(place.reshape(-1))
        rows = torch.arange(start, start + len(some)).repeat_interleave(some.shape[1])
        y_CD = torch.from_numpy(vectors.read(distinct))
        products.append(pair_similarities(x_BD, y_CD, rows, columns).view(some.shape))
    return torch.cat(products)
