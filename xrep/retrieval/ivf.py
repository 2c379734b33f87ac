"""Approximate neighbours with faiss's inverted files, for sides so large that exact ones take too long.

Each direction is a search of its own. The side that is searched is indexed part by part, so that memory is bounded;
what the index proposes is compared again with the vectors themselves, so scores are exact, and only some neighbours may
be missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from xrep.retrieval.neighbours import Best
from xrep.retrieval.search import Found, Progress, Side

if TYPE_CHECKING:
    import faiss

_PART_BYTES = 1 << 30
"""Of an index that is held at a time."""
_QUERIES = 1 << 18
"""Queries of a unit of work."""
_BLOCK = 1 << 14
"""Rows that are read at a time."""
_TRAINING_ROWS_A_CELL = 48
_MOST_CELLS = 4096
_REFINED = 8
"""With product quantisation, as many times k neighbours are proposed."""


@dataclass(frozen=True, kw_only=True)
class IvfOptions:
    probes: int = 32
    """Cells that are searched for each query; more find more, and take longer."""
    quantized: bool = False
    """Product quantisation: 4 bits for every 2 dimensions instead of 16 bits for each, and faster scans."""


def search_ivf(x: Side, y: Side, found: Found, options: IvfOptions, *, progress: Progress | None = None) -> None:
    """Neighbours in both directions, one after the other; a sentence with fewer than k has index -1 and -inf.

    Args:
        found: what an earlier run found; units that it has are passed over.
    """
    units = list(_units(x, y, found, options))
    index, indexed = None, None
    for number, (queries, side, best, part, block) in enumerate(units):
        if number < found.done:
            continue
        if indexed != (side, part):
            index = None  # not two at a time
            index, indexed = _build(side, *part, options), (side, part)
        assert index is not None
        _search(index, queries, side, best, part[0], block, options)
        found.step(len(units))
        if progress is not None:
            progress(number + 1, len(units))


_Unit = tuple[Side, Side, Best, tuple[int, int], tuple[int, int]]


def _units(x: Side, y: Side, found: Found, options: IvfOptions) -> Iterator[_Unit]:
    """(queries, searched side, best, part of the searched side, block of queries)."""
    for queries, side, best in ((x, y, found.xy), (y, x, found.yx)):
        width = side.vectors.size // 4 if options.quantized else 2 * side.vectors.size
        parts = math.ceil(len(side) * (width + 8) / _PART_BYTES)
        for part in side.blocks(math.ceil(len(side) / parts)):
            for block in queries.blocks(_QUERIES):
                yield queries, side, best, part, block


def _build(side: Side, start: int, stop: int, options: IvfOptions) -> faiss.IndexIVF:
    """An index of some rows. Its cells are learnt from rows drawn with a fixed seed: every run has the same."""
    import faiss

    count = stop - start
    cells = max(1, min(_MOST_CELLS, int(4 * math.sqrt(count)), count // _TRAINING_ROWS_A_CELL))
    size = side.vectors.size
    quantizer = faiss.IndexFlatIP(size)
    if options.quantized and size % 2 == 0 and count >= 256:
        index = faiss.IndexIVFPQFastScan(quantizer, size, cells, size // 2, 4, faiss.METRIC_INNER_PRODUCT)
    else:
        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexIVFScalarQuantizer(quantizer, size, cells, kind, faiss.METRIC_INNER_PRODUCT, False)
    drawn = np.random.default_rng(0).permutation(count)[: cells * _TRAINING_ROWS_A_CELL]
    index.cp.seed, index.cp.min_points_per_centroid = 1234, 1
    index.train(side.vectors.read(side.rows[start + np.sort(drawn)]))
    for first in range(start, stop, _BLOCK):
        index.add(side.read(first, min(first + _BLOCK, stop)))
    index.nprobe = min(options.probes, cells)
    return index


def _search(
    index: faiss.IndexIVF,
    queries: Side,
    side: Side,
    best: Best,
    first: int,
    block: tuple[int, int],
    options: IvfOptions,
) -> None:
    k = best.index.size(1)
    wanted = min(index.ntotal, k * _REFINED if options.quantized else k)
    for start in range(*block, _BLOCK):
        stop = min(start + _BLOCK, block[1])
        x_BD = queries.read(start, stop)
        _, proposed_BP = index.search(x_BD, wanted)
        absent_BP = torch.from_numpy(proposed_BP < 0)
        proposed_BP = np.where(proposed_BP < 0, 0, proposed_BP) + first
        similarity_BP = _compare(torch.from_numpy(x_BD), side, proposed_BP).masked_fill_(absent_BP, -torch.inf)
        index_BP = torch.from_numpy(proposed_BP).masked_fill_(absent_BP, -1)
        index_BP, order = index_BP.sort(dim=1)  # of equal ones the lowest stays
        best.merge(slice(start, stop), similarity_BP.gather(1, order), index_BP)


def _compare(x_BD: torch.Tensor, side: Side, rows_BP: np.ndarray) -> torch.Tensor:
    """Inner products of each query with the rows proposed to it, [B, P]."""
    products = []
    step = max(1, _BLOCK // rows_BP.shape[1])
    for start in range(0, len(rows_BP), step):
        some = rows_BP[start : start + step]
        distinct, place = np.unique(some, return_inverse=True)
        y_CD = torch.from_numpy(side.vectors.read(side.rows[distinct]))
        y_BPD = y_CD[torch.from_numpy(place.reshape(some.shape))]
        products.append((y_BPD @ x_BD[start : start + step, :, None]).squeeze(2))
    return torch.cat(products)
