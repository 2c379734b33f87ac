"""SentEval's protocols: nested cross-validation, cross-validation on the training part, or a dev split."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xrep.evaluation.senteval import sklearn_classifier, torch_classifier
from xrep.evaluation.senteval.folds import Classifier, Fold, logits
from xrep.metrics.bootstrap import resampled, resampled_means
from xrep.metrics.correlation import pearson, spearman

SCORES = np.arange(1, 6)  # the possible relatedness scores
_RELATEDNESS = torch_classifier.Stopping(epochs=50, tenacity=3, maximum=1000)


Outcome = tuple[dict[str, float], np.ndarray]
"""Figures by name, and the first of them on resampled test examples, float64 [R] (``xrep.metrics.bootstrap``)."""


class Examples(NamedTuple):
    """Features, float32 [N, D], with classes, int64 [N], or scores, float64 [N]."""

    x: np.ndarray
    y: np.ndarray


def nested(examples: Examples, classes: int, classifier: Classifier, folds: int, seed: int) -> Outcome:
    """Run nested cross-validation (MR CR SUBJ MPQA).

    Each fold tests a classifier that was trained on the other folds. Its regularisation is chosen by an inner
    cross-validation on those other folds.

    Returns:
        ``accuracy``, on the test folds, and ``dev``, the mean of the best accuracies of the inner cross-validations, in
        percent.
    """
    x, y = examples
    outer = list(sklearn_classifier.stratified(y, folds, seed))
    chosen, dev = [], []
    for rows, _ in outer:
        inner = [Fold(rows[a], rows[b]) for a, b in sklearn_classifier.stratified(y[rows], folds, seed)]
        strength, accuracy = _choose(x, y, classes, classifier, classifier.grid, inner, seed)
        chosen.append([strength])
        dev.append(accuracy)
    fitted = classifier.fit(x, y, classes, [Fold(rows) for rows, _ in outer], np.array(chosen), seed)
    right, accuracies = np.zeros(len(y), dtype=bool), []
    for weights, (_, rows) in zip(fitted.weights, outer, strict=True):
        right[rows] = _right(Examples(x[rows], y[rows]), weights[0])
        accuracies.append(right[rows].mean())
    return {"accuracy": 100 * float(np.mean(accuracies)), "dev": float(np.mean(dev))}, _resampled(right)


def folded(train: Examples, test: Examples, classes: int, classifier: Classifier, folds: int, seed: int) -> Outcome:
    """Choose the regularisation by cross-validation on the training part, then train on all of it (TREC MRPC).

    Returns:
        ``accuracy``, ``dev`` and, for two classes, ``f1`` of class 1, in percent.
    """
    x, y = train
    inner = [Fold(*rows) for rows in sklearn_classifier.stratified(y, folds, seed)]
    strength, dev = _choose(x, y, classes, classifier, classifier.folded_grid, inner, seed)
    fitted = classifier.fit(x, y, classes, [Fold(np.arange(len(y)))], np.array([[strength]]), seed)
    right = _right(test, fitted.weights[0, 0])
    scores = {"accuracy": 100 * float(right.mean()), "dev": dev}
    if classes == 2:
        predicted = logits(test.x, fitted.weights[0, 0]).argmax(1)
        scores["f1"] = 100 * (2 * int((predicted & test.y).sum()) / max(1, int(predicted.sum() + test.y.sum())))
    return scores, _resampled(right)


def split(train: Examples, dev: Examples, test: Examples, classes: int, classifier: Classifier, seed: int) -> Outcome:
    """Choose the regularisation on the dev part, and test the classifier that is best there (SST2 SST5 SICK-E).

    Returns:
        ``accuracy`` and ``dev``, in percent.
    """
    x, y = np.concatenate([train.x, dev.x]), np.concatenate([train.y, dev.y])
    fold = Fold(np.arange(len(train.y)), np.arange(len(train.y), len(y)))
    fitted = classifier.fit(x, y, classes, [fold], np.array([classifier.grid]), seed)
    best = _best(fitted.scores)
    right = _right(test, fitted.weights[0, best])
    return {"accuracy": 100 * float(right.mean()), "dev": 100 * float(fitted.scores[0, best])}, _resampled(right)


def _right(test: Examples, weights: np.ndarray) -> np.ndarray:
    return logits(test.x, weights).argmax(1) == test.y


def _resampled(right: np.ndarray) -> np.ndarray:
    return 100 * resampled_means(right[:, None])[:, 0]


def _choose(
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    classifier: Classifier,
    grid: tuple[float, ...],
    folds: list[Fold],
    seed: int,
) -> tuple[float, float]:
    """Return the strength with the best mean accuracy on the folds' dev rows, and that accuracy in percent."""
    scores = classifier.fit(x, y, classes, folds, np.tile(grid, (len(folds), 1)), seed).scores
    best = _best(scores)
    return grid[best], 100 * float(scores[:, best].mean())


def _best(scores: np.ndarray) -> int:
    """Return the index of the best column of [F, R], the first if tied; percentages are rounded to two decimals as in
    SentEval."""
    return int(np.round(100 * scores.mean(axis=0), 2).argmax())


def relatedness(train: Examples, dev: Examples, test: Examples, classifier: Classifier, seed: int) -> Outcome:
    """Measure SICK-R with a trained regression, as in Tai et al. (2015), section 4.3.

    A score between two integers is represented as a distribution over these two. A linear layer with a softmax predicts
    the distribution, and its mean is the predicted score.

    SentEval's classifier minimises the squared error of the probabilities, without regularisation, and stops early by
    Pearson's correlation on dev, which is checked every 50 epochs. scikit-learn's classifier minimises the
    cross-entropy, and Pearson's correlation on dev chooses its regularisation.

    Returns:
        ``pearson``, ``spearman`` and ``dev`` (Pearson's correlation) times 100, and ``mse`` of the scores.
    """

    def score(values: np.ndarray) -> float:
        return _or_zero(pearson, expected_score(values), dev.y)

    if classifier.name == "senteval":
        x, targets = np.concatenate([train.x, dev.x]), distributions(np.concatenate([train.y, dev.y]))
        fitted = torch_classifier.train(
            x,
            targets,
            [Fold(np.arange(len(train.y)), np.arange(len(train.y), len(x)))],
            np.zeros((1, 1)),
            seed,
            torch_classifier.squared_error_gradient,
            lambda values, _: np.array([score(values[:, 0].numpy())]),
            _RELATEDNESS,
        )
        weights, best = fitted.weights[0, 0], float(fitted.scores[0, 0])
    else:
        weights, best = sklearn_classifier.fit_distributions(
            train.x, distributions(train.y), classifier.grid, lambda weights: score(logits(dev.x, weights))
        )
    predicted = expected_score(logits(test.x, weights))
    drawn = 100 * resampled(lambda rows: _or_zero(pearson, predicted[rows], test.y[rows]), len(predicted))
    scores = {
        "pearson": 100 * _or_zero(pearson, predicted, test.y),
        "spearman": 100 * _or_zero(spearman, predicted, test.y),
        "mse": float(((predicted - test.y) ** 2).mean()),
        "dev": 100 * best,
    }
    return scores, drawn


def distributions(scores: np.ndarray) -> np.ndarray:
    """Return scores of 1 to 5 [N] as distributions, float32 [N, 5], with that mean: 3.6 is 0.4 of 3 and 0.6 of 4."""
    return np.maximum(0, 1 - np.abs(scores[:, None] - SCORES)).astype(np.float32)


def expected_score(values: np.ndarray) -> np.ndarray:
    """Compute the mean score [N] of logits [N, 5]."""
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)) @ SCORES


def _or_zero(correlation: Callable[[np.ndarray, np.ndarray], float], x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation, or 0 if one side is constant, as in SentEval."""
    return correlation(x, y) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0
