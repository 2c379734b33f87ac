"""The sweeps over tiles of similarities, as an operator of torch with a gradient.

Both sides carry gradient, so the final sums of rows and columns must be known before any gradient can be computed:
there is one sweep over tiles in the forward pass and one in the backward pass. The similarities are kept between the
two if there are few of them, and computed again otherwise. With hard negatives the columns are not normalised: the
gradient of a row then needs nothing but its weight in the loss, and is computed in the forward pass, where the
exponentials are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from xrep.kernels import chunked_steps
from xrep.kernels.blocks import SMALLEST_SQUARE, Hardness, Pairs, PairStatistics
from xrep.kernels.chunked_steps import SMALL, exponentials
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import multiply, multiply_add


def mean(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, or 1 if the count is 0: then no negative was made harder."""
    return torch.where(count > 0, total / count, 1.0)


def _pairs(
    tau: Tensor, excluded: Tensor, ids: Sequence[Tensor], hard: Sequence[Tensor], operand: torch.dtype, small: bool
) -> Pairs:
    """Return what the steps need to know."""
    both = (ids[0].contiguous(), ids[1].contiguous()) if ids else None  # as the fused kernels read them
    scale = None if _is_folded(tau, hard, operand) else 1 / tau
    return Pairs(scale, excluded, both, Hardness(*hard) if hard else None, operand, small)


def _is_folded(tau: Tensor, hard: Sequence[Tensor], operand: torch.dtype) -> bool:
    """Return whether the rows are divided by the temperature before the product.

    It saves a pass over the similarities, but in half precision the rows would be rounded once more.
    """
    return operand == tau.dtype and not hard


def _left(rows: Tensor, tau: Tensor, hard: Sequence[Tensor], operand: torch.dtype) -> Tensor:
    """Return the left operand of the product."""
    return (rows.to(tau.dtype) / tau if _is_folded(tau, hard, operand) else rows).to(operand)


def _are_small(left: Tensor, right: Tensor) -> bool:
    """Return whether all dot products of rows are small, judged by the lengths of the rows."""
    if not len(left) or not len(right):
        return False
    lengths = [torch.linalg.vector_norm(side, dim=1).amax() for side in (left, right)]
    return bool(lengths[0] * lengths[1] <= SMALL)


def _tiles(left: Tensor, right: Tensor, hard: bool, *likes: Tensor) -> Iterator[tuple[slice, slice, list[Tensor]]]:
    """Yield the rows and columns of each tile, and memory for it in the types of ``likes``.

    All tiles share the memory: to allocate it for each would cost as much as the work on the tile.
    """
    (rows, columns), (height, width) = (len(left), len(right)), steps_for(left.device).tile(len(right), hard)
    rooms = [like.new_empty(min(rows, height) * min(columns, width)) for like in likes]
    for start in range(0, rows, height):
        for begin in range(0, columns, width):
            i, j = slice(start, min(start + height, rows)), slice(begin, min(begin + width, columns))
            size = i.stop - i.start, j.stop - j.start
            yield i, j, [room[: size[0] * size[1]].view(size) for room in rooms]


@torch.library.custom_op("xrep::negatives", mutates_args=())
def sweep(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of ``Negatives``, maxima and totals of rows and columns, and the similarities if ``keep``.

    Instead of them are kept: if they are small, their exponentials; with hard negatives on the chunked path, the
    gradients of ``chunked_steps.collect``, those beside them, and their sums over the columns, [2, R]. The last result
    is whether the logits are small, in host memory.
    """
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        left, right, chunked = _left(rows, tau, hard, operand), columns.to(operand), path_for(rows.device) == "chunked"
        small = chunked and rows.device.type == "cpu" and _is_folded(tau, hard, operand) and _are_small(left, right)
        pairs = _pairs(tau, excluded, ids, hard, operand, small)
        row = _nothing_seen(row_shift)
        if hard:
            row += [*_nothing_seen(row_shift), *row_shift.new_zeros(3, len(left))]
        column = [] if column_shift is None else _nothing_seen(column_shift)
        statistics = PairStatistics(row, column)
        kept = tau.new_empty(len(left), len(right)) if keep else tau.new_empty(0)
        early = keep and bool(hard) and chunked
        beside = torch.empty_like(kept) if early else tau.new_empty(0)
        for i, j, room in _tiles(left, right, bool(hard), *([] if keep else [tau])):
            similarities = multiply(left[i], right[j].t(), out=kept[i, j] if keep else room[0])
            more = [beside[i, j]] if early else []
            steps.collect(similarities, pairs.tile(i, j), statistics.tile(i, j), *more)
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
            row_best, interpolation = of_hard[0] - row_shift, mean(of_hard[1], of_hard[2])
        of_columns = column or nothing
        results = row_lse, column_lse, row_best, column_best, interpolation
        sums = torch.stack(of_hard[3:]) if early else tau.new_empty(0)
        return *results, maximum, total, of_columns[0], of_columns[1], kept, beside, sums, torch.tensor(small)


def _lse(maximum: Tensor, total: Tensor, shift: Tensor) -> Tensor:
    """Return the log-sum-exp minus the shift."""
    return (maximum - shift) + total.log()  # in this order, because a large maximum would round a small logarithm away


def _nothing_seen(shift: Tensor) -> list[Tensor]:
    return [torch.full_like(shift, float("-inf")), torch.zeros_like(shift)]


@sweep.register_fake
def _(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, operand, keep):
    row = [torch.empty_like(row_shift) for _ in range(4)]
    column = [tau.new_empty(0 if column_shift is None else columns.size(0)) for _ in range(4)]
    interpolation = tau.new_empty(rows.size(0) if hard else 0)
    kept = tau.new_empty(rows.size(0), columns.size(0)) if keep else tau.new_empty(0)
    early = keep and bool(hard) and path_for(rows.device) == "chunked"
    besides = [torch.empty_like(kept), tau.new_empty(2, rows.size(0))] if early else [tau.new_empty(0) for _ in "ab"]
    besides.append(torch.empty((), dtype=torch.bool, device="cpu"))
    return row[0], column[0], row[1], column[1], interpolation, *row[2:], *column[2:], kept, *besides


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients towards rows, columns and temperature."""
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        *statistics, kept, beside, sums, small = statistics
        pairs = _pairs(tau, excluded, ids, hard, operand, bool(small))
        gradient, unit = _gradient_of(of_rows, of_columns, statistics, hard, tau, operand)
        factor, right = rows.to(operand), columns.to(operand)
        left = factor if kept.numel() else _left(rows, tau, hard, operand)
        # The first product of each row and column of tiles overwrites what is there.
        make = torch.empty_like if len(left) and len(right) else torch.zeros_like
        for_rows, for_columns = (
            make(side, dtype=tau.dtype, memory_format=torch.contiguous_format) for side in (rows, columns)
        )
        weight = None if not beside.numel() else chunked_steps.weigh(pairs, gradient, beside, sums)
        mirrored = weight is not None and _are_one(factor, right) and operand == tau.dtype
        for i, j, (weights, *room) in _tiles(left, right, bool(hard), left, *([] if kept.numel() else [tau])):
            similarities = kept[i, j] if kept.numel() else multiply(left[i], right[j].t(), out=room[0])
            if weight is not None:
                _weighted(kept, weight, i, mirrored, weights)
            else:
                tile = pairs.tile(i, j)
                if pairs.small and not kept.numel():
                    exponentials(similarities, tile)
                steps.differentiate(similarities, tile, gradient.tile(i, j), weights)
            for total, first, a, b in (
                (for_rows[i], j.start == 0, weights, right[j]),
                *([] if mirrored else [(for_columns[j], i.start == 0, weights.t(), factor[i])]),
            ):
                multiply(a, b, out=total) if first else multiply_add(total, a, b)
        if mirrored:
            for_columns.zero_()
        scale = unit / tau
        if unit is not tau:
            for_rows *= scale
            for_columns *= scale
        if hard:
            for_tau = -(gradient.rows[3].sum() * scale) / tau
            of_squares = [gradient.rows[2] * scale, gradient.columns[0] * scale]
            if mirrored:
                of_squares = [of_squares[0] + of_squares[1]]
            for total, side, squares, each in zip(
                (for_rows, for_columns), (rows, columns), hard, of_squares, strict=False
            ):
                each = (2 * each).masked_fill_(squares <= SMALLEST_SQUARE, 0)
                total.addcmul_(side.to(total.dtype), each.unsqueeze(1))
        else:
            # Σ gradient · similarity, summed over the columns first
            for_tau = -(for_rows * rows).sum() / tau if of_tau else torch.zeros_like(tau)
        return for_rows.to(rows.dtype), for_columns.to(columns.dtype), for_tau


def _are_one(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _weighted(kept: Tensor, weight: Tensor, rows: slice, mirrored: bool, out: Tensor) -> None:
    """Write the gradient towards some rows of similarities, and if ``mirrored`` add that towards the same columns.

    The rows are the columns then, and one product with the sum takes the place of two.
    """
    own, factor = kept[rows], weight[rows].unsqueeze(1)
    if mirrored:  # to add a transposed matrix directly would take several times as long
        out.copy_((kept[:, rows] * weight.unsqueeze(1)).t()).addcmul_(own, factor)
    else:
        torch.mul(own, factor, out=out)


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
    row_maximum, row_total, column_maximum, column_total = statistics
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
    return rows.new_empty(rows.shape), columns.new_empty(columns.shape), torch.empty_like(tau)


def _keep(ctx, inputs, output) -> None:
    rows, columns, tau, _, _, excluded, ids, hard, ctx.operand, _ = inputs
    ctx.counts = len(ids), len(hard)
    ctx.save_for_backward(*output[5:], rows, columns, tau, excluded, *ids, *hard)
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)  # avoids zeros as large as the kept similarities


def _backward(ctx, of_rows, of_columns, *_):
    *statistics, kept, beside, sums, small = ctx.saved_tensors[:8]
    rows, columns, tau, excluded = ctx.saved_tensors[8:12]
    of_rows = torch.zeros_like(statistics[1]) if of_rows is None else of_rows
    of_columns = torch.zeros_like(statistics[3]) if of_columns is None else of_columns
    ids, hard = ctx.saved_tensors[12 : 12 + ctx.counts[0]], ctx.saved_tensors[12 + ctx.counts[0] :]
    found = [*statistics, kept, beside, sums, small]
    three = _gradients(
        *(of_rows, of_columns, found, rows, columns, tau, excluded, list(ids), list(hard)),
        ctx.operand,
        ctx.needs_input_grad[2],
    )
    return *three, None, None, None, [None] * len(ids), [None] * len(hard), None, None


sweep.register_autograd(_backward, setup_context=_keep)
