"""The data that the work on one block of similarities reads and updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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


class Hardness(NamedTuple):
    """What makes negatives harder: squared norms of rows [R] and columns [C], the squared distance of each row from its
    positive [R] (d⁺²), and the exponent ζ · p⁺ (0-d)."""

    row_squares: Tensor
    column_squares: Tensor
    row_distance: Tensor
    exponent: Tensor


@dataclass
class Pairs:
    """Which rows and columns are compared, and how a similarity (dot product) becomes a logit.

    Attributes:
        scale: 0-d, multiplies similarities or cosines (1 / temperature); None if the rows are already multiplied by it.
        excluded: int64 [R, M], columns with which a row is not compared.
        ids: int64 [R, I], [C, I] or None; rows and columns equal in any of the I are not compared.
        hard: None: the negatives stay as they are.
        operand: type in which a gradient multiplies rows and columns.
    """

    scale: Tensor | None
    excluded: Tensor
    ids: tuple[Tensor, Tensor] | None
    hard: Hardness | None
    operand: torch.dtype

    def tile(self, rows: slice, columns: slice) -> Pairs:
        """Return the pairs of some rows and columns; ``excluded`` then counts from the first of these columns."""
        ids, hard = self.ids, self.hard
        if ids is not None:
            ids = ids[0][rows], ids[1][columns]
        if hard is not None:
            hard = Hardness(hard[0][rows], hard[1][columns], hard[2][rows], hard[3])
        return Pairs(self.scale, self.excluded[rows] - columns.start, ids, hard, self.operand)


@dataclass
class PairStatistics:
    """What is collected of pairs; tiles are updated in place.

    Attributes:
        rows, columns: running maximum of logits and Σ exp(logit - maximum), [R] and [C] each, which begin with -inf and
            0. Columns: None if they are not normalised.
        hard: None, or of each row: the largest logit of a negative before it was made harder, Σ λ, and the number of
            negatives, [R] each.
    """

    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor] | None
    hard: tuple[Tensor, Tensor, Tensor] | None

    def tile(self, rows: slice, columns: slice) -> PairStatistics:
        hard = self.hard and (self.hard[0][rows], self.hard[1][rows], self.hard[2][rows])
        return PairStatistics(*_sides(self, rows, columns), hard)


@dataclass
class PairGradient:
    """Values that turn a logit into its gradient, weight · exp(logit - offset) for the row plus that for the column.

    Attributes:
        rows, columns: offset and weight, [R] and [C] each. Columns: None if they are not normalised.
        hard: None, or sums that are updated in place: gradient towards the squared norms, [R] and [C], and
            Σ gradient · cosine of each row, [R].
    """

    rows: tuple[Tensor, Tensor]
    columns: tuple[Tensor, Tensor] | None
    hard: tuple[Tensor, Tensor, Tensor] | None

    def tile(self, rows: slice, columns: slice) -> PairGradient:
        hard = self.hard and (self.hard[0][rows], self.hard[1][columns], self.hard[2][rows])
        return PairGradient(*_sides(self, rows, columns), hard)


def _sides(of: PairStatistics | PairGradient, rows: slice, columns: slice):
    column = of.columns and (of.columns[0][columns], of.columns[1][columns])
    return (of.rows[0][rows], of.rows[1][rows]), column
