from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies
from scipy import stats

from xrep.metrics.correlation import pearson, spearman


@given(strategies.integers(2, 60), strategies.integers(0, 2**32 - 1), strategies.booleans())
def test_correlations_are_those_of_scipy_ties_included(count: int, seed: int, ties: bool) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, count))
    if ties:
        x, y = np.round(x), np.round(y * 2) / 2
    if (x == x[0]).all() or (y == y[0]).all():
        with pytest.raises(ValueError, match="constant"):
            spearman(x, y)
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # ranks 1.5 1.5 3 4 with 1 2 3 4: covariance 4.5, variances 4.5 and 5
    assert spearman(np.array([7, 7, 8, 9]), np.array([1, 2, 3, 4])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_what_has_no_correlation_is_refused(correlation) -> None:
    for x, message in (([1.0], "at least 2"), ([1.0, np.nan, 2.0], "finite"), ([3.0, 3.0, 3.0], "constant")):
        with pytest.raises(ValueError, match=message):
            correlation(np.array(x), np.arange(len(x), dtype=float))
    with pytest.raises(ValueError, match="one length"):
        correlation(np.arange(3.0), np.arange(4.0))
