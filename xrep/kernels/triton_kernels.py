"""Fused CUDA kernels for the work on a block of logits between two matrix products, as in ``softmax``.

The products themselves are computed by cuBLAS. A flash-style kernel would have to hold an output row as wide as the
vectors: 64 queries of 768 dimensions in float32 fill the registers of a multiprocessor. If it were split over the
dimensions, the scores would have to be computed again for each part, three or four times for 768-1024 dimensions, which
alone is twice the work of the two products. So the scores of a block are written to memory, and one of these kernels
reads them and writes the weights for the next product. Blocks are much larger than those of CPUs, because the
host of an H200 took 40 to 100 microseconds for a launch, and the arithmetic of a block that fits the L2 cache less.
"""

from __future__ import annotations

from typing import Any

# Triton unrolls static_range and decides branches over constexpr when it compiles a kernel. A type checker reads the
# code as Python: it finds no iterator in the first and unbound names behind the second.
# pyright: reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from xrep.kernels.softmax import Couple, QueueSoftmax

VOCABULARY_LOGITS = 2**27
PADDING = 8
"""Logits of a vocabulary in half precision are filled up to a multiple of this, because cuBLAS is slower for rows of
another length: the products of 8,192 tokens and 250,002 words took 44 ms on an H200, and 14 ms on an H100 in blocks of
8,192 words."""

# Kernels can read these globals only if they are constexpr.
NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def negative_logits(
    scores, scale, query_ids, block_ids, limit, judged, row, stride, judged_stride, column, columns,
    IDS: tl.constexpr, LIMITED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Return some logits of one query, -inf for those that do not count."""
    inside = column < columns
    logits = tl.load(scores + row * stride + column, mask=inside, other=NOTHING)
    if LIMITED:
        similar = tl.load(judged + row * judged_stride + column, mask=inside, other=NOTHING)
        logits = tl.where(similar > tl.load(limit + row), NOTHING, logits)
    if SCALED:
        logits = logits * tl.load(scale)
    for i in tl.static_range(IDS):
        mine = tl.load(query_ids + row * IDS + i)
        theirs = tl.load(block_ids + column * IDS + i, mask=inside, other=0)
        logits = tl.where(mine == theirs, NOTHING, logits)
    return tl.where(inside, logits, NOTHING)


@triton.jit
def absorb_row(
    scores, weights, stride, weights_stride, scale, maximum, total, hardest, mixture, query_ids, block_ids,
    limit, judged, judged_stride, columns, dimension,
    IDS: tl.constexpr, LIMITED: tl.constexpr, SCALED: tl.constexpr, MIXED: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Turn the scores of one query into weights, and update its running softmax and mixture."""
    row = tl.program_id(0).to(tl.int64)
    before = tl.load(maximum + row)
    raised = before
    amount = before * 0.0
    highest = tl.load(hardest + row)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logits = negative_logits(
            scores, scale, query_ids, block_ids, limit, judged, row, stride, judged_stride, column, columns,
            IDS, LIMITED, SCALED,
        )  # fmt: skip
        largest = tl.max(logits, 0)
        highest = tl.maximum(highest, largest)
        largest = tl.maximum(raised, largest)
        amount = amount * tl.exp(raised - largest) + tl.sum(tl.exp(logits - largest), 0)
        raised = largest
    shrink = tl.exp(before - raised)
    tl.store(total + row, tl.load(total + row) * shrink + amount)
    tl.store(maximum + row, raised)
    tl.store(hardest + row, highest)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        logits = negative_logits(
            scores, scale, query_ids, block_ids, limit, judged, row, stride, judged_stride, column, columns,
            IDS, LIMITED, SCALED,
        )  # fmt: skip
        tl.store(weights + row * weights_stride + column, tl.exp(logits - raised), mask=column < columns)
    if MIXED:
        for start in range(0, dimension, BLOCK_D):
            place = start + tl.arange(0, BLOCK_D)
            values = tl.load(mixture + row * dimension + place, mask=place < dimension, other=0.0)
            tl.store(mixture + row * dimension + place, values * shrink, mask=place < dimension)


@triton.jit
def vocabulary_row(
    logits, gradient, target, ignored, loss, nll, correct, stride, columns, smoothing,
    WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute loss, negative log-likelihood and correctness of one token, and the gradient towards its logits."""
    row = tl.program_id(0).to(tl.int64)
    skipped = tl.load(ignored + row) != 0
    gold = tl.where(skipped, 0, tl.load(target + row))
    mine = logits + row * stride
    at_target = tl.load(mine + gold)
    highest = at_target
    amount = at_target * 0.0
    together = at_target * 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(mine + column, mask=column < columns, other=NOTHING)
        raised = tl.maximum(highest, tl.max(values, 0))
        amount = amount * tl.exp(highest - raised) + tl.sum(tl.exp(values - raised), 0)
        together += tl.sum(tl.where(column < columns, values, 0.0), 0)
        highest = raised
    unlikely = (highest - at_target) + tl.log(amount)
    smooth = unlikely + tl.where(smoothing > 0, smoothing * (at_target - together / columns), 0.0)
    tl.store(nll + row, tl.where(skipped, 0.0, unlikely))
    tl.store(loss + row, tl.where(skipped, 0.0, smooth))
    tl.store(correct + row, (at_target == highest) & (skipped == 0))
    if WANTED:
        for start in range(0, stride, BLOCK):
            column = start + tl.arange(0, BLOCK)
            values = tl.load(mine + column, mask=column < columns, other=NOTHING)
            share = tl.exp(values - highest) / amount - smoothing / columns
            share = tl.where(column == gold, share - (1 - smoothing), share)
            share = tl.where(skipped | (column >= columns), 0.0, share)
            tl.store(gradient + row * stride + column, share, mask=column < stride)


# -- launches: ``softmax`` documents these functions --------------------------------------------------------------


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block, whose scores take 64 MB (more if there are many queries)."""
    return max(8192, (1 << 24) // max(1, queries) // 1024 * 1024)


def _launch(kernel: Any, programs: int) -> Any:
    """Return what starts so many programs. It takes options that a kernel does not declare, such as num_warps."""
    return kernel[(programs,)]


def absorb(scores: Tensor, state: QueueSoftmax, ids: Couple, judged: Tensor | None = None) -> Tensor:
    count, columns = scores.shape
    weights = scores if state.operand == scores.dtype else torch.empty_like(scores, dtype=state.operand)
    queries, block = (ids[0].contiguous(), ids[1].contiguous()) if ids is not None else (None, None)
    limited = state.limit is not None
    judged = scores if limited and judged is None else judged
    _launch(absorb_row, count)(
        *(scores, weights, scores.stride(0), weights.stride(0)),
        *(state.scale, state.maximum, state.total, state.hardest, state.mixture, queries, block),
        *(state.limit, judged, 0 if judged is None else judged.stride(0)),
        *(columns, 0 if state.mixture is None else state.mixture.size(1)),
        IDS=0 if queries is None else queries.size(1),
        LIMITED=limited,
        SCALED=state.scale is not None,
        MIXED=state.mixture is not None,
        BLOCK=min(8192, triton.next_power_of_2(columns)),
        BLOCK_D=1024,
        num_warps=16 if columns > 4096 else 8,
    )
    return weights


def vocabulary_softmax(
    logits: Tensor, target: Tensor, smoothing: float, ignored: Tensor, operand: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss, nll, correct = logits.new_empty(len(logits)), logits.new_empty(len(logits)), torch.empty_like(ignored)
    in_place = operand is None or operand == logits.dtype
    # Rows of logits may be followed by padding. Those of the gradient are, too, and it is 0 there.
    gradient = logits if in_place else torch.empty(len(logits), logits.stride(0), dtype=operand, device=logits.device)
    _launch(vocabulary_row, len(logits))(
        *(logits, gradient, target.contiguous(), ignored.contiguous(), loss, nll, correct),
        *(logits.stride(0), logits.size(1), smoothing),
        WANTED=operand is not None,
        BLOCK=4096,
        num_warps=8,
    )
    return loss, nll, correct, gradient
