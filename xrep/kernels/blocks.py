"""The data that the work on one block of similarities reads and updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_SQUARE = 1e-16
"""Lower bound of squared norms in a cosine, as in ``torch.nn.functional.cosine_similarity``."""


class Hardness(NamedTuple):
    """What makes negatives harder: squared norms of rows [R] and columns [C], the squared distance of each row from its
    positive [R] (d⁺²), and the exponent ζ · p⁺ (0-d)."""

    row_squares: Tensor
    column_squares: Tensor
    row_distance: Tensor
    exponent: Tensor

    def rows(self, some: slice) -> Hardness:
        """Return what makes the negatives of some rows harder."""
        return Hardness(self.row_squares[some], self.column_squares, self.row_distance[some], self.exponent)


@dataclass
class Pairs:
    """Which rows and columns are compared, and how a similarity (dot product) becomes a logit.

    Attributes:
        scale: 0-d, multiplies similarities or cosines (1 / temperature); None if the rows are already multiplied by it.
        excluded: int64 [R, M], columns with which a row is not compared.
        ids: int64 [R, I], [C, I] or None; rows and columns equal in any of the I are not compared.
        hard: None: the negatives stay as they are.
        operand: type in which a gradient multiplies rows and columns.
        small: whether exp(logit) and its sums neither overflow nor underflow, so that no maximum must be subtracted.
    """

    scale: Tensor | None
    excluded: Tensor
    ids: tuple[Tensor, Tensor] | None
    hard: Hardness | None
    operand: torch.dtype
    small: bool = False

    def tile(self, rows: slice, columns: slice) -> Pairs:
        """Return the pairs of some rows and columns; ``excluded`` then counts from the first of these columns."""
        ids, hard = self.ids, self.hard
        if ids is not None:
            ids = ids[0][rows], ids[1][columns]
        if hard is not None:
            hard = hard.rows(rows)._replace(column_squares=hard.column_squares[columns])
        return Pairs(self.scale, self.excluded[rows] - columns.start, ids, hard, self.operand, self.small)


@dataclass
class PairStatistics:
    """What is collected of rows and columns, and what is needed for their gradient.

    Collected are the running maximum of logits and Σ exp(logit - maximum), which begin with -inf and 0 (with small
    logits, Σ exp(logit), which becomes relative to the maximum at the end); with hard
    negatives also, of rows, the largest logit of a negative before it was made harder, Σ λ, and the number of
    negatives.

    The gradient of a logit is weight · exp(logit - offset) for the row plus that for the column. It needs offset and
    weight; with hard negatives also sums that are updated: of rows, the gradient towards the squared norms and
    Σ gradient · cosine, and of columns only the gradient towards the squared norms.

    Attributes:
        rows, columns: [R] and [C] each; no columns if they are not normalised.
    """

    rows: Sequence[Tensor]
    columns: Sequence[Tensor]

    def tile(self, rows: slice, columns: slice) -> PairStatistics:
        """Return the values of some rows and columns, in the same memory."""
        return PairStatistics([each[rows] for each in self.rows], [each[columns] for each in self.columns])
