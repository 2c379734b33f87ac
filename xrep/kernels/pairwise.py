"""Log-sum-exp over the negatives of every row, and of every column, of a matrix of similarities."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels import reference
from xrep.kernels.blocks import SMALLEST_SQUARE
from xrep.kernels.pair_sweep import mean, sweep
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import accumulation_dtype, operand_dtype

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
    row_distance: Tensor | None = None,
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
        row_distance, exponent: [R] and 0-d, both or neither: squared distances of the rows from their positives. If
            given, cosines with negatives made harder (HiCTL, eq. 5 and 6) are compared instead of dot products, and
            only rows are normalised.
    """
    ids = [] if row_ids is None or column_ids is None else [row_ids, column_ids]
    hard = [] if row_distance is None or exponent is None else [row_distance, exponent]
    if path_for(rows.device) == "reference":
        return _reference(rows, columns, tau, row_shift, column_shift, excluded, ids, hard)
    if hard:  # without gradient: the sweep adds that of the norms to that of the vectors
        squares = [squared_norms(side.detach()) for side in ((rows,) if rows is columns else (rows, columns))]
        hard = [squares[0], squares[-1], *hard]
    differentiable = torch.is_grad_enabled() and (rows.requires_grad or columns.requires_grad or tau.requires_grad)
    arrays = 2 if hard else 1
    keep = differentiable and arrays * len(rows) * len(columns) <= steps_for(rows.device).KEPT_PAIRS
    # If the two sides have different types, both are converted to the wider type in which sums are kept.
    operand = operand_dtype(rows) if rows.dtype == columns.dtype else tau.dtype
    return Negatives(*sweep(rows, columns, tau, row_shift, column_shift, excluded, ids, hard, operand, keep)[:5])


def squared_norms(vectors: Tensor) -> Tensor:
    """Return the squared norms [N] of vectors [N, D], which are at least ``SMALLEST_SQUARE``."""
    wide = vectors.to(accumulation_dtype(vectors))
    return (wide * wide).sum(1).clamp(min=SMALLEST_SQUARE)


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
        interpolation = mean(mixed.masked_fill(masked, 0).sum(1), (~masked).sum(1))
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
