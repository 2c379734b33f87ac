"""Correlation of scores with gold scores."""

from __future__ import annotations

import numpy as np


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's r of two series [N], between -1 and 1, computed in float64.

    Raises:
        ValueError: The lengths differ, a number is not finite, or one series is constant, as every series of one is.
    """
    if not (0 < np.ptp(x) < np.inf and 0 < np.ptp(y) < np.inf):
        raise ValueError("a correlation needs numbers that are finite, and a constant correlates with nothing")
    x, y = (series.astype(np.float64) - series.astype(np.float64).mean() for series in (x, y))
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rho, which is Pearson's r of the ranks; equal values get the mean of their ranks.

    Raises:
        ValueError: For the same reasons as ``pearson``, but infinite numbers have ranks.
    """
    from scipy.stats import rankdata  # takes half a second

    return pearson(rankdata(x), rankdata(y))
