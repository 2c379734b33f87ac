"""Exact nearest neighbours of vectors in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from xrep.retrieval.topk import TopK


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
    import torch  # here, because options and figures that do not search do not wait for it

    from xrep.retrieval.tiles import Operand, search_tile
    from xrep.retrieval.topk import TopK

    is_possible = 0 <= k_x <= len(y) and 0 <= k_y <= len(x) and k_x + k_y
    if not is_possible or x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"there are not {k_x} and {k_y} neighbours between vectors {x.shape} and {y.shape}")
    common = np.result_type(x, y, np.float32)
    one, other = (torch.from_numpy(np.require(side, common, ["C", "W"])) for side in (x, y))
    best_x, best_y = TopK.none(len(x), k_x, one.dtype), TopK.none(len(y), k_y, one.dtype)
    search_tile(Operand.of(one), Operand.of(other), best_x, best_y, 0, 0)
    return best_x, best_y
