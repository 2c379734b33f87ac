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
from xrep.kernels.blocks import SMALLEST_SQUARE, PairGradient, Pairs, PairStatistics
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add

NOTHING = float("-inf")

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
    column_shift: Tensor | None,
    excluded: Tensor,
    row_ids: Tensor | None = None,
    column_ids: Tensor | None = None,
    row_positive: Tensor | None = None,
    exponent: Tensor | None = None,
) -> Negatives:
    """Compare all rows with all columns except the excluded ones.

    Args:
        rows: [R, D].
        columns: [C, D].
        tau: 0-d temperature, of the accumulation type.
        row_shift, column_shift: [R], [C], subtracted from the log-sum-exp. Without ``column_shift``, columns are not
            normalised.
        excluded: int64 [R, M], columns that are not negatives of a row.
        row_ids, column_ids: int64 [R, I], [C, I], both or neither. Rows and columns that are equal in any of the I are
            not negatives of each other.
        row_positive, exponent: [R, D] and 0-d, both or neither. If given, cosines with negatives made harder (HiCTL,
            eq. 5 and 6) are compared instead of dot products, and only rows are normalised.
    """
    if path_for(rows.device) == "reference":
        return _reference(
            rows, columns, tau, row_shift, column_shift, excluded, row_ids, column_ids, row_positive, exponent
        )
    ids = [] if row_ids is None else [row_ids, column_ids]
    hard: list[Tensor] = []
    if row_positive is not None:
        assert exponent is not None
        hard = _hardness(rows, columns, row_positive, exponent)
    differentiable = torch.is_grad_enabled() and (rows.requires_grad or columns.requires_grad or tau.requires_grad)
    keep = differentiable and len(rows) * len(columns) <= steps_for(rows.device).KEPT_PAIRS
    return Negatives(*_sweep(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, keep)[:5])


def check_pairs(x: Tensor, y: Tensor, ids: Tensor | None) -> None:
    """Raise ValueError unless x and y are [B, D] and ids, if given, [B, I]."""
    if x.dim() != 2 or x.shape != y.shape:
        raise ValueError(f"x and y must be [B, D] both, not {list(x.shape)} and {list(y.shape)}")
    if ids is not None and (ids.dim() != 2 or len(ids) != len(x)):
        raise ValueError(f"ids must be [{len(x)}, I] for {len(x)} pairs, not {list(ids.shape)}")


def beaten(best: Tensor, positive: Tensor) -> Tensor:
    """Return whether positives beat the largest logit of a negative, given minus the positive's logit (bool).

    They must win by more than rounding errors: a tie is not a success, above all if an encoder maps all sentences to
    one vector.
    """
    return best < -ROUNDINGS * torch.finfo(positive.dtype).eps * positive.abs()


def _hardness(rows: Tensor, columns: Tensor, row_positive: Tensor, exponent: Tensor) -> list[Tensor]:
    """Return squared norms of rows and columns, squared distances of rows from their positives, and the exponent."""
    accumulate = accumulation_dtype(rows)
    distance = (rows.detach().to(accumulate) - row_positive.detach().to(accumulate)).square().sum(1)
    squares = [side.to(accumulate).square().sum(1).clamp(min=SMALLEST_SQUARE) for side in (rows, columns)]
    return [*squares, distance, exponent]


def _reference(
    rows, columns, tau, row_shift, column_shift, excluded, row_ids, column_ids, row_positive, exponent
) -> Negatives:
    masked = torch.zeros(len(rows), len(columns), dtype=torch.bool, device=rows.device)
    masked.scatter_(1, excluded, True)
    if row_ids is not None:
        masked |= reference.equal(row_ids, column_ids)
    empty = row_shift.new_empty(0)
    interpolation = empty
    if row_positive is None:
        logits = reference.negatives(rows, columns, tau, masked)
        best = logits
    else:
        logits, mixed = reference.hard_negatives(rows, columns, tau, masked, row_positive, exponent)
        best, _ = reference.hard_negatives(rows, columns, tau, masked, row_positive, torch.zeros(()))
        interpolation = _mean(mixed.masked_fill(masked, 0).sum(1), (~masked).sum(1))
    # The maximum of an empty tensor is an error, so a row and a column of -inf are added.
    best, dtype = F.pad(best.detach(), (0, 1, 0, 1), value=NOTHING), row_shift.dtype
    row_lse = (logits - row_shift.double().unsqueeze(1)).logsumexp(1)
    row_best = best.amax(1)[:-1] - row_shift
    if column_shift is None:
        return Negatives(row_lse.to(dtype), empty, row_best.to(dtype), empty, interpolation.to(dtype))
    column_lse = (logits - column_shift.double()).logsumexp(0)
    column_best = best.amax(0)[:-1] - column_shift
    return Negatives(row_lse.to(dtype), column_lse.to(dtype), row_best.to(dtype), column_best.to(dtype), empty)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count, or 1 if the count is 0: then no negative was made harder."""
    return torch.where(count > 0, total / count, 1.0)


def _pairs(
    rows: Tensor, columns: Tensor, tau: Tensor, excluded: Tensor, ids: Sequence[Tensor], hard: Sequence[Tensor]
) -> tuple[Pairs, Tensor, Tensor]:
    """Return what the steps need to know, and the operands of the product."""
    # If the two sides have different types, both are converted to the wider type in which sums are kept.
    operand = steps_for(rows.device).operand_dtype(rows) if rows.dtype == columns.dtype else tau.dtype
    # Scaled rows save a pass over the similarities, but would be rounded once more in half precision.
    folded = operand == tau.dtype and not hard
    left = (rows.to(tau.dtype) / tau if folded else rows).to(operand)
    scale = None if folded else 1 / tau
    row_ids, column_ids = ids or (None, None)
    row_squares, column_squares, row_distance, exponent = hard or (None, None, None, None)
    pairs = Pairs(scale, excluded, row_ids, column_ids, row_squares, column_squares, row_distance, exponent, operand)
    return pairs, left, columns.to(operand)


def _tiles(rows: int, columns: int, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    for start in range(0, rows, shape[0]):
        for begin in range(0, columns, shape[1]):
            yield slice(start, min(start + shape[0], rows)), slice(begin, min(begin + shape[1], columns))


def _room(rows: int, columns: int, tile: tuple[int, int], like: Tensor) -> Tensor:
    """Allocate memory for one tile, shared by all: a new one for each would cost as much as the work on the tile."""
    return like.new_empty(min(rows, tile[0]) * min(columns, tile[1]))


def _part(room: Tensor, rows: slice, columns: slice) -> Tensor:
    size = (rows.stop - rows.start, columns.stop - columns.start)
    return room[: size[0] * size[1]].view(size)


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
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the fields of ``Negatives``, maxima and totals of rows and columns, and the similarities if ``keep``."""
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        pairs, left, right = _pairs(rows, columns, tau, excluded, ids, hard)
        found = _nothing_seen(row_shift, column_shift, bool(hard))
        kept = tau.new_empty(len(left), len(right)) if keep else tau.new_empty(0)
        room = _room(0 if keep else len(left), len(right), steps.TILE, tau)
        for i, j in _tiles(len(left), len(right), steps.TILE):
            similarities = kept[i, j] if keep else _part(room, i, j)
            steps.collect(multiply(left[i], right[j].t(), out=similarities), pairs, i, j, found)
        # In this order, because a large maximum would round a small logarithm away.
        row_lse = (found.row_maximum - row_shift) + found.row_total.log()
        row_best, interpolation = found.row_maximum - row_shift, tau.new_empty(0)
        if hard:
            assert found.row_best is not None and found.interpolation is not None and found.compared is not None
            row_best = found.row_best - row_shift
            interpolation = _mean(found.interpolation, found.compared)
        if column_shift is None:
            column_lse, column_best, *column = (tau.new_empty(0) for _ in range(4))
        else:
            assert found.column_maximum is not None and found.column_total is not None
            column = [found.column_maximum, found.column_total]
            column_best = column[0] - column_shift
            column_lse = column_best + column[1].log()
        row = found.row_maximum, found.row_total
        return row_lse, column_lse, row_best, column_best, interpolation, *row, column[0], column[1], kept


def _nothing_seen(row_shift: Tensor, column_shift: Tensor | None, hard: bool) -> PairStatistics:
    return PairStatistics(
        row_maximum=torch.full_like(row_shift, NOTHING),
        row_total=torch.zeros_like(row_shift),
        column_maximum=None if column_shift is None else torch.full_like(column_shift, NOTHING),
        column_total=None if column_shift is None else torch.zeros_like(column_shift),
        row_best=torch.full_like(row_shift, NOTHING) if hard else None,
        interpolation=torch.zeros_like(row_shift) if hard else None,
        compared=torch.zeros_like(row_shift) if hard else None,
    )


@_sweep.register_fake
def _(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, keep):
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients towards rows, columns, temperature and squared norms (empty without hard negatives)."""
    with torch.autocast(rows.device.type, enabled=False):
        steps = steps_for(rows.device)
        pairs, left, right = _pairs(rows, columns, tau, excluded, ids, hard)
        wanted, unit = _wanted(of_rows, of_columns, statistics, hard)
        kept = statistics[-1]
        for_rows = torch.zeros(rows.shape, dtype=tau.dtype, device=rows.device)
        for_columns = torch.zeros(columns.shape, dtype=tau.dtype, device=rows.device)
        factor = rows.to(pairs.operand)
        weights_room = _room(len(left), len(right), steps.TILE, left)
        room = _room(0 if kept.numel() else len(left), len(right), steps.TILE, tau)
        for i, j in _tiles(len(left), len(right), steps.TILE):
            if kept.numel():
                similarities = kept[i, j]
            else:
                similarities = multiply(left[i], right[j].t(), out=_part(room, i, j))
            weights = _part(weights_room, i, j)
            steps.differentiate(similarities, pairs, i, j, wanted, weights)
            multiply_add(for_rows[i], weights, right[j])
            multiply_add(for_columns[j], weights.t(), factor[i])
        scale = unit / tau
        for_rows *= scale
        for_columns *= scale
        if hard:
            assert wanted.of_scale is not None
            assert wanted.of_row_squares is not None and wanted.of_column_squares is not None
            for_tau = -(wanted.of_scale.sum() * scale) / tau
            squares = (wanted.of_row_squares * scale, wanted.of_column_squares * scale)
        else:
            for_tau = -(for_rows * rows).sum() / tau  # Σ gradient · similarity, summed over the columns first
            squares = (tau.new_empty(0), tau.new_empty(0))
        return for_rows.to(rows.dtype), for_columns.to(columns.dtype), for_tau, *squares


def _wanted(
    of_rows: Tensor, of_columns: Tensor, statistics: Sequence[Tensor], hard: Sequence[Tensor]
) -> tuple[PairGradient, Tensor]:
    """Return how the gradient of a logit is computed, and the unit in which it is given.

    A unit of about the largest weight keeps half-precision products within the range of the type. The maximum is itself
    a logit, so the difference to it is exact where it matters; a log-sum-exp would have been rounded.
    """
    row_maximum, row_total, column_maximum, column_total, _ = statistics
    both = len(column_total) > 0
    unit = torch.cat([of_rows, of_columns if both else of_rows, of_rows.new_zeros(1)]).abs().amax()
    unit = torch.where(unit > 0, unit, 1.0)
    wanted = PairGradient(
        row_offset=row_maximum.masked_fill(row_total == 0, -NOTHING),
        row_weight=of_rows / (unit * row_total.clamp(min=1)),
        column_offset=column_maximum.masked_fill(column_total == 0, -NOTHING) if both else None,
        column_weight=of_columns / (unit * column_total.clamp(min=1)) if both else None,
        of_row_squares=torch.zeros_like(hard[0]) if hard else None,
        of_column_squares=torch.zeros_like(hard[1]) if hard else None,
        of_scale=torch.zeros_like(row_total) if hard else None,
    )
    return wanted, unit


@_gradients.register_fake
def _(of_rows, of_columns, statistics, rows, columns, tau, excluded, ids, hard):
    squares = (torch.empty_like(tensor) for tensor in (hard[:2] or (tau.new_empty(0), tau.new_empty(0))))
    return rows.new_empty(rows.shape), columns.new_empty(columns.shape), torch.empty_like(tau), *squares


def _keep(ctx, inputs, output) -> None:
    rows, columns, tau, _, _, excluded, ids, hard, _ = inputs
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
        of_rows, of_columns, [*statistics, kept], rows, columns, tau, excluded, list(ids), list(hard)
    )
    for_hard = [of_row_squares, of_column_squares, None, None] if hard else []
    return *three, None, None, None, [None] * len(ids), for_hard, None


_sweep.register_autograd(_backward, setup_context=_keep)
