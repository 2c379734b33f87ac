"""How SentEval turns a set into a figure: nested folds, folds of the training part, or a dev split."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from xrep.evaluation.senteval import sklearn_classifier, torch_classifier
from xrep.evaluation.senteval.folds import Classifier, Fold, logits
from xrep.metrics.correlation import pearson, spearman

SCORES = np.arange(1, 6)  # of relatedness
_RELATEDNESS = torch_classifier.Stopping(epochs=50, tenacity=3, maximum=1000)


class Examples(NamedTuple):
    """Features float32 [N, D], and classes int64 [N] or scores float64 [N]."""

    x: np.ndarray
    y: np.ndarray


def nested(examples: Examples, classes: int, classifier: Classifier, folds: int, seed: int) -> dict[str, float]:
    """Nested cross-validation (MR CR SUBJ MPQA): each fold is the test of a classifier trained on the others, whose
    regularisation is chosen by cross-validation among these.

    Returns:
        ``accuracy`` on the test folds and ``dev``, the best accuracy of the inner validation, in percent.
    """
    x, y = examples
    outer = [Fold(*rows) for rows in sklearn_classifier.stratified(y, folds, seed)]
    chosen, dev = [], []
    for rows, _ in outer:
        inner = [Fold(rows[a], rows[b]) for a, b in sklearn_classifier.stratified(y[rows], folds, seed)]
        strength, accuracy = _choose(x, y, classes, classifier, inner, seed)
        chosen.append([strength])
        dev.append(accuracy)
    fitted = classifier.fit(x, y, classes, [Fold(rows) for rows, _ in outer], np.array(chosen), seed)
    accuracies = [
        (logits(x[rows], weights[0]).argmax(1) == y[rows]).mean()
        for weights, (_, rows) in zip(fitted.weights, outer, strict=True)
    ]
    return {"accuracy": 100 * float(np.mean(accuracies)), "dev": float(np.mean(dev))}


def folded(
    train: Examples, test: Examples, classes: int, classifier: Classifier, folds: int, seed: int
) -> dict[str, float]:
    """Cross-validation on the training part chooses the regularisation (TREC MRPC); all of it trains for the test.

    Returns:
        ``accuracy``, ``dev`` and, for two classes, ``f1`` of class 1, in percent.
    """
    x, y = train
    inner = [Fold(*rows) for rows in sklearn_classifier.stratified(y, folds, seed)]
    strength, dev = _choose(x, y, classes, classifier, inner, seed)
    fitted = classifier.fit(x, y, classes, [Fold(np.arange(len(y)))], np.array([[strength]]), seed)
    found = logits(test.x, fitted.weights[0, 0]).argmax(1)
    scores = {"accuracy": 100 * float((found == test.y).mean()), "dev": dev}
    return {**scores, "f1": 100 * _f1(found, test.y)} if classes == 2 else scores


def split(train: Examples, dev: Examples, test: Examples, classes: int, classifier: Classifier, seed: int) -> dict:
    """The dev part chooses the regularisation (SST2 SST5 SICK-E); the classifier that was best there is tested.

    Returns:
        ``accuracy`` and ``dev``, in percent.
    """
    x, y = np.concatenate([train.x, dev.x]), np.concatenate([train.y, dev.y])
    fold = Fold(np.arange(len(train.y)), np.arange(len(train.y), len(y)))
    fitted = classifier.fit(x, y, classes, [fold], np.array([classifier.grid]), seed)
    best = _best(fitted.scores)
    found = logits(test.x, fitted.weights[0, best]).argmax(1)
    return {"accuracy": 100 * float((found == test.y).mean()), "dev": 100 * float(fitted.scores[0, best])}


def _choose(
    x: np.ndarray, y: np.ndarray, classes: int, classifier: Classifier, folds: list[Fold], seed: int
) -> tuple[float, float]:
    """The strength that is best over the folds' dev rows, and its accuracy there in percent."""
    scores = classifier.fit(x, y, classes, folds, np.tile(classifier.grid, (len(folds), 1)), seed).scores
    best = _best(scores)
    return classifier.grid[best], 100 * float(scores[:, best].mean())


def _best(scores: np.ndarray) -> int:
    """The first of the best columns of [F, R]; percentages with two decimals are compared, as in SentEval."""
    return int(np.round(100 * scores.mean(axis=0), 2).argmax())


def _f1(found: np.ndarray, right: np.ndarray) -> float:
    hits = int((found & right).sum())
    return 2 * hits / max(1, int(found.sum() + right.sum()))


def relatedness(train: Examples, dev: Examples, test: Examples, classifier: Classifier, seed: int) -> dict[str, float]:
    """SICK-R with a trained regression, by Tai et al. (2015), section 4.3: a score between two integers is a
    distribution over these two, a linear layer with a softmax predicts the distribution, its mean is the score.

    SentEval's classifier minimises the squared error of the probabilities, without regularisation, and stops by
    Pearson on dev, which it looks at every 50 epochs; scikit-learn's minimises the cross-entropy.

    Returns:
        ``pearson``, ``spearman`` and ``dev`` (Pearson) times 100, and ``mse`` of the scores.
    """
    targets = distributions(np.concatenate([train.y, dev.y]))
    if classifier.name == "senteval":
        x, rows = np.concatenate([train.x, dev.x]), np.arange(len(train.y), len(targets))

        def score(values: np.ndarray) -> float:
            return _or_zero(pearson, expected_score(values), dev.y)

        fold = Fold(np.arange(len(train.y)), rows)
        fitted = torch_classifier.train(
            x,
            targets,
            [fold],
            np.zeros((1, 1)),
            seed,
            torch_classifier.squared_error_gradient,
            lambda values, _: np.array([score(values[:, 0].numpy())]),
            _RELATEDNESS,
        )
        weights, best = fitted.weights[0, 0], float(fitted.scores[0, 0])
    else:
        weights, best = sklearn_classifier.fit_distributions(
            train.x,
            targets[: len(train.y)],
            classifier.grid,
            lambda weights: _or_zero(pearson, expected_score(logits(dev.x, weights)), dev.y),
        )
    found = expected_score(logits(test.x, weights))
    error = float(((found - test.y) ** 2).mean())
    correlations = {
        "pearson": 100 * _or_zero(pearson, found, test.y),
        "spearman": 100 * _or_zero(spearman, found, test.y),
    }
    return {**correlations, "mse": error, "dev": 100 * best}


def distributions(scores: np.ndarray) -> np.ndarray:
    """Scores of 1 to 5 [N] as float32 [N, 5] whose mean is the score: 3.6 is 0.4 of 3 and 0.6 of 4."""
    return np.maximum(0, 1 - np.abs(scores[:, None] - SCORES)).astype(np.float32)


def expected_score(values: np.ndarray) -> np.ndarray:
    """The mean score [N] of logits [N, 5]."""
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)) @ SCORES


def _or_zero(correlation: Callable[[np.ndarray, np.ndarray], float], found: np.ndarray, gold: np.ndarray) -> float:
    """A constant correlates with nothing: 0, as in SentEval."""
    return correlation(found, gold) if np.ptp(found) > 0 and np.ptp(gold) > 0 else 0.0
