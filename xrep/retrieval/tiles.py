"""Exact nearest neighbours between two sets of vectors, in both directions from one matrix product.

The similarities of a tile, some rows of each side, come from a matrix product whose error has a bound, by the rounding
of each vector and of the sums. A pair whose product lies further below the k-th best than the bound cannot be among the
k best. The product only proposes the others, and ``pair_similarities`` decides. So it may be computed in bfloat16,
which takes a small part of the time of float32 on CPUs that have instructions for it, in float16 on a GPU, or in
float32: the neighbours are the same, bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import accumulation_dtype, multiplies_bfloat16, multiply
from xrep.retrieval.topk import TopK, pair_similarities

TILE, CUDA_TILE = 2000, 16000
"""Rows and columns of a tile on a CPU, where 16 MB of float32 stay in cache, and on a GPU, where 1 GB keeps thousands
of units busy. With powers of two, the maxima of columns would read addresses that share a cache set."""
FEWEST = 1000
"""Fewest vectors of a side that are multiplied in bfloat16: the maxima of groups bound the k-th best."""
_GROUPS = (20, 10, 5, 4, 2, 1)
"""Possible numbers of similarities in a group, whose maximum is taken first. The first divides the sizes of both tiles,
so that only the last tiles need padding; the others divide the first."""
_MOST = 1 / 8
"""Largest share of the pairs of a tile that is worth comparing one by one."""
_ROWS = 2048
"""Number of vectors whose rounding error is measured at a time."""


class Operand(NamedTuple):
    """Vectors [N, D]; the same in bfloat16 or float16 if this saves time, or else as they are; their lengths [N] and
    those of their rounding errors [N]."""

    vectors: Tensor
    rounded: Tensor
    length: Tensor
    error: Tensor

    @classmethod
    def of(cls, vectors: Tensor) -> Operand:
        """Prepare vectors of float32 or float64."""
        on_cpu, length = vectors.device.type == "cpu", vectors.norm(dim=1)
        saves = len(vectors) >= FEWEST and (not on_cpu or multiplies_bfloat16())
        if vectors.dtype != torch.float32 or not saves:
            return cls(vectors, vectors, length, torch.zeros_like(length))
        rounded = vectors.to(torch.bfloat16 if on_cpu else torch.float16)
        parts = zip(vectors.split(_ROWS), rounded.split(_ROWS), strict=True)
        return cls(vectors, rounded, length, torch.cat([(part - low.float()).norm(dim=1) for part, low in parts]))

    def exact(self) -> Operand:
        """Return the same vectors, to be multiplied as they are."""
        return Operand(self.vectors, self.vectors, self.length, torch.zeros_like(self.length))

    def slice(self, start: int, stop: int) -> Operand:
        """Return some of the vectors."""
        return Operand(*(part[start:stop] for part in self))


def neighbours(x: np.ndarray, y: np.ndarray, k_x: int, k_y: int) -> tuple[TopK, TopK]:
    """Find the nearest neighbours by inner product (cosine if the rows are L2-normalised): ``k_x`` rows of y for each
    row of x, and ``k_y`` rows of x for each row of y. With 0 a direction is left out.

    One product serves both directions: each tile of similarities updates the best of its rows and of its columns, so
    memory does not grow with N times M. Of equal similarities the lowest index comes first.

    Args:
        x, y: [N, D] and [M, D] float. Similarities are float32, or float64 if either side is float64.

    Returns:
        For each row of x, indices of rows of y and similarities, [N, k_x]; the same for each row of y, [M, k_y].

    Raises:
        ValueError: one side is empty, the widths differ, or a side has not so many rows.
    """
    is_possible = 0 <= k_x <= len(y) and 0 <= k_y <= len(x) and k_x + k_y
    if not is_possible or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"there are not {k_x} and {k_y} neighbours between vectors {x.shape} and {y.shape}")
    common = np.result_type(x, y, np.float32)
    one, other = (torch.from_numpy(np.require(side, common, ["C", "W"])) for side in (x, y))
    best_x, best_y = TopK.none(len(x), k_x, one.dtype), TopK.none(len(y), k_y, one.dtype)
    search_tile(Operand.of(one), Operand.of(other), best_x, best_y, 0, 0)
    return best_x, best_y


def search_tile(x: Operand, y: Operand, best_x: TopK, best_y: TopK, first_x: int, first_y: int) -> None:
    """Compare rows of x from ``first_x`` on with rows of y from ``first_y`` on, and merge what is found into the best
    of these rows. With k = 0 a side is not searched for. The vectors have one type and are on one device."""
    height = width = CUDA_TILE if x.vectors.is_cuda else TILE
    if not best_y.k:  # the more columns are compared at a time, the fewer seem to be among the k best at first
        height, width = height // 4, width * 4
    if x.rounded.dtype != y.rounded.dtype:
        x, y = x.exact(), y.exact()
    for row in range(0, len(best_x), height):
        for column in range(0, len(best_y), width):
            rows, columns = x.slice(row, row + height), y.slice(column, column + width)
            bests = best_x.slice(row, row + height), best_y.slice(column, column + width)
            firsts = first_x + row, first_y + column
            screened = _screen(rows, columns, *bests, *firsts)
            if not screened and rows.rounded.dtype != rows.vectors.dtype:
                x, y = x.exact(), y.exact()  # those that follow are probably of the same kind
                rows, columns = rows.exact(), columns.exact()
                screened = _screen(rows, columns, *bests, *firsts)
            if not screened:
                _compare_all(rows, columns, *bests, *firsts)


def _screen(x: Operand, y: Operand, best_x: TopK, best_y: TopK, first_x: int, first_y: int) -> bool:
    """Compare the pairs that a product proposes, and return whether it could tell which pairs matter.

    It cannot if they are too many, or a row has fewer than k neighbours so far. In bfloat16 it cannot either if the
    k-th best similarity of a row is near 0 or below: positive numbers are ordered like the whole numbers that have the
    same bits, which torch compares in a fraction of the time, and all negative numbers become negative ones.
    """
    in_bfloat16 = x.rounded.dtype == torch.bfloat16
    products = torch.mm(x.rounded, y.rounded.t()) if in_bfloat16 else multiply(x.rounded, y.rounded.t())
    ragged = (0, -products.size(1) % _GROUPS[0], 0, -products.size(0) % _GROUPS[0])
    products = F.pad(products, ragged, value=-torch.inf) if any(ragged) else products
    products = products.view(torch.int16) if in_bfloat16 else products
    for one, other, best, first, tile in (  # the tile of one direction is the transposed one of the other
        (x, y, best_x, first_y, products[: len(x.vectors)]),
        (y, x, best_y, first_x, products.t()[: len(y.vectors)]),
    ):
        if not best.k:
            continue
        groups = _maxima_of_groups(tile, best.k)
        least = _least(one, other, best, groups)
        if not (least > (0 if in_bfloat16 else -torch.inf)).all():
            return False
        if in_bfloat16:
            least = (least.view(torch.int32) >> 16).to(torch.int16)  # the next lower number in bfloat16
        rows, columns = _reaching(tile, groups, least)
        if len(rows) > _MOST * products.numel():
            return False
        if len(rows):
            similarity = pair_similarities(one.vectors, other.vectors, rows, columns)
            _merge(best, rows, columns + first, similarity)
    return True


def _maxima_of_groups(products: Tensor, k: int) -> Tensor:
    """Return the maxima of G groups of each row, [R, G], of which there should be 2 k at least. Group g has the columns
    g, g + G, g + 2 G and so on."""
    size = next(size for size in _GROUPS if products.size(1) >= 2 * k * size or size == 1)
    if products.stride(1) == 1:
        return products.unflatten(1, (size, -1)).amax(1)
    # A transposed tile is read in its order in memory: the result is the same, 30 times faster.
    return products.t().unflatten(0, (size, -1)).amax(0).t()


def _least(one: Operand, other: Operand, best: TopK, groups: Tensor) -> Tensor:
    """Return for each row of one side the least product that a pair among its k best can have, [R]."""
    length, error = one.length + one.error, other.error.max()
    longest = other.length.max()
    # Of the sums of products, whatever their order, and of those in pair_similarities: four times what proofs need.
    of_sums = (one.vectors.size(1) + 8) * (2.0**-51 if one.vectors.dtype == torch.float64 else 2.0**-22)
    # Lengths were rounded as well, by far less than a hundredth. Numbers near 0 may be taken for 0.
    bound = 1.01 * (one.error * longest + length * error + of_sums * length * (longest + error)) + 2.0**-110
    rounding = 2.0**-8 if groups.dtype == torch.int16 else 0.0  # of a product to bfloat16, twice over
    known = best.similarity[:, -1]
    new = known == -torch.inf
    if new.any() and min(groups.size(1), len(other.vectors)) >= best.k:
        # At least k similarities of the tile are as high as the k-th of the maxima of groups.
        product = groups[new].topk(best.k).values[:, -1].contiguous()
        product = product.view(torch.bfloat16).float() if groups.dtype == torch.int16 else product
        known = known.clone()
        known[new] = product - rounding * product.abs() - bound[new]
    least = known - bound
    return least - rounding * least.abs() if rounding else least


def _reaching(products: Tensor, groups: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and columns of products that reach their row's least one, in the order of the rows."""
    rows_A, group_A = (groups >= least.unsqueeze(1)).nonzero(as_tuple=True)
    steps = torch.arange(0, products.size(1), groups.size(1), device=products.device)
    columns_AE = group_A.unsqueeze(1) + steps
    reaching = products[rows_A.unsqueeze(1), columns_AE] >= least[rows_A].unsqueeze(1)
    return rows_A.unsqueeze(1).expand_as(columns_AE)[reaching], columns_AE[reaching]


def _merge(best: TopK, rows_P: Tensor, index_P: Tensor, similarity_P: Tensor) -> None:
    """Merge pairs, in the order of their rows, into the best neighbours."""
    rows_A, row_P, counts_A = rows_P.unique_consecutive(return_inverse=True, return_counts=True)
    place_P = torch.arange(len(rows_P), device=rows_P.device) - (counts_A.cumsum(0) - counts_A)[row_P]
    found = TopK.none(len(rows_A), int(counts_A.max()), similarity_P.dtype, similarity_P.device)
    found.similarity[row_P, place_P], found.index[row_P, place_P] = similarity_P, index_P
    best.merge(found, rows_A)


def _compare_all(x: Operand, y: Operand, best_x: TopK, best_y: TopK, first_x: int, first_y: int) -> None:
    """Compare all pairs, for vectors so near to each other that products cannot tell which pairs matter.

    A product in float64 is near enough to the similarity that both are rounded to the same float32, with a few
    exceptions that are known by the bound of its error.
    """
    for row in range(0, len(x.vectors), TILE):
        for column in range(0, len(y.vectors), TILE):
            rows, columns = x.vectors[row : row + TILE], y.vectors[column : column + TILE]
            products = rows.double() @ columns.double().t()
            error = (rows.size(1) + 8) * 2.0**-51 * float(x.length.max()) * float(y.length.max())
            similarity, high = (near.to(accumulation_dtype(rows)) for near in (products - error, products + error))
            unsure = (similarity != high).nonzero(as_tuple=True)
            if len(unsure[0]):
                similarity[unsure] = pair_similarities(rows, columns, *unsure)
            for best, tile, start, first in (
                (best_x, similarity, row, first_y + column),
                (best_y, similarity.t(), column, first_x + row),
            ):
                if best.k:
                    top = tile.sort(dim=1, descending=True, stable=True)
                    found = TopK(top.values[:, : best.k], top.indices[:, : best.k] + first)
                    best.slice(start, start + TILE).merge(found)
