"""Correlation of scores with gold scores."""

from __future__ import annotations

import numpy as np


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's r of two series [N], between -1 and 1, computed in float64.

    Raises:
        ValueError: The lengths differ, N is below 2, a number is not finite, or one series is constant.
    """
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ValueError(f"a correlation needs two series of one length, at least 2, got {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a correlation needs finite numbers")
    if (x == x[0]).all() or (y == y[0]).all():
        raise ValueError("a constant correlates with nothing")
    x, y = (series.astype(np.float64) - series.astype(np.float64).mean() for series in (x, y))
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rho, which is Pearson's r of the ranks; equal values get the mean of their ranks.

    Raises:
        ValueError: For the same reasons as ``pearson``.
    """
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a correlation needs finite numbers")
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
