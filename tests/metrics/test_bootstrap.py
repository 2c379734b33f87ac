"""Bootstrap intervals, compared with the known distribution of a mean and with plain draws."""

import numpy as np
import pytest
from scipy import stats

from xrep.metrics.bootstrap import interval, resampled, resampled_means, resampled_share

RIGHT = np.repeat([[1, 1], [0, 1]], [400, 100], axis=0)
"""Four fifths of 500 examples are right."""


def test_the_interval_of_an_accuracy_is_that_of_the_binomial_distribution() -> None:
    low, high = interval(resampled_share(RIGHT))
    expected = stats.binom.ppf([0.025, 0.975], 500, 0.8) / 5
    assert (low, high) == pytest.approx(tuple(expected), abs=0.6)


def test_the_mean_of_several_tests_is_surer_than_each() -> None:
    each = [resampled_share(RIGHT, seed) for seed in range(4)]
    alone, four = (np.diff(interval(np.mean(each[:count], axis=0)))[0] for count in (1, 4))
    assert four == pytest.approx(alone / 2, rel=0.15)


def test_every_statistic_has_the_same_draws_so_that_differences_are_paired() -> None:
    outcomes = np.random.default_rng(1).integers(0, 3, (200, 2))
    means = resampled_means(outcomes)
    each = [resampled(lambda rows, c=c: float(outcomes[rows, c].mean()), 200) for c in (0, 1)]
    np.testing.assert_allclose(means, np.stack(each, axis=1))
    better = outcomes[:, :1].copy()
    better[:10] += 1  # on ten of 200 examples
    differences = resampled_means(better)[:, 0] - means[:, 0]
    assert differences.min() >= 0 and interval(differences)[0] > 0


def test_draws_without_a_figure_are_left_out() -> None:
    def only_different(rows: np.ndarray) -> float:
        if (rows == rows[0]).all():
            raise ValueError("constant")
        return 1.0

    values = resampled(only_different, 2)
    assert len(values) == 1000 and 400 < np.isnan(values).sum() < 600 and interval(values) == (1.0, 1.0)
