"""The work on one block of similarities as fused CUDA kernels. ``chunked_steps`` documents the functions.

The blocks are larger than there: a kernel launch costs some microseconds, and the scores of a block fit the L2 cache of
a data-centre GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from xrep.kernels import triton_kernels
from xrep.kernels.blocks import PairGradient, Pairs, PairStatistics, QueueSoftmax
from xrep.kernels.precision import accumulation_dtype

_kernels: Any = triton_kernels  # a launch takes options that a kernel does not declare, such as num_warps

QUEUE_ROWS = 8192
"""Rows of the queue in one block. The scores of one query are held in the registers of one program."""

TILE = (1024, 8192)

KEPT_PAIRS = 2**28

VOCABULARY_LOGITS = 2**27


def operand_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which products read such a tensor.

    GPUs multiply half precision into float32 results; CPUs (interpreted kernels) cannot.
    """
    return tensor.dtype if tensor.is_cuda else accumulation_dtype(tensor)


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    count, columns = scores.shape
    if state.operand == scores.dtype:
        weights = scores
    else:  # reuse the memory of the scores: half of it is enough, and it is in the cache
        weights = scores.view(state.operand)[:, :columns]
    queries, block = (ids[0].contiguous(), ids[1].contiguous()) if ids is not None else (None, None)
    mixture = state.mixture
    _kernels.absorb_row[(count,)](
        scores,
        weights,
        scores.stride(0),
        weights.stride(0),
        state.scale,
        state.maximum,
        state.total,
        state.hardest,
        mixture,
        queries,
        block,
        columns,
        0 if mixture is None else mixture.size(1),
        IDS=0 if queries is None else queries.size(1),
        SCALED=state.scale is not None,
        MIXED=mixture is not None,
        BLOCK=triton.next_power_of_2(columns),
        BLOCK_D=1024,
        num_warps=8,
    )
    return weights


def collect(similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, found: PairStatistics) -> None:
    hard = pairs.exponent is not None
    shared = _masks(pairs, rows, columns)
    of_rows = (
        None if found.row_best is None else found.row_best[rows],
        None if found.interpolation is None else found.interpolation[rows],
        None if found.compared is None else found.compared[rows],
    )
    sizes = (*similarities.shape, columns.start)
    flags = _flags(pairs)
    _kernels.collect_rows[(similarities.size(0),)](
        similarities,
        similarities.stride(0),
        *shared,
        *_hardness(pairs, rows, columns),
        found.row_maximum[rows],
        found.row_total[rows],
        *of_rows,
        *sizes,
        **flags,
        HARD=hard,
        BLOCK_R=1,
        BLOCK_C=2048,
        num_warps=8,
    )
    if found.column_maximum is None or found.column_total is None:
        return
    _kernels.collect_columns[(triton.cdiv(similarities.size(1), 32),)](
        similarities,
        similarities.stride(0),
        *shared,
        found.column_maximum[columns],
        found.column_total[columns],
        *sizes,
        **flags,
        BLOCK_R=128,
        BLOCK_C=32,
        num_warps=4,
    )


def differentiate(
    similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, wanted: PairGradient, out: Tensor
) -> None:
    hard, both = pairs.exponent is not None, wanted.column_offset is not None
    count, width = similarities.shape
    block_rows, block_columns = 16, 128  # with hard negatives, twice the rows would spill registers
    tiles = (int(triton.cdiv(count, block_rows)), int(triton.cdiv(width, block_columns)))
    of_row = similarities.new_empty(2, count, tiles[1]) if hard else None
    of_column = similarities.new_empty(tiles[0], width) if hard else None
    _kernels.differentiate_tile[tiles](
        similarities,
        similarities.stride(0),
        out,
        *_masks(pairs, rows, columns),
        *_hardness(pairs, rows, columns),
        wanted.row_offset[rows],
        wanted.row_weight[rows],
        None if wanted.column_offset is None else wanted.column_offset[columns],
        None if wanted.column_weight is None else wanted.column_weight[columns],
        of_row,
        of_column,
        count,
        width,
        columns.start,
        **_flags(pairs),
        HARD=hard,
        BOTH=both,
        BLOCK_R=block_rows,
        BLOCK_C=block_columns,
        num_warps=4,
    )
    if of_row is not None and of_column is not None:
        assert wanted.of_scale is not None
        assert wanted.of_row_squares is not None and wanted.of_column_squares is not None
        of_scale, of_squares = of_row.sum(2)
        wanted.of_scale[rows] += of_scale
        wanted.of_row_squares[rows] += of_squares
        wanted.of_column_squares[columns] += of_column.sum(0)


def vocabulary_softmax(
    logits: Tensor, target: Tensor, smoothing: float, ignored: Tensor, operand: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss, nll, correct = logits.new_empty(len(logits)), logits.new_empty(len(logits)), torch.empty_like(ignored)
    in_place = operand is None or operand == logits.dtype
    gradient = logits if in_place else torch.empty_like(logits, dtype=operand)
    _kernels.vocabulary_row[(len(logits),)](
        logits,
        gradient,
        target,
        ignored,
        loss,
        nll,
        correct,
        logits.size(1),
        smoothing,
        WANTED=operand is not None,
        BLOCK=4096,
        num_warps=8,
    )
    return loss, nll, correct, gradient


def _masks(pairs: Pairs, rows: slice, columns: slice) -> tuple[Tensor | None, ...]:
    """Return the scale, excluded columns, and ids of rows and columns, as the kernels take them."""
    row_ids = None if pairs.row_ids is None else pairs.row_ids[rows].contiguous()
    column_ids = None if pairs.column_ids is None else pairs.column_ids[columns].contiguous()
    return pairs.scale, pairs.excluded[rows].contiguous(), row_ids, column_ids


def _hardness(pairs: Pairs, rows: slice, columns: slice) -> tuple[Tensor | None, ...]:
    if pairs.exponent is None:
        return None, None, None, None
    assert pairs.row_squares is not None and pairs.column_squares is not None and pairs.row_distance is not None
    return pairs.row_squares[rows], pairs.column_squares[columns], pairs.row_distance[rows], pairs.exponent


def _flags(pairs: Pairs) -> dict[str, int | bool]:
    ids = 0 if pairs.row_ids is None else pairs.row_ids.size(1)
    return {"LISTED": pairs.excluded.size(1), "IDS": ids, "SCALED": pairs.scale is not None}
