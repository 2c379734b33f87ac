"""The data that the work on one block of similarities reads and updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST_SQUARE = 1e-16
"""Lower bound of squared norms in a cosine, as in ``torch.nn.functional.cosine_similarity``."""


@dataclass
class QueueSoftmax:
    """The running softmax of each query over its positive and the blocks of the queue seen so far.

    Attributes:
        scale: 0-d, multiplies similarities (1 / temperature); None if the queries are already multiplied by it.
        maximum: [B], the largest logit, including the positive.
        total: [B], Σ exp(logit - maximum) over the negatives.
        hardest: [B], the largest logit of a negative.
        mixture: [B, D], Σ exp(logit - maximum) · key over the negatives; None if no gradient is wanted.
        operand: type in which the weights multiply the block.
    """

    scale: Tensor | None
    maximum: Tensor
    total: Tensor
    hardest: Tensor
    mixture: Tensor | None
    operand: torch.dtype


@dataclass
class Pairs:
    """Which rows and columns are compared, and how a similarity (dot product) becomes a logit.

    Attributes:
        scale: 0-d, multiplies similarities or cosines (1 / temperature); None if the rows are already multiplied by it.
        excluded: int64 [R, M], columns with which a row is not compared.
        row_ids, column_ids: int64 [R, I], [C, I] or None; rows and columns equal in any of the I are not compared.
        row_squares, column_squares: [R], [C], squared norms. Only used with hard negatives, like the next two fields.
        row_distance: [R], squared distance of a row from its positive, d⁺².
        exponent: 0-d, ζ · p⁺, the exponent that makes negatives harder.
        operand: type in which a gradient multiplies rows and columns.
    """

    scale: Tensor | None
    excluded: Tensor
    row_ids: Tensor | None
    column_ids: Tensor | None
    row_squares: Tensor | None
    column_squares: Tensor | None
    row_distance: Tensor | None
    exponent: Tensor | None
    operand: torch.dtype


@dataclass
class PairStatistics:
    """Running maximum of logits and Σ exp(logit - maximum) of rows [R] and columns [C]; -inf and 0 at the beginning.

    Attributes:
        column_maximum, column_total: None if columns are not normalised.
        row_best: with hard negatives, the largest logit of a negative before it was made harder.
        interpolation, compared: with hard negatives, Σ λ and the number of negatives of each row.
    """

    row_maximum: Tensor
    row_total: Tensor
    column_maximum: Tensor | None
    column_total: Tensor | None
    row_best: Tensor | None
    interpolation: Tensor | None
    compared: Tensor | None


@dataclass
class PairGradient:
    """Values that turn a logit into its gradient, weight · exp(logit - offset) for the row plus that for the column.

    Attributes:
        row_offset, row_weight: [R].
        column_offset, column_weight: [C] or None.
        of_row_squares, of_column_squares: with hard negatives, sums of gradient towards the squared norms, [R], [C].
        of_scale: with hard negatives, Σ gradient · cosine of each row, [R].
    """

    row_offset: Tensor
    row_weight: Tensor
    column_offset: Tensor | None
    column_weight: Tensor | None
    of_row_squares: Tensor | None
    of_column_squares: Tensor | None
    of_scale: Tensor | None
