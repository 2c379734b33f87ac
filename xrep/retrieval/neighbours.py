"""Exact nearest neighbours between two sets of vectors, in both directions from one matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xrep.kernels.precision import accumulation_dtype, multiply, operand_dtype
from xrep.retrieval.best import Best, padded
from xrep.retrieval.screening import Rounded, screens, update_screened
from xrep.store.vectors import normalize_rows as normalize_rows

TILE = 2000
"""Rows and columns of a tile of similarities on a CPU: 16 MB of float32 stay in cache while rows and columns are
searched. It is not a power of two, because the maxima of columns would then read addresses that share a cache set."""
CUDA_TILE = 16000
"""The same on a GPU, where a tile must be large enough to keep thousands of units busy: 1 GB."""


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
                if update_screened(*sides, row_best, column_best, first_x + row, first_y + column):
                    continue
                rounded = None
            tile_BC = memory.resize_(len(rows_BD) * len(columns_CD)).view(len(rows_BD), len(columns_CD))
            multiply(rows_BD, columns_CD.t(), out=tile_BC)
            whole = padded(tile_BC)
            row_best.update(whole[: len(rows_BD)], first_y + column)
            column_best.update(whole[:, : len(columns_CD)].t(), first_x + row)
        advance(len(rows_BD) * len(y_CD))


def neighbours(x: np.ndarray, y: np.ndarray, k: int) -> Neighbours:
    """Find the k nearest neighbours by inner product (cosine if the rows are L2-normalised), in both directions.

    One product serves both directions: each tile of similarities updates the k best of its rows and of its columns, so
    memory does not grow with N times M.

    Args:
        x, y: [N, D] and [M, D] float. Products are taken in float32, or in float64 if either side is float64.

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
    sides = [torch.from_numpy(np.require(side, common, ["C", "W"])) for side in (x, y)]
    sides = [side.to(operand_dtype(side)) for side in sides]
    nearest = [Best.none(len(side), k, accumulation_dtype(sides[0])) for side in sides]
    search_block(sides[0], sides[1], nearest[0], nearest[1], 0, 0)
    return Neighbours.of(*nearest)
