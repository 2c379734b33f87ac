"""Approximate neighbours with faiss's inverted files, for sides so large that an exact search takes too long.

Each direction is a separate search. The searched side is indexed part by part, so that memory is bounded. The rows that
the index proposes are compared again with the vectors themselves, so scores are exact; only some neighbours may be
missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from xrep.retrieval.neighbours import Best
from xrep.retrieval.search import SearchState, Side

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
_MOST_CELLS = 4096
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
    for queries, side, best, part, block in state.work(list(_units(x, y, state, quantized)), show_progress):
        if indexed != (side, part):
            index = None  # free its memory before the next one is built
            index, indexed = _build(side, *part, probes, quantized), (side, part)
        assert index is not None
        _search(index, queries, side, best, part[0], block, _REFINED if quantized else 1)


_Unit = tuple[Side, Side, Best, tuple[int, int], tuple[int, int]]


def _units(x: Side, y: Side, state: SearchState, quantized: bool) -> Iterator[_Unit]:
    """Yield units of work: (queries, searched side, best, part of the searched side, block of queries)."""
    for queries, side, best in ((x, y, state.xy), (y, x, state.yx)):
        size = side.vectors.size
        row_bytes = (size // 4 if quantized and _can_be_quantized(size, len(side)) else 2 * size) + 8
        parts = math.ceil(len(side) * row_bytes / _PART_BYTES)
        for part in side.blocks(math.ceil(len(side) / max(1, parts))):
            for block in queries.blocks(_QUERIES):
                yield queries, side, best, part, block


def _can_be_quantized(size: int, rows: int) -> bool:
    """Return whether product quantisation is possible; other vectors are stored in 16 bits."""
    return size % 2 == 0 and rows >= 256


def _build(side: Side, start: int, stop: int, probes: int, quantized: bool) -> faiss.IndexIVF:
    """Build an index of some rows. Its cells are trained on rows drawn with a fixed seed, so all runs have the same."""
    import faiss

    count = stop - start
    cells = max(1, min(_MOST_CELLS, int(4 * math.sqrt(count)), count // _TRAINING_ROWS_A_CELL))
    size = side.vectors.size
    quantizer = faiss.IndexFlatIP(size)
    if quantized and _can_be_quantized(size, count):
        index = faiss.IndexIVFPQFastScan(quantizer, size, cells, size // 2, 4, faiss.METRIC_INNER_PRODUCT)
    else:
        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(quantizer, size, cells, kind, faiss.METRIC_INNER_PRODUCT, False)
    drawn = np.random.default_rng(0).permutation(count)[: cells * _TRAINING_ROWS_A_CELL]
    index.cp.seed, index.cp.min_points_per_centroid = 1234, 1
    index.train(side.vectors.read(side.rows[start + np.sort(drawn)]))
    for first in range(start, stop, _BLOCK):
        index.add(side.read(first, min(first + _BLOCK, stop)))
    index.nprobe = min(probes, cells)
    return index


def _search(
    index: faiss.IndexIVF, queries: Side, side: Side, best: Best, first: int, block: tuple[int, int], refined: int
) -> None:
    wanted = min(index.ntotal, refined * best.index.size(1))
    rows = max(1, min(_BLOCK, _MOST_PROPOSALS // wanted))
    for start in range(*block, rows):
        stop = min(start + rows, block[1])
        x_BD = queries.read(start, stop)
        _, proposed_BP = index.search(x_BD, wanted)
        absent_BP = torch.from_numpy(proposed_BP < 0)
        proposed_BP = np.where(proposed_BP < 0, 0, proposed_BP) + first
        similarity_BP = _compare(torch.from_numpy(x_BD), side, proposed_BP).masked_fill_(absent_BP, -torch.inf)
        index_BP = torch.from_numpy(proposed_BP).masked_fill_(absent_BP, -1)
        index_BP, order = index_BP.sort(dim=1)  # so that of equal similarities the lowest index stays
        best.merge(slice(start, stop), similarity_BP.gather(1, order), index_BP)


def _compare(x_BD: torch.Tensor, side: Side, rows_BP: np.ndarray) -> torch.Tensor:
    """Return the inner products of each query with the rows proposed for it, [B, P]."""
    products = []
    step = max(1, _BLOCK // rows_BP.shape[1])
    for start in range(0, len(rows_BP), step):
        some = rows_BP[start : start + step]
        distinct, place = np.unique(some, return_inverse=True)
        y_CD = torch.from_numpy(side.vectors.read(side.rows[distinct]))
        y_BPD = y_CD[torch.from_numpy(place.reshape(some.shape))]
        products.append((y_BPD @ x_BD[start : start + step, :, None]).squeeze(2))
    return torch.cat(products)
