"""Fused CUDA kernels for the work on a block of logits between two matrix products, as in ``softmax``.

The products themselves are computed by cuBLAS. A flash-style kernel would have to hold an output row as wide as the
vectors: 64 queries of 768 dimensions in float32 fill the registers of a multiprocessor. If it were split over the
dimensions, the scores would have to be computed again for each part, three or four times for 768-1024 dimensions, which
alone is twice the work of the two products. So the scores of a block are written to memory, but they stay in the L2
cache: one of these kernels reads them there once and writes the weights for the next product. Blocks are larger than
those of CPUs, because a launch costs some microseconds.
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

from xrep.kernels.softmax import QueueSoftmax

VOCABULARY_LOGITS = 2**27

# Kernels can read these globals only if they are constexpr.
NOTHING = tl.constexpr(float("-inf"))
SMALLEST_SQUARE = tl.constexpr(1e-16)


@triton.jit
def finite(maximum):
    """Replace -inf by 0, because -inf must not be subtracted from itself."""
    return tl.where(maximum == NOTHING, 0.0, maximum)


@triton.jit
def power(base, exponent):
    """Return base ** exponent for base in [0, 1], exponent >= 0; 0 ** 0 is 1."""
    positive = tl.where(base > 0, base, 1.0)
    zero = tl.where(exponent == 0, 1.0, 0.0)
    return tl.where(base > 0, tl.exp2(exponent * tl.log2(positive)), zero)


@triton.jit
def absorb_row(
    scores, weights, stride, weights_stride, scale, maximum, total, hardest, mixture, query_ids, block_ids,
    columns, dimension,
    IDS: tl.constexpr, SCALED: tl.constexpr, MIXED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Turn the scores of one query into weights, and update its running softmax and mixture.

    The weights may lie in the memory of the scores, because all scores are read before the maximum is known.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    logits = tl.load(scores + row * stride + column, mask=inside, other=NOTHING)
    if SCALED:
        logits = logits * tl.load(scale)
    for i in tl.static_range(IDS):
        mine = tl.load(query_ids + row * IDS + i)
        theirs = tl.load(block_ids + column * IDS + i, mask=inside, other=0)
        logits = tl.where(mine == theirs, NOTHING, logits)
    logits = tl.where(inside, logits, NOTHING)
    highest = tl.max(logits, 0)
    before = tl.load(maximum + row)
    raised = tl.maximum(before, highest)
    shrink = tl.exp(before - raised)
    weight = tl.exp(logits - raised)
    tl.store(total + row, tl.load(total + row) * shrink + tl.sum(weight, 0))
    tl.store(maximum + row, raised)
    tl.store(hardest + row, tl.maximum(tl.load(hardest + row), highest))
    tl.store(weights + row * weights_stride + column, weight, mask=inside)
    if MIXED:
        for start in range(0, dimension, BLOCK_D):
            place = start + tl.arange(0, BLOCK_D)
            values = tl.load(mixture + row * dimension + place, mask=place < dimension, other=0.0)
            tl.store(mixture + row * dimension + place, values * shrink, mask=place < dimension)


@triton.jit
def compared_pairs(
    excluded, row_ids, column_ids, row, column, row_inside, column_inside, LISTED: tl.constexpr, IDS: tl.constexpr
):  # fmt: skip
    """Return which pairs of the tile are compared, [r, c]."""
    result = row_inside[:, None] & column_inside[None, :]
    for i in tl.static_range(LISTED):
        listed = tl.load(excluded + row * LISTED + i, mask=row_inside, other=-1)
        result = result & (listed[:, None] != column[None, :])
    for i in tl.static_range(IDS):
        mine = tl.load(row_ids + row * IDS + i, mask=row_inside, other=0)
        theirs = tl.load(column_ids + column * IDS + i, mask=column_inside, other=0)
        result = result & (mine[:, None] != theirs[None, :])
    return result


@triton.jit
def harden(dot, a, b, to_positive, exponent):
    """Return cos(q, k̂), λ and |k̂|² from q·k, |q|², |k|² and d⁺² (HiCTL, equations 5 and 6)."""
    distance = tl.maximum(a + b - 2 * dot, 0.0)
    ratio = to_positive / tl.where(distance > 0, distance, 1.0)
    interpolation = tl.where(distance > to_positive, power(tl.minimum(ratio, 1.0), exponent / 2), 1.0)
    rest = 1 - interpolation
    square = rest * rest * a + interpolation * interpolation * b + 2 * interpolation * rest * dot
    square = tl.maximum(square, SMALLEST_SQUARE)
    cosine = (rest * a + interpolation * dot) * tl.rsqrt(a * square)
    return cosine, interpolation, square


@triton.jit
def updated(highest, amount, logits, AXIS: tl.constexpr):
    """Return a running maximum and total after some logits along the axis."""
    raised = tl.maximum(highest, tl.max(logits, AXIS))
    safe = finite(raised)
    return raised, amount * tl.exp(highest - safe) + tl.sum(tl.exp(logits - tl.expand_dims(safe, AXIS)), AXIS)


@triton.jit
def collect_rows(
    similarities, stride, scale, excluded, row_ids, column_ids, row_squares, column_squares, row_distance, exponent,
    maximum, total, best, interpolated, compared, rows, columns,
    LISTED: tl.constexpr, IDS: tl.constexpr, SCALED: tl.constexpr, HARD: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Update the running maximum and total of some rows with all columns of a tile."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_inside = row < rows
    highest = tl.load(maximum + row, mask=row_inside, other=NOTHING)
    amount = tl.load(total + row, mask=row_inside, other=0.0)
    factor = tl.load(scale) if SCALED else 1.0
    if HARD:
        power_of = tl.load(exponent)
        a = tl.load(row_squares + row, mask=row_inside, other=1.0)[:, None]
        to_positive = tl.load(row_distance + row, mask=row_inside, other=1.0)[:, None]
        hardest = tl.load(best + row, mask=row_inside, other=NOTHING)
        mixed = tl.load(interpolated + row, mask=row_inside, other=0.0)
        count = tl.load(compared + row, mask=row_inside, other=0.0)
    for start in range(0, columns, BLOCK_C):
        column = start + tl.arange(0, BLOCK_C)
        column_inside = column < columns
        inside = row_inside[:, None] & column_inside[None, :]
        counted = compared_pairs(excluded, row_ids, column_ids, row, column, row_inside, column_inside, LISTED, IDS)
        logits = tl.load(similarities + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
        if HARD:
            b = tl.load(column_squares + column, mask=column_inside, other=1.0)[None, :]
            plain = logits * tl.rsqrt(a * b) * factor
            hardest = tl.maximum(hardest, tl.max(tl.where(counted, plain, NOTHING), 1))
            logits, interpolation, _ = harden(logits, a, b, to_positive, power_of)
            mixed += tl.sum(tl.where(counted, interpolation, 0.0), 1)
            count += tl.sum(tl.where(counted, 1.0, 0.0), 1)
        logits = tl.where(counted, logits * factor, NOTHING)
        highest, amount = updated(highest, amount, logits, 1)
    tl.store(maximum + row, highest, mask=row_inside)
    tl.store(total + row, amount, mask=row_inside)
    if HARD:
        tl.store(best + row, hardest, mask=row_inside)
        tl.store(interpolated + row, mixed, mask=row_inside)
        tl.store(compared + row, count, mask=row_inside)


@triton.jit
def collect_columns(
    similarities, stride, scale, excluded, row_ids, column_ids, maximum, total, rows, columns,
    LISTED: tl.constexpr, IDS: tl.constexpr, SCALED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Update the running maximum and total of some columns with all rows of a tile."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    column_inside = column < columns
    highest = tl.load(maximum + column, mask=column_inside, other=NOTHING)
    amount = tl.load(total + column, mask=column_inside, other=0.0)
    factor = tl.load(scale) if SCALED else 1.0
    for start in range(0, rows, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R).to(tl.int64)
        row_inside = row < rows
        inside = row_inside[:, None] & column_inside[None, :]
        counted = compared_pairs(excluded, row_ids, column_ids, row, column, row_inside, column_inside, LISTED, IDS)
        logits = tl.load(similarities + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
        logits = tl.where(counted, logits * factor, NOTHING)
        highest, amount = updated(highest, amount, logits, 0)
    tl.store(maximum + column, highest, mask=column_inside)
    tl.store(total + column, amount, mask=column_inside)


@triton.jit
def differentiate_tile(
    weights, similarities, stride, scale, excluded, row_ids, column_ids, row_squares, column_squares, row_distance,
    exponent, row_offset, row_weight, column_offset, column_weight, of_row, of_column, rows, columns,
    LISTED: tl.constexpr, IDS: tl.constexpr, SCALED: tl.constexpr, HARD: tl.constexpr, BOTH: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Compute the gradient towards the similarities of a small tile.

    With hard negatives, ``of_row`` [2, R, tiles] and ``of_column`` [tiles, C] receive this tile's sums towards scale,
    |q|² and |k|². There are no atomic operations, so runs are reproducible.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row_inside = row < rows
    column_inside = column < columns
    inside = row_inside[:, None] & column_inside[None, :]
    counted = compared_pairs(excluded, row_ids, column_ids, row, column, row_inside, column_inside, LISTED, IDS)
    dot = tl.load(similarities + row[:, None] * stride + column[None, :], mask=inside, other=0.0)
    factor = tl.load(scale) if SCALED else 1.0
    offset = tl.load(row_offset + row, mask=row_inside, other=0.0)[:, None]
    amount = tl.load(row_weight + row, mask=row_inside, other=0.0)[:, None]
    if HARD:
        a = tl.load(row_squares + row, mask=row_inside, other=1.0)[:, None]
        b = tl.load(column_squares + column, mask=column_inside, other=1.0)[None, :]
        to_positive = tl.load(row_distance + row, mask=row_inside, other=1.0)[:, None]
        cosine, interpolation, square = harden(dot, a, b, to_positive, tl.load(exponent))
        weight = tl.where(counted, tl.exp(cosine * factor - offset) * amount, 0.0)
        rest = 1 - interpolation
        inverse = tl.rsqrt(a * square)
        per_square = cosine / square
        of_a = rest * inverse - cosine / (2 * a) - per_square * rest * rest / 2
        tiles = tl.num_programs(1)
        place = row * tiles + tl.program_id(1)
        tl.store(of_row + place, tl.sum(weight * cosine, 1), mask=row_inside)
        tl.store(of_row + rows * tiles + place, tl.sum(weight * of_a, 1), mask=row_inside)
        of_b = tl.sum(weight * per_square * interpolation * interpolation, 0) / 2
        tl.store(of_column + tl.program_id(0) * columns + column, -of_b, mask=column_inside)
        weight = weight * interpolation * (inverse - per_square * rest)
    else:
        logits = dot * factor
        weight = tl.exp(logits - offset) * amount
        if BOTH:
            offset = tl.load(column_offset + column, mask=column_inside, other=0.0)[None, :]
            amount = tl.load(column_weight + column, mask=column_inside, other=0.0)[None, :]
            weight += tl.exp(logits - offset) * amount
        weight = tl.where(counted, weight, 0.0)
    tl.store(weights + row[:, None] * columns + column[None, :], weight, mask=inside)


@triton.jit
def vocabulary_row(
    logits, gradient, target, ignored, loss, nll, correct, columns, smoothing,
    WANTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute loss, negative log-likelihood and correctness of one token, and the gradient towards its logits."""
    row = tl.program_id(0).to(tl.int64)
    skipped = tl.load(ignored + row) != 0
    gold = tl.where(skipped, 0, tl.load(target + row))
    mine = logits + row * columns
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
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            values = tl.load(mine + column, mask=column < columns, other=NOTHING)
            share = tl.exp(values - highest) / amount - smoothing / columns
            share = tl.where(column == gold, share - (1 - smoothing), share)
            tl.store(gradient + row * columns + column, tl.where(skipped, 0.0, share), mask=column < columns)


# -- launches: ``softmax`` documents these functions --------------------------------------------------------------


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block: fewer for many queries, whose scores would not fit the L2 cache.

    The scores of one query are held in the registers of one program.
    """
    return 16384 if queries <= 512 else 8192


def _launch(kernel: Any, programs: int) -> Any:
    """Return what starts so many programs. It takes options that a kernel does not declare, such as num_warps."""
    return kernel[(programs,)]


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    count, columns = scores.shape
    if state.operand == scores.dtype:
        weights = scores
    else:  # reuse the memory of the scores: half of it is enough, and it is in the cache
        weights = scores.view(state.operand)[:, :columns]
    queries, block = (ids[0].contiguous(), ids[1].contiguous()) if ids is not None else (None, None)
    _launch(absorb_row, count)(
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
    _launch(vocabulary_row, len(logits))(
        *(logits, gradient, target.contiguous(), ignored.contiguous(), loss, nll, correct, logits.size(1), smoothing),
        WANTED=operand is not None,
        BLOCK=4096,
        num_warps=8,
    )
    return loss, nll, correct, gradient
