"""Fused CUDA kernels for what follows each sublayer of a transformer: dropout, residual connection, normalisation."""

from __future__ import annotations

# Branches over constexpr are decided when a kernel is compiled, but a type checker reads the code as Python.
# pyright: reportGeneralTypeIssues=false, reportPossiblyUnboundVariable=false
import triton
import triton.language as tl


@triton.jit
def kept_by_dropout(seed, row, probability, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """Draw which elements of some rows dropout keeps, bool [r, d], from a generator of each row."""
    quarter = tl.arange(0, BLOCK_D // 4)
    a, b, c, d = tl.randint4x(seed + row[:, None], quarter[None, :])
    drawn = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), [BLOCK_R, BLOCK_D])
    least = tl.full([1, 1], 4294967296.0, tl.float32) * probability
    return drawn.to(tl.uint32, bitcast=True) >= least.to(tl.uint32)


@triton.jit(do_not_specialize=["seed"])
def normalise_rows(
    x, change, weight, bias, total, normed, mean, scale, seed, probability, epsilon, rows, columns,
    DROPPED: tl.constexpr, KEPT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute x + dropout(change) and its layer normalisation; KEPT: store what the backward pass reads, too."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.arange(0, BLOCK_D)
    row_inside = row < rows
    inside = row_inside[:, None] & (column < columns)[None, :]
    place = row[:, None] * columns + column[None, :]
    added = tl.load(change + place, mask=inside, other=0.0).to(tl.float32)
    if DROPPED:
        kept = kept_by_dropout(seed, row, probability, BLOCK_R, BLOCK_D)
        added = tl.where(kept, added / (1 - probability), 0.0)
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + added
    if KEPT:
        values = values.to(total.dtype.element_ty)
        tl.store(total + place, values, mask=inside)
        values = values.to(tl.float32)
    centre = tl.sum(values, 1) / columns
    centred = tl.where(inside, values - centre[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / columns + epsilon)
    if KEPT:
        tl.store(mean + row, centre, mask=row_inside)
        tl.store(scale + row, factor, mask=row_inside)
    own_weight = tl.load(weight + column, mask=column < columns, other=0.0).to(tl.float32)
    own_bias = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(normed + place, centred * factor[:, None] * own_weight[None, :] + own_bias[None, :], mask=inside)


@triton.jit(do_not_specialize=["seed"])
def differentiate_rows(
    of_normed, of_total, total, weight, mean, scale, of_x, of_change, parts, seed, probability, rows, columns, each,
    DROPPED: tl.constexpr, SUMMED: tl.constexpr, SEPARATE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute the gradients towards x and change of ``each`` rows, and store the sums of those of weight and bias.

    SUMMED: the sum x + dropout(change) has a gradient of its own. SEPARATE: that of ``change`` is another tensor.
    """
    column = tl.arange(0, BLOCK_D)
    column_inside = column < columns
    own_weight = tl.load(weight + column, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    of_weight = tl.zeros([BLOCK_D], tl.float32)
    of_bias = tl.zeros([BLOCK_D], tl.float32)
    first = tl.program_id(0).to(tl.int64) * each
    for start in range(0, each, BLOCK_R):
        row = first + start + tl.arange(0, BLOCK_R)
        row_inside = row < rows
        inside = row_inside[:, None] & column_inside[None, :]
        place = row[:, None] * columns + column[None, :]
        gradient = tl.load(of_normed + place, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(total + place, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + row, mask=row_inside, other=0.0)[:, None]
        factor = tl.load(scale + row, mask=row_inside, other=0.0)[:, None]
        normal = tl.where(inside, (values - centre) * factor, 0.0)
        of_weight += tl.sum(gradient * normal, 0)
        of_bias += tl.sum(gradient, 0)
        gradient = gradient * own_weight
        along = tl.sum(gradient * normal, 1) / columns
        level = tl.sum(gradient, 1) / columns
        gradient = (gradient - level[:, None] - normal * along[:, None]) * factor
        if SUMMED:
            gradient += tl.load(of_total + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_x + place, gradient, mask=inside)
        if DROPPED:
            kept = kept_by_dropout(seed, row, probability, BLOCK_R, BLOCK_D)
            gradient = tl.where(kept, gradient / (1 - probability), 0.0)
        if SEPARATE:
            tl.store(of_change + place, gradient, mask=inside)
    part = parts + tl.program_id(0) * 2 * columns + column
    tl.store(part, of_weight, mask=column_inside)
    tl.store(part + columns, of_bias, mask=column_inside)


@triton.jit
def add_parts(parts, result, count, columns, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Add up the rows of ``parts`` [count, columns]."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    amount = tl.zeros([BLOCK_C], tl.float32)
    for start in range(0, count, BLOCK_P):
        row = start + tl.arange(0, BLOCK_P)
        inside = (row < count)[:, None] & (column < columns)[None, :]
        amount += tl.sum(tl.load(parts + row[:, None] * columns + column[None, :], mask=inside, other=0.0), 0)
    tl.store(result + column, amount, mask=column < columns)
