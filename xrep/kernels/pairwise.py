"""Log-sum-exp over the negatives of every row, and of every column, of a matrix of similarities.

Both sides carry gradient, so the final sums of rows and columns must be known before any gradient can be computed:
there is one sweep over tiles in the forward pass and one in the backward pass. The similarities are kept between the
two if there are few of them, and computed again otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels import reference
from xrep.kernels.blocks import SMALLEST_SQUARE, Hardness, Pairs, PairStatistics
from xrep.kernels.chunked_steps import SMALL, exponentials
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add, operand_dtype

ROUNDINGS = 64
"""Logits that differ by fewer units in the last place may be equal, since they come from different products."""


class Negatives(NamedTuple):
    """Statistics of the negatives with which each positive is compared.

    Attributes:
        rows, columns: [R], [C], log Σ exp(logit - shift) over the negatives; -inf if there are none. ``columns`` is
            empty unless a ``column_shift`` was given. Gradients flow through these two.
        row_best, column_best: [R], [C], the largest logit of a negative minus the shift.
        interpolation: [R], mean λ of the row's negatives, 1 if there are none; empty without hard negatives.
    """

    rows: Tensor
    columns: Tensor
    row_best: Tensor
    column_best: Tensor
    interpolation: Tensor


def negatives(
    rows: Tensor,
    columns: Tensor,
    tau: Tensor,
    *,
    row_shift: Tensor,
    column_shift: Tensor | None = None,
    excluded: Tensor,
    row_ids: Tensor | None = None,
    column_ids: Tensor | None = None,
    row_positive: Tensor | None = None,
    exponent: Tensor | None = None,
) -> Negatives:
    """Compare all rows with all columns except the excluded ones.

    Args:
        rows, columns: [R, D], [C, D].
        tau: 0-d temperature, of the accumulation type.
        row_shift, column_shift: [R], [C], subtracted from the log-sum-exp. Without ``column_shift``, columns are not
            normalised.
        excluded: int64 [R, M], columns that are not negatives of a row.
        row_ids, column_ids: int64 [R, I], [C, I], both or neither. Rows and columns that are equal in any of the I are
            not negatives of each other.
        row_positive, exponent: [R, D] and 0-d, both or neither. If given, cosines with negatives made harder (HiCTL,
            eq. 5 and 6) are compared instead of dot products, and only rows are normalised.
    """
    ids = [] if row_ids is None or column_ids is None else [row_ids, column_ids]
    hard = [] if row_positive is None or exponent is None else [row_positive, exponent]
    if path_for(rows.device) == "reference":
        return _reference(rows, columns, tau, row_shift, column_shift, excluded, ids, hard)
    if hard:
        hard = _hardness(rows, columns, *hard)
    differentiable = torch.is_grad_enabled() and (rows.requires_grad or columns.requires_grad or tau.requires_grad)
    keep = differentiable and len(rows) * len(columns) <= steps_for(rows.device).KEPT_PAIRS
    # If the two sides have different types, both are converted to the wider type in which sums are kept.
    operand = operand_dtype(rows) if rows.dtype == columns.dtype else tau.dtype
    return Negatives(*_sweep(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, operand, keep)[:5])


def loss_of(negatives: Tensor, shift: Tensor, positive: Tensor) -> Tensor:
    """Return log(1 + Σ exp(negative - positive)), from log Σ exp(negative - shift) and the positive's logit, [B] each.

    The shift must be the positive without its gradient. Their difference is 0, but carries the gradient of the
    positive. Above the threshold softplus is the identity; 40 keeps float64 losses exact.
    """
    return F.softplus(negatives + (shift - positive), threshold=40)


def beaten(best: Tensor, positive: Tensor) -> Tensor:
    """Return whether positives beat the largest logit of a negative, given minus the positive's logit (bool).

    They must win by more than rounding errors: a tie is not a success, above all if an encoder maps all sentences to
    one vector.
    """
    return best < -ROUNDINGS * torch.finfo(positive.dtype).eps * positive.abs()


def _hardness(rows: Tensor, columns: Tensor, row_positive: Tensor, exponent: Tensor) -> list[Tensor]:
    """Return the fields of ``Hardness``."""
    accumulate = accumulation_dtype(rows)
    distance = (rows.detach().to(accumulate) - row_positive.detach().to(accumulate)).square().sum(1)
    squares = [side.to(accumulate).square().sum(1).clamp(min=SMALLEST_SQUARE) for side in (rows, columns)]
    return [*squares, distance, exponent]


def _reference(rows, columns, tau, row_shift, column_shift, excluded, ids, hard) -> Negatives:
    masked = torch.zeros(len(rows), len(columns), dtype=torch.bool, device=rows.device)
    masked.scatter_(1, excluded, True)
    if ids:
        masked |= reference.equal(*ids)
    empty, dtype = row_shift.new_empty(0), row_shift.dtype
    column_lse, column_best, interpolation = empty, empty, empty
    if hard:
        logits, mixed = reference.hard_negatives(rows, columns, tau, masked, *hard)
        best, _ = reference.hard_negatives(rows, columns, tau, masked, hard[0], torch.zeros(()))
        interpolation = _mean(mixed.masked_fill(masked, 0).sum(1), (~masked).sum(1))
    else:
        best = logits = reference.negatives(rows, columns, tau, masked)
    # The maximum of an empty tensor is an error, so a row and a column of -inf are added.
    best = F.pad(best.detach(), (0, 1, 0, 1), value=reference.NOTHING)
    row_lse = (logits - row_shift.double().unsqueeze(1)).logsumexp(1)
    row_best = best.amax(1)[:-1] - row_shift
    if column_shift is not None:
        column_lse = (logits - column_shift.double()).logsumexp(0)
        column_best = best.amax(0)[:-1] - column_shift
    return Negatives(*(field.to(dtype) for field in (row_lse, column_lse, row_best, column_best, interpolation)))


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, or 1 if the count is 0: then no negative was made harder."""
    return torch.where(count > 0, total / count, 1.0)


def _pairs(
    rows: Tensor,
    columns: Tensor,
    tau: Tensor,
    excluded: Tensor,
    ids: Sequence[Tensor],
    hard: Sequence[Tensor],
    operand: torch.dtype,
) -> tuple[Pairs, Tensor, Tensor]:
    """Return what the steps need to know, and the operands of the product."""
    # Scaled rows save a pass over the similarities, but would be rounded once more in half precision.
    folded = operand == tau.dtype and not hard
    left = (rows.to(tau.dtype) / tau if folded else rows).to(operand)
    both = (ids[0].contiguous(), ids[1].contiguous()) if ids else None  # as the fused kernels read them
    right = columns.to(operand)
    small = folded and path_for(rows.device) == "chunked" and rows.device.type == "cpu" and _are_small(left, right)
    pairs = Pairs(None if folded else 1 / tau, excluded, both, Hardness(*hard) if hard else None, operand, small)
    return pairs, left, right


def _are_small(left: Tensor, right: Tensor) -> bool:
    """Return whether all dot products of rows are small, judged by the lengths of the rows."""
    if not len(left) or not len(right):
        return False
    lengths = [torch.linalg.vector_norm(side, dim=1).amax() for side in (left, right)]
    return bool(lengths[0] * lengths[1] <= SMALL)


def _tiles(left: Tensor, right: Tensor, *likes: Tensor) -> Iterator[tuple[slice, slice, list[Tensor]]]:
    """Yield the rows and columns of each tile, and memory for it in the types of ``likes``.

    All tiles share the memory: to allocate it for each would cost as much as the work on the tile.
    """
    (rows, columns), (height, width) = (len(left), len(right)), steps_for(left.device).TILE
    rooms = [like.new_empty(min(rows, height) * min(columns, width)) for like in likes]
    for start in range(0, rows, height):
        for begin in range(0, columns, width):
            i, j = slice(start, min(start + height, rows)), slice(begin, min(begin + width, columns))
            size = i.stop - i.start, j.stop - j.start
            yield i, j, [room[: size[0] * size[1]].view(size) for room in rooms]


@torch.library.custom_op("xrep::negatives", mutates_args=())
def _sweep(
    rows: Tensor,
    columns: Tensor,
    tau: Tensor,
    row_shift: Tensor,
    column_shift: Tensor | None,
    excluded: Tensor,
    ids: Sequence[Tensor],
    hard: Sequence[Tensor],
    operand: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of ``Negatives``, maxima and totals of rows and columns, and the similarities if ``keep``
    (their exponentials if they are small)."""
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        pairs, left, right = _pairs(rows, columns, tau, excluded, ids, hard, operand)
        row = [*_nothing_seen(row_shift), *((*_nothing_seen(row_shift), torch.zeros_like(row_shift)) if hard else ())]
        column = [] if column_shift is None else _nothing_seen(column_shift)
        statistics = PairStatistics(row, column)
        kept = tau.new_empty(len(left), len(right)) if keep else tau.new_empty(0)
        for i, j, room in _tiles(left, right, *([] if keep else [tau])):
            similarities = multiply(left[i], right[j].t(), out=kept[i, j] if keep else room[0])
            steps.collect(similarities, pairs.tile(i, j), statistics.tile(i, j))
        if pairs.small:  # the totals become relative to the maxima
            for maximum, total in (row, *([column] if column else [])):
                total.copy_(torch.where(total > 0, total * (-maximum).exp(), 0.0))
        maximum, total, *of_hard = row
        row_best = maximum - row_shift
        row_lse = _lse(maximum, total, row_shift)
        column_lse, column_best, interpolation, *nothing = (tau.new_empty(0) for _ in range(5))
        if column_shift is not None:
            column_best = column[0] - column_shift
            column_lse = _lse(column[0], column[1], column_shift)
        if hard:
            row_best, interpolation = of_hard[0] - row_shift, _mean(of_hard[1], of_hard[2])
        of_columns = column or nothing
        results = row_lse, column_lse, row_best, column_best, interpolation
        return *results, maximum, total, of_columns[0], of_columns[1], kept


def _lse(maximum: Tensor, total: Tensor, shift: Tensor) -> Tensor:
    """Return the log-sum-exp minus the shift."""
    return (maximum - shift) + total.log()  # in this order, because a large maximum would round a small logarithm away


def _nothing_seen(shift: Tensor) -> list[Tensor]:
    return [torch.full_like(shift, float("-inf")), torch.zeros_like(shift)]


@_sweep.register_fake
def _(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, operand, keep):
    row = [torch.empty_like(row_shift) for _ in range(4)]
    column = [tau.new_empty(0 if column_shift is None else columns.size(0)) for _ in range(4)]
    interpolation = tau.new_empty(rows.size(0) if hard else 0)
    kept = tau.new_empty(rows.size(0), columns.size(0)) if keep else tau.new_empty(0)
    return row[0], column[0], row[1], column[1], interpolation, *row[2:], *column[2:], kept


@torch.library.custom_op("xrep::negatives_backward", mutates_args=())
def _gradients(
    of_rows: Tensor,
    of_columns: Tensor,
    statistics: Sequence[Tensor],
    rows: Tensor,
    columns: Tensor,
    tau: Tensor,
    excluded: Tensor,
    ids: Sequence[Tensor],
    hard: Sequence[Tensor],
    operand: torch.dtype,
    of_tau: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients towards rows, columns, temperature and squared norms (empty without hard negatives)."""
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        kept = statistics[-1]
        pairs, left, right = _pairs(rows, columns, tau, excluded, ids, hard, operand)
        gradient, unit = _gradient_of(of_rows, of_columns, statistics, hard, tau, operand)
        # The first product of each row and column of tiles overwrites what is there.
        make = torch.empty_like if len(left) and len(right) else torch.zeros_like
        for_rows, for_columns = (
            make(side, dtype=tau.dtype, memory_format=torch.contiguous_format) for side in (rows, columns)
        )
        factor = rows.to(pairs.operand)
        for i, j, (weights, *room) in _tiles(left, right, left, *([] if kept.numel() else [tau])):
            similarities = kept[i, j] if kept.numel() else multiply(left[i], right[j].t(), out=room[0])
            tile = pairs.tile(i, j)
            if pairs.small and not kept.numel():
                exponentials(similarities, tile)
            steps.differentiate(similarities, tile, gradient.tile(i, j), weights)
            for total, first, a, b in (
                (for_rows[i], j.start == 0, weights, right[j]),
                (for_columns[j], i.start == 0, weights.t(), factor[i]),
            ):
                multiply(a, b, out=total) if first else multiply_add(total, a, b)
        scale = unit / tau
        if unit is not tau:
            for_rows *= scale
            for_columns *= scale
        if hard:
            for_tau = -(gradient.rows[3].sum() * scale) / tau
            squares = (gradient.rows[2] * scale, gradient.columns[0] * scale)
        else:
            # Σ gradient · similarity, summed over the columns first
            for_tau = -(for_rows * rows).sum() / tau if of_tau else torch.zeros_like(tau)
            squares = (tau.new_empty(0), tau.new_empty(0))
        return for_rows.to(rows.dtype), for_columns.to(columns.dtype), for_tau, *squares


def _gradient_of(
    of_rows: Tensor,
    of_columns: Tensor,
    statistics: Sequence[Tensor],
    hard: Sequence[Tensor],
    tau: Tensor,
    operand: torch.dtype,
) -> tuple[PairStatistics, Tensor]:
    """Return how the gradient of a logit is computed, and the unit in which it is given.

    The unit is the temperature, so that nothing needs to be scaled afterwards; in half precision it is about the
    largest weight, which keeps products within the range of the type. The maximum is itself
    a logit, so the difference to it is exact where it matters; a log-sum-exp would have been rounded.
    """
    row_maximum, row_total, column_maximum, column_total, _ = statistics
    both = len(column_total) > 0
    unit = tau
    if operand != tau.dtype:
        unit = torch.cat([of_rows, of_columns if both else of_rows, of_rows.new_zeros(1)]).abs().amax()
        unit = torch.where(unit > 0, unit, 1.0)

    def offset_and_weight(of_side: Tensor, maximum: Tensor, total: Tensor) -> list[Tensor]:
        return [maximum.masked_fill(total == 0, float("inf")), of_side / (unit * total.masked_fill(total == 0, 1))]

    row = offset_and_weight(of_rows, row_maximum, row_total)
    column = offset_and_weight(of_columns, column_maximum, column_total) if both else []
    if hard:
        row, column = [*row, torch.zeros_like(hard[0]), torch.zeros_like(row_total)], [torch.zeros_like(hard[1])]
    return PairStatistics(row, column), unit


@_gradients.register_fake
def _(of_rows, of_columns, statistics, rows, columns, tau, excluded, ids, hard, operand, of_tau):
    squares = (torch.empty_like(tensor) for tensor in (hard[:2] or (tau.new_empty(0), tau.new_empty(0))))
    return rows.new_empty(rows.shape), columns.new_empty(columns.shape), torch.empty_like(tau), *squares


def _keep(ctx, inputs, output) -> None:
    rows, columns, tau, _, _, excluded, ids, hard, ctx.operand, _ = inputs
    ctx.counts, ctx.path = (len(ids), len(hard)), path_for(rows.device)
    ctx.save_for_backward(*output[5:], rows, columns, tau, excluded, *ids, *hard)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # avoids zeros as large as the kept similarities


def _backward(ctx, of_rows, of_columns, *_):
    *statistics, kept = ctx.saved_tensors[:5]
    rows, columns, tau, excluded = ctx.saved_tensors[5:9]
    of_rows = torch.zeros_like(statistics[1]) if of_rows is None else of_rows
    of_columns = torch.zeros_like(statistics[3]) if of_columns is None else of_columns
    if ctx.path != path_for(rows.device):  # another path stores the similarities in another form
        kept = kept.new_empty(0)
    ids, hard = ctx.saved_tensors[9 : 9 + ctx.counts[0]], ctx.saved_tensors[9 + ctx.counts[0] :]
    *three, of_row_squares, of_column_squares = _gradients(
        *(of_rows, of_columns, [*statistics, kept], rows, columns, tau, excluded, list(ids), list(hard)),
        ctx.operand,
        ctx.needs_input_grad[2],
    )
    for_hard = [of_row_squares, of_column_squares, None, None] if hard else []
    return *three, None, None, None, [None] * len(ids), for_hard, None, None


_sweep.register_autograd(_backward, setup_context=_keep)
