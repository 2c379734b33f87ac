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
from xrep.kernels.blocks import QueueSoftmax

_kernels: Any = triton_kernels  # a launch takes options that a kernel does not declare, such as num_warps

QUEUE_ROWS = 16384
"""Rows of the queue in one block. The scores of one query are held in the registers of one program."""

VOCABULARY_LOGITS = 2**27


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block: fewer for many queries, whose scores would not fit the L2 cache."""
    return QUEUE_ROWS if queries <= 512 else QUEUE_ROWS // 2


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    count, columns = scores.shape
    if state.operand == scores.dtype:
        weights = scores
    else:  # reuse the memory of the scores: half of it is enough, and it is in the cache
        weights = scores.view(state.operand)[:, :columns]
    queries, block = (ids[0].contiguous(), ids[1].contiguous()) if ids is not None else (None, None)
    _kernels.absorb_row[(count,)](
        *(scores, weights, scores.stride(0), weights.stride(0)),
        *(state.scale, state.maximum, state.total, state.hardest, state.mixture, queries, block),
        *(columns, 0 if state.mixture is None else state.mixture.size(1)),
        IDS=0 if queries is None else queries.size(1),
        SCALED=state.scale is not None,
        MIXED=state.mixture is not None,
        BLOCK=triton.next_power_of_2(columns),
        BLOCK_D=1024,
        num_warps=8 if columns <= 8192 else 16,
    )
    return weights


def vocabulary_softmax(
    logits: Tensor, target: Tensor, smoothing: float, ignored: Tensor, operand: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss, nll, correct = logits.new_empty(len(logits)), logits.new_empty(len(logits)), torch.empty_like(ignored)
    in_place = operand is None or operand == logits.dtype
    gradient = logits if in_place else torch.empty_like(logits, dtype=operand)
    _kernels.vocabulary_row[(len(logits),)](
        *(logits, gradient, target.contiguous(), ignored.contiguous(), loss, nll, correct, logits.size(1), smoothing),
        WANTED=operand is not None,
        BLOCK=4096,
        num_warps=8,
    )
    return loss, nll, correct, gradient
