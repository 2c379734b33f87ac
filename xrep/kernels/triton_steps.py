"""The work on one block of similarities as fused CUDA kernels. ``chunked_steps`` documents the functions.

The blocks are larger than there: a kernel launch costs some microseconds, and the scores of a block fit the L2 cache of
a data-centre GPU.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from xrep.kernels import triton_kernels
from xrep.kernels.blocks import Pairs, PairStatistics

_kernels: Any = triton_kernels  # a launch takes options that a kernel does not declare, such as num_warps

_ABSENT = (None,) * 4

TILE = (1024, 8192)

KEPT_PAIRS = 2**28


def tile(columns: int, hard: bool) -> tuple[int, int]:
    return TILE


def collect(similarities: Tensor, pairs: Pairs, statistics: PairStatistics) -> None:
    rows, columns = similarities.shape
    shared, hardness, flags = _arguments(similarities, pairs)
    _kernels.collect_rows[(rows,)](
        *shared,
        *hardness,
        *(*statistics.rows, *_ABSENT)[:5],
        *(rows, columns),
        **flags,
        HARD=pairs.hard is not None,
        BLOCK_R=1,
        BLOCK_C=2048,
        num_warps=8,
    )
    if statistics.columns:
        _kernels.collect_columns[(triton.cdiv(columns, 32),)](
            *shared, *statistics.columns, *(rows, columns), **flags, BLOCK_R=128, BLOCK_C=32, num_warps=4
        )


def differentiate(similarities: Tensor, pairs: Pairs, gradient: PairStatistics, out: Tensor) -> None:
    rows, columns = similarities.shape
    shared, hardness, flags = _arguments(similarities, pairs)
    block_rows, block_columns = 16, 128  # with hard negatives, twice the rows would spill registers
    tiles = (int(triton.cdiv(rows, block_rows)), int(triton.cdiv(columns, block_columns)))
    hard = pairs.hard is not None
    of_rows = similarities.new_empty(2 if hard else 0, rows, tiles[1])
    of_columns = similarities.new_empty(tiles[0] if hard else 0, columns)
    _kernels.differentiate_tile[tiles](
        out,
        *shared,
        *hardness,
        *gradient.rows[:2],
        *(_ABSENT[:2] if hard or not gradient.columns else gradient.columns),
        *(of_rows, of_columns, rows, columns),
        **flags,
        HARD=hard,
        BOTH=not hard and len(gradient.columns) > 0,
        BLOCK_R=block_rows,
        BLOCK_C=block_columns,
        num_warps=4,
    )
    if hard:
        summed = of_rows.sum(2)
        gradient.rows[2].add_(summed[1])
        gradient.rows[3].add_(summed[0])
        gradient.columns[0].add_(of_columns.sum(0))


def _arguments(similarities: Tensor, pairs: Pairs) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, int | bool]]:
    """Return arguments of the kernels for pairs: those that all take, those of hard negatives, and constants."""
    ids, excluded = pairs.ids or _ABSENT[:2], pairs.excluded
    sizes = {"LISTED": excluded.size(1), "IDS": 0 if ids[0] is None else ids[0].size(1)}
    shared = similarities, similarities.stride(0), pairs.scale, excluded, *ids
    return shared, pairs.hard or _ABSENT, {**sizes, "SCALED": pairs.scale is not None}
