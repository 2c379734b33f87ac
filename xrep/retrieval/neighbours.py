"""Exact nearest neighbours between two sets of vectors, in both directions from one matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import accumulation_dtype, multiply, operand_dtype
from xrep.retrieval.screening import Rounded, screens, update_screened

TILE = 2000
"""Rows and columns of a tile of similarities on a CPU: 16 MB of float32 stay in cache while rows and columns are
searched. It is not a power of two, because the maxima of columns would then read addresses that share a cache set."""
CUDA_TILE = 16000
"""The same on a GPU, where a tile must be large enough to keep thousands of units busy: 1 GB."""
_GROUP = 20
"""Number of similarities in a group. The maximum of each group is taken first. It divides the sizes of both tiles, so
that only the last tiles need padding."""


@dataclass(frozen=True)
class Neighbours:
    """The k nearest rows of the other side, nearest first; of equal similarities the lowest index comes first.

    ``xy`` int64 [N, k] has the indices of rows of y for each row of x, ``xy_similarity`` their inner products; ``yx``
    and ``yx_similarity`` [M, k] are the same for each row of y.
    """

    xy: np.ndarray
    xy_similarity: np.ndarray
    yx: np.ndarray
    yx_similarity: np.ndarray

    @classmethod
    def of(cls, xy: Best, yx: Best) -> Neighbours:
        return cls(*(part.cpu().numpy() for part in (xy.index, xy.similarity, yx.index, yx.similarity)))


@dataclass
class Best:
    """The k best similarities found so far for each of R rows, and their indices: [R, k], best first.

    Blocks of columns must come in the order of their indices: of equal similarities the first one stays.
    """

    similarity: Tensor
    index: Tensor

    @classmethod
    def none(cls, rows: int, k: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Best:
        """Return no neighbours yet: similarity -inf, index -1."""
        similarity = torch.full((rows, k), -torch.inf, dtype=dtype, device=device)
        return cls(similarity, torch.full((rows, k), -1, dtype=torch.int64, device=device))

    def slice(self, start: int, stop: int) -> Best:
        """Return the part for some rows. It shares memory with this object, so an update of the part updates both."""
        return Best(self.similarity[start:stop], self.index[start:stop])

    def update(self, tile_RC: Tensor, offset: int) -> None:
        """Search a block of columns whose first column has the index ``offset``; -inf is never better.

        Most rows find nothing better in a block. One pass over the tile computes the maxima of groups of similarities,
        which show which rows do. The k + 1 best groups contain the k + 1 best similarities.
        """
        k = self.similarity.size(1)
        if tile_RC.stride(1) == 1:
            groups_RG = tile_RC.unflatten(1, (_GROUP, -1)).amax(1)
        else:  # read a transposed tile in its order in memory: the result is the same, 30 times faster
            groups_RG = tile_RC.t().unflatten(0, (_GROUP, -1)).amax(0).t()
        rows_A = (groups_RG.amax(1) > self.similarity[:, -1]).nonzero().squeeze(1)
        if not len(rows_A):
            return
        chosen_AK = groups_RG[rows_A].topk(min(k + 1, groups_RG.size(1))).indices
        steps = torch.arange(_GROUP, device=tile_RC.device) * groups_RG.size(1)
        columns_AE = (chosen_AK[:, :, None] + steps).flatten(1)
        values_AE = tile_RC[rows_A[:, None], columns_AE]
        top = values_AE.topk(min(k + 1, values_AE.size(1)))
        columns_AK = columns_AE.gather(1, top.indices)
        similarity_AK, index_AK = top.values[:, :k], columns_AK[:, :k]
        if top.values.size(1) > k:
            tied = top.values[:, k - 1] == top.values[:, k]
            tied &= top.values[:, k] > self.similarity[rows_A, -1]
            if tied.any():  # topk does not define which of equal values it takes
                whole = tile_RC[rows_A[tied]].sort(dim=1, descending=True, stable=True)
                similarity_AK[tied], index_AK[tied] = whole.values[:, :k], whole.indices[:, :k]
        index_AK, order = index_AK.sort(dim=1)
        self.merge(rows_A, similarity_AK.gather(1, order), index_AK + offset)

    def merge(self, rows_A: Tensor | slice, similarity_AK: Tensor, index_AK: Tensor) -> None:
        """Keep the best of the known neighbours of some rows and new ones [A, P], whose indices must be higher: the
        sort is stable, so a new one does not replace an equal one."""
        k = self.similarity.size(1)
        both = torch.cat((self.similarity[rows_A], similarity_AK), dim=1).sort(dim=1, descending=True, stable=True)
        index = torch.cat((self.index[rows_A], index_AK), dim=1).gather(1, both.indices[:, :k])
        self.similarity[rows_A], self.index[rows_A] = both.values[:, :k], index


def search_block(
    x_BD: Tensor,
    y_CD: Tensor,
    best_x: Best,
    best_y: Best,
    first_x: int,
    first_y: int,
    advance: Callable[[int], object] = lambda _: None,
) -> None:
    """Compare rows of x from ``first_x`` on with rows of y from ``first_y`` on, and update the best of exactly these
    rows. The vectors of both sides have one type and are on one device.

    Args:
        advance: Called with the number of further comparisons that are done.
    """
    edge = CUDA_TILE if x_BD.is_cuda else TILE
    rounded = [Rounded.of(side) for side in (x_BD, y_CD)] if screens(x_BD, y_CD, best_x, best_y) else None
    memory = torch.empty(0, dtype=accumulation_dtype(x_BD), device=x_BD.device)
    for row in range(0, len(x_BD), edge):
        rows_BD = x_BD[row : row + edge]
        for column in range(0, len(y_CD), edge):
            columns_CD = y_CD[column : column + edge]
            row_best = best_x.slice(row, row + len(rows_BD))
            column_best = best_y.slice(column, column + len(columns_CD))
            if rounded is not None:
                sides = rounded[0].slice(row, row + edge), rounded[1].slice(column, column + edge)
                if update_screened(*sides, row_best, column_best, first_x + row, first_y + column, _GROUP):
                    continue
                rounded = None
            tile_BC = memory.resize_(len(rows_BD) * len(columns_CD)).view(len(rows_BD), len(columns_CD))
            multiply(rows_BD, columns_CD.t(), out=tile_BC)
            ragged = (0, -len(columns_CD) % _GROUP, 0, -len(rows_BD) % _GROUP)
            padded = F.pad(tile_BC, ragged, value=-torch.inf) if any(ragged) else tile_BC
            row_best.update(padded[: len(rows_BD)], first_y + column)
            column_best.update(padded[:, : len(columns_CD)].t(), first_x + row)
        advance(len(rows_BD) * len(y_CD))


def normalize_rows(x: np.ndarray) -> np.ndarray:
    """Return ``x`` [N, D] with each row divided by its L2 norm, so that inner products are cosines; zero rows stay."""
    with np.errstate(over="ignore", under="ignore"):
        norms = np.linalg.norm(x, axis=1, keepdims=True)
    extreme = ~((norms[:, 0] > 1e-15) & (norms[:, 0] < np.inf))
    if extreme.any():  # squares of such numbers are too small or too large for float32
        x, largest = x.copy(), np.abs(x[extreme]).max(axis=1, initial=0, keepdims=True)
        x[extreme] /= np.where(largest > 0, largest, 1)
        norms[extreme] = np.linalg.norm(x[extreme], axis=1, keepdims=True)
    return x / np.maximum(norms, np.finfo(x.dtype).tiny)


def neighbours(x: np.ndarray, y: np.ndarray, k: int, *, device: str | torch.device = "cpu") -> Neighbours:
    """Find the k nearest neighbours by inner product (cosine if the rows are L2-normalised), in both directions.

    One product serves both directions: each tile of similarities updates the k best of its rows and of its columns, so
    memory does not grow with N times M.

    Args:
        x, y: [N, D] and [M, D] float. Products are taken in float32, or in float64 if either side is float64.
        device: device on which products are computed; both sides must fit on it.

    Raises:
        ValueError: one side is empty, the widths differ, or k is not between 1 and the size of the smaller side.
    """
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"neighbours need [N, D] and [M, D], got {x.shape} and {y.shape}")
    if not len(x) or not len(y):
        raise ValueError("there is no nearest neighbour in an empty set")
    if not 1 <= k <= min(len(x), len(y)):
        raise ValueError(f"{k} neighbours of {len(x)} and {len(y)} vectors")
    common = np.result_type(x, y)
    sides = [torch.from_numpy(np.require(side, common, ["C", "W"])).to(device) for side in (x, y)]
    sides = [side.to(operand_dtype(side)) for side in sides]
    nearest = [Best.none(len(side), k, accumulation_dtype(sides[0]), device) for side in sides]
    search_block(*sides, *nearest, 0, 0)
    return Neighbours.of(*nearest)
