"""Both classifiers, against torch and scikit-learn with one model at a time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from xrep.evaluation.senteval import sklearn_classifier, torch_classifier
from xrep.evaluation.senteval.folds import Fold, logits
from xrep.evaluation.senteval.protocols import distributions, expected_score
from xrep.evaluation.senteval.sklearn_classifier import SklearnClassifier
from xrep.evaluation.senteval.torch_classifier import Stopping, TorchClassifier

pytest.importorskip("sklearn", reason="it is in the extra 'senteval'")


def points(count: int, classes: int, width: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy clusters, which no classifier separates perfectly: float32 [N, D], int64 [N]."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, count)
    x = generator.normal(size=(classes, width))[y] + generator.normal(scale=2, size=(count, width))
    return x.astype(np.float32), y


def alone(
    x: np.ndarray, y: np.ndarray, classes: int, fold: Fold, decay: float, seed: int, stop: Stopping
) -> tuple[np.ndarray, float, int]:
    """Train SentEval's classifier for one fold and strength, with torch's layer, loss and Adam."""
    order, (rows, dev) = np.random.RandomState(seed), fold
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = torch.nn.Linear(x.shape[1], classes)
    optimizer = torch.optim.Adam(layer.parameters(), weight_decay=decay)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    best, kept, misses, epochs = -1.0, copy.deepcopy(layer), 0, 0
    while epochs <= stop.maximum:
        for _ in range(stop.epochs):
            shuffled = torch.from_numpy(order.permutation(rows))
            for batch in shuffled.split(64):
                loss = torch.nn.functional.cross_entropy(layer(inputs[batch]), targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epochs += stop.epochs
        score = (layer(inputs[dev]).argmax(1) == targets[dev]).float().mean().item()
        if score > best:
            best, kept = score, copy.deepcopy(layer)
        elif misses >= stop.tenacity:
            break
        else:
            misses += 1
    return torch.cat([kept.weight.data.T, kept.bias.data[None]]).numpy(), best, epochs


@pytest.mark.parametrize("classes", [2, 4])
def test_many_at_once_are_what_each_is_alone(classes: int) -> None:
    """Folds have different sizes (epochs of 3, 2 and 1 batches), strengths and numbers of epochs."""
    x, y = points(260, classes)
    rows = np.random.default_rng(1).permutation(260)
    folds = [Fold(rows[:60], rows[200:]), Fold(rows[:190], rows[190:]), Fold(rows[50:178], rows[:50])]
    grid = np.array([[1e-5, 1e-1], [1e-3, 1.0], [1e-2, 1e-4]])
    fitted = TorchClassifier(stopping=Stopping(2, 2, 40)).fit(x, y, classes, folds, grid, seed=5)
    epochs = set()
    for fold, own in enumerate(folds):
        for place, decay in enumerate(grid[fold]):
            weights, score, ran = alone(x, y, classes, own, decay, 5, Stopping(2, 2, 40))
            np.testing.assert_allclose(fitted.weights[fold, place], weights, atol=2e-5)
            assert fitted.scores[fold, place] == pytest.approx(score)
            epochs.add(ran)
    assert len(epochs) > 1


def test_a_fold_without_dev_rows_holds_some_out() -> None:
    x, y = points(200, 2)
    fold, grid = Fold(np.arange(150)), np.array([[1e-4]])
    fitted = TorchClassifier().fit(x, y, 2, [fold], grid, seed=1)
    assert fitted.scores[0, 0] * 7 == pytest.approx(round(fitted.scores[0, 0] * 7))  # 5% of 150 rows
    y[150:] = 1 - y[150:]
    np.testing.assert_array_equal(TorchClassifier().fit(x, y, 2, [fold], grid, seed=1).weights, fitted.weights)


def test_the_gradient_of_the_squared_error_is_autograd() -> None:
    values = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.rand(7, 5, dtype=torch.float64)
    probabilities = values.softmax(1)
    ((probabilities - targets) ** 2).mean(1).sum().backward()
    found = torch_classifier.squared_error_gradient(probabilities.detach(), targets)
    torch.testing.assert_close(found, values.grad)


def assert_shares(x: np.ndarray, weights: np.ndarray, plain: Any) -> None:
    """Compare the probabilities by weights [D + 1, C] with those of scikit-learn's classifier."""
    odds = np.exp(logits(x, weights).astype(np.float64))
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), plain.predict_proba(x), atol=2e-3)


@pytest.mark.parametrize("classes", [2, 4])
def test_sklearn_from_a_warm_start_is_sklearn_from_nothing(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = points(300, classes)
    folds = [Fold(*rows) for rows in sklearn_classifier.stratified(y, 3, seed=0)] + [Fold(np.arange(200))]
    grid = np.tile([0.01, 1.0, 30.0], (4, 1))
    fitted = SklearnClassifier().fit(x, y, classes, folds, grid, seed=0)
    for fold, (train, dev) in enumerate(folds):
        for place, strength in enumerate(grid[fold]):
            plain = LogisticRegression(C=strength, tol=1e-8, max_iter=10000).fit(x[train].astype(np.float64), y[train])
            assert_shares(x, fitted.weights[fold, place], plain)
            if dev is not None:
                right = logits(x[dev], fitted.weights[fold, place]).argmax(1) == y[dev]
                assert fitted.scores[fold, place] == pytest.approx(right.mean())
    assert np.isnan(fitted.scores[3]).all()
    # A class that a fold lacks is never found.
    folds = [Fold(np.flatnonzero(y != 1), np.arange(300)), Fold(np.flatnonzero(y >= 2), np.arange(300))]
    for fold, found in zip(folds, ({0, 2, 3}, {2, 3}), strict=True) if classes == 4 else ():
        (weights,) = SklearnClassifier().fit(x, y, 4, [fold], np.ones((1, 1)), seed=0).weights
        assert set(logits(x, weights[0]).argmax(1)) == found


def test_scores_as_distributions() -> None:
    scores = np.array([1.0, 3.6, 5.0, 4.25])
    expected = [[1, 0, 0, 0, 0], [0, 0, 0.4, 0.6, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0.75, 0.25]]
    np.testing.assert_allclose(distributions(scores), expected, atol=1e-6)
    np.testing.assert_allclose(expected_score(np.log(distributions(scores) + 1e-12)), scores, rtol=2e-6)


def test_a_regression_on_distributions_is_one_on_their_draws() -> None:
    """An example with 0.4 of class 2 and 0.6 of class 3 equals two examples of class 2 and three of class 3."""
    from sklearn.linear_model import LogisticRegression

    x, y = points(150, 5, width=4)
    targets = np.eye(5)[y] * 0.4 + np.eye(5)[(y + 1) % 5] * 0.6
    seen: list[np.ndarray] = []

    def score(weights: np.ndarray) -> float:
        seen.append(weights)
        return -len(seen)

    weights, best = sklearn_classifier.fit_distributions(x, targets, (0.2, 1.0), score)
    drawn = np.concatenate([np.repeat(y, 2), np.repeat((y + 1) % 5, 3)])
    inputs = np.concatenate([np.repeat(x, 2, axis=0), np.repeat(x, 3, axis=0)]).astype(np.float64)
    plain = LogisticRegression(C=0.2 / 5, tol=1e-8, max_iter=10000).fit(inputs, drawn)
    assert_shares(x, weights, plain)
    assert best == -1 and len(seen) == 2 and weights is seen[0]
