"""Bootstrap confidence intervals (Efron, 1979): a figure is computed again on examples that are drawn with replacement.

They say how much a figure depends on the examples that the test happens to have. They say nothing about the seeds of
training, which need several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES, COVERED = 1000, 95.0


def resampled_means(outcomes: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> np.ndarray:
    """Return the means of each column of ``outcomes`` [N, C] over N rows drawn with replacement: float64 [R, C].

    The rows that are drawn depend on N and the seed alone. So the differences between the means of two systems, whose
    outcomes on the same examples are in the same order, are those of a paired bootstrap. This holds for ``resampled``,
    too.
    """
    generator, size, values = np.random.default_rng(seed), len(outcomes), outcomes.astype(np.float64)
    drawn = (np.bincount(generator.integers(0, size, size), minlength=size) for _ in range(resamples))
    return np.stack([counts @ values for counts in drawn]) / size


def resampled(
    statistic: Callable[[np.ndarray], float], size: int, seed: int = 0, resamples: int = RESAMPLES
) -> np.ndarray:
    """Return a statistic of rows, int64 [size], that are drawn from ``size`` with replacement: float64 [R].

    It is NaN for draws on which the statistic raises ValueError, such as the correlation of equal scores.
    """
    generator, values = np.random.default_rng(seed), []
    for _ in range(resamples):
        try:
            values.append(statistic(generator.integers(0, size, size)))
        except ValueError:
            values.append(np.nan)
    return np.array(values, dtype=np.float64)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the bounds of the middle 95% of resampled figures [R], of which those that are NaN are left out."""
    low, high = np.nanpercentile(values, [(100 - COVERED) / 2, (100 + COVERED) / 2])
    return float(low), float(high)


def shown_difference(difference: Sequence[float]) -> str:
    """Return a difference and the bounds of its interval as text."""
    value, low, high = difference
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"


def resampled_share(outcomes: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the percentage that the sum of the first column of ``outcomes`` [N, 2] is of the sum of the second one,
    over rows drawn with replacement: float64 [R].

    A row (1 or 0, 1) for each example gives the accuracy, (twice the right, the extracted and the gold pairs) the F1.
    """
    part, whole = resampled_means(outcomes, seed).T
    return 100 * part / np.where(whole > 0, whole, 1)
