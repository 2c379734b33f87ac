"""Exact neighbours of vectors most of which are only compared in bfloat16.

Products in bfloat16 take a small part of the time of float32 products on CPUs that have instructions for them. Their
error has a bound, which follows from the rounding of each vector. So a pair whose rounded similarity lies further below
the k-th best one than the bound cannot be among the k best. The few others are compared in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from xrep.kernels.processor import multiplies_bfloat16
from xrep.retrieval.best import GROUP, Best, padded

FEWEST = 1000
"""Fewest vectors of a side that are screened. The maxima of groups bound the k-th best, so there must be many."""
MOST_NEIGHBOURS = 16
"""Largest k with which pairs are screened."""
_ROWS = 2048
"""Number of vectors that are converted, and of pairs that are compared in float32, at a time."""
_ROUNDING = 2.0**-8
"""Largest relative error of a product that is rounded to bfloat16, twice over."""


class Rounded(NamedTuple):
    """Vectors in float32 and in bfloat16, [N, D] each, the length of each vector and that of its rounding error [N]."""

    vectors: Tensor
    half: Tensor
    length: Tensor
    error: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> Rounded:
        half = vectors.bfloat16()
        parts = zip(vectors.split(_ROWS), half.split(_ROWS), strict=True)
        error = torch.cat([(part - rounded.float()).norm(dim=1) for part, rounded in parts])
        return cls(vectors, half, vectors.norm(dim=1), error)

    def slice(self, start: int, stop: int) -> Rounded:
        """Return some of the vectors."""
        return Rounded(*(part[start:stop] for part in self))


def screens(x_BD: Tensor, y_CD: Tensor, *bests: Best) -> bool:
    """Return whether it saves time to screen the pairs of two sides."""
    few = all(best.similarity.size(1) <= MOST_NEIGHBOURS for best in bests)
    usual = x_BD.device.type == "cpu" and x_BD.dtype == torch.float32 and min(len(x_BD), len(y_CD)) >= FEWEST
    return usual and few and multiplies_bfloat16()


def update_screened(x: Rounded, y: Rounded, best_x: Best, best_y: Best, first_x: int, first_y: int) -> bool:
    """Update the best neighbours of all rows of two sides with each other, if the screen can tell which pairs matter.

    It cannot if the k-th best similarity of a row is near 0 or below.

    Args:
        first_x, first_y: The indices of the first vectors.

    Returns:
        Whether the neighbours were updated.
    """
    # Positive numbers in bfloat16 are ordered like the whole numbers that have the same bits, which torch compares in a
    # fraction of the time. All negative numbers become negative ones.
    keys_RC = padded(torch.mm(x.half, y.half.t())).view(torch.int16)
    of_rows = keys_RC.unflatten(1, (GROUP, -1)).amax(1)[: len(x.half)]
    of_columns = keys_RC.unflatten(0, (GROUP, -1)).amax(0).t()[: len(y.half)]
    directions = ((x, y, best_x, of_rows, keys_RC, first_y), (y, x, best_y, of_columns, keys_RC.t(), first_x))
    leasts = [_least(one, other, best, groups) for one, other, best, groups, *_ in directions]
    if not all((least > 0).all() for least in leasts):
        return False
    for (one, other, best, groups, keys, first), least in zip(directions, leasts, strict=True):
        rows, columns = _candidates(groups, keys, least)
        if len(rows):
            _merge(best, rows, columns + first, _similarities(one.vectors, other.vectors, rows, columns))
    return True


def _least(one: Rounded, other: Rounded, best: Best, groups_RG: Tensor) -> Tensor:
    """Return for each row the least rounded similarity that a pair among the k best can have, [R]."""
    length, error = one.length + one.error, other.error.max()
    longest = other.length.max()
    of_sums = (one.vectors.size(1) + 8) * 2.0**-22  # of the products, and of those in float32
    # Lengths were rounded as well, by far less than a hundredth.
    bound = 1.01 * (one.error * longest + length * error + of_sums * length * (longest + error))
    known = best.similarity[:, -1]
    new = known == -torch.inf
    if new.any():  # at least k similarities of the tile are as high as the k-th of the maxima of groups
        rounded = groups_RG[new].topk(best.similarity.size(1)).values[:, -1].contiguous().view(torch.bfloat16).float()
        known = known.clone()
        known[new] = rounded - _ROUNDING * rounded.abs() - bound[new]
    least = known - bound
    return least - _ROUNDING * least.abs()


def _candidates(groups_RG: Tensor, keys_RC: Tensor, least_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of similarities that reach their row's least one, sorted by rows, then by columns."""
    floor_R = (least_R.view(torch.int32) >> 16).to(torch.int16)  # the next lower number in bfloat16
    rows_A, chosen_A = (groups_RG >= floor_R.unsqueeze(1)).nonzero(as_tuple=True)
    columns_AE = chosen_A.unsqueeze(1) + torch.arange(GROUP) * groups_RG.size(1)
    reaching = keys_RC[rows_A.unsqueeze(1), columns_AE] >= floor_R[rows_A].unsqueeze(1)
    rows_P, columns_P = rows_A.unsqueeze(1).expand_as(columns_AE)[reaching], columns_AE[reaching]
    order = (rows_P * keys_RC.size(1) + columns_P).argsort()
    return rows_P[order], columns_P[order]


def _similarities(one: Tensor, other: Tensor, rows_P: Tensor, columns_P: Tensor) -> Tensor:
    pairs = zip(rows_P.split(_ROWS), columns_P.split(_ROWS), strict=True)
    return torch.cat([one[rows].mul_(other[columns]).sum(1) for rows, columns in pairs])


def _merge(best: Best, rows_P: Tensor, index_P: Tensor, similarity_P: Tensor) -> None:
    """Merge pairs into the best neighbours; they are sorted by rows, and of each row by their indices."""
    rows_A, row_P, counts_A = rows_P.unique_consecutive(return_inverse=True, return_counts=True)
    place_P = torch.arange(len(rows_P)) - (counts_A.cumsum(0) - counts_A)[row_P]
    size = len(rows_A), int(counts_A.max())
    similarity, index = similarity_P.new_full(size, -torch.inf), index_P.new_full(size, -1)
    similarity[row_P, place_P], index[row_P, place_P] = similarity_P, index_P
    best.merge(rows_A, similarity, index)
