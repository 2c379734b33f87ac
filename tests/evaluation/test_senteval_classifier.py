"""SentEval's classifier and its regression, against torch with one model at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.senteval_sets import alone
from xrep.evaluation.senteval.classifier import Fold, fit, squared_error_gradient
from xrep.evaluation.senteval.protocols import distributions, expected_score


def points(count: int, classes: int, width: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy clusters, which no classifier separates perfectly: float32 [N, D], int64 [N]."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, count)
    x = generator.normal(size=(classes, width))[y] + generator.normal(scale=2, size=(count, width))
    return x.astype(np.float32), y


@pytest.mark.parametrize("classes", [2, 4])
def test_many_at_once_are_what_each_is_alone(classes: int) -> None:
    """Folds have different sizes (epochs of 3, 2 and 1 batches), weight decays and numbers of epochs."""
    x, y = points(260, classes)
    rows = np.random.default_rng(1).permutation(260)
    folds: list[Fold] = [(rows[:60], rows[200:]), (rows[:190], rows[190:]), (rows[50:178], rows[:50])]
    grid = np.array([[1e-5, 1e-1], [1e-3, 1.0], [1e-2, 1e-4]])
    rule: Any = {"epochs": 2, "tenacity": 2, "maximum": 40}
    weights, scores = fit(x, np.eye(classes, dtype=np.float32)[y], folds, grid, 5, **rule)
    epochs = set()
    for fold, own in enumerate(folds):
        for place, decay in enumerate(grid[fold]):
            layer, score, ran = alone(x, y, own, decay, 5, **rule)
            expected = torch.cat([layer.weight.data.T, layer.bias.data[None]]).numpy()
            np.testing.assert_allclose(weights[fold, place], expected, atol=2e-5)
            assert scores[fold, place] == pytest.approx(score)
            epochs.add(ran)
    assert len(epochs) > 1


def test_the_gradient_of_the_squared_error_is_autograd() -> None:
    values = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(7, 5, dtype=torch.float64)
    probabilities = values.softmax(1)
    ((probabilities - targets) ** 2).mean(1).sum().backward()
    found = squared_error_gradient(probabilities.detach(), targets)
    torch.testing.assert_close(found, values.grad)


def test_scores_as_distributions() -> None:
    scores = np.array([1.0, 3.6, 5.0, 4.25])
    expected = [[1, 0, 0, 0, 0], [0, 0, 0.4, 0.6, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0.75, 0.25]]
    np.testing.assert_allclose(distributions(scores), expected, atol=1e-6)
    np.testing.assert_allclose(expected_score(np.log(distributions(scores) + 1e-12)), scores, rtol=2e-6)
