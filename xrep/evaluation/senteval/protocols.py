"""SentEval's protocols: nested cross-validation, cross-validation on the training part, or a dev split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.senteval.linear_probe import Fold, fit, logits, squared_error_gradient
from xrep.metrics.bootstrap import resampled, resampled_means
from xrep.metrics.correlation import pearson, spearman

GRID = (1e-5, 1e-4, 1e-3, 1e-2)
"""Weight decays that are tried."""
SCORES = np.arange(1, 6)  # the possible relatedness scores

Outcome = tuple[dict[str, float], np.ndarray]
"""Figures by name, and the first of them on resampled test examples, float64 [R] (``xrep.metrics.bootstrap``). Those of
a classification are ``accuracy`` and ``dev``, the accuracy by which the weight decay was chosen, in percent."""


class SetData(NamedTuple):
    """The examples of a set, those of one split after those of another."""

    x: np.ndarray  # features, float32 [N, D]
    y: np.ndarray  # classes, int64 [N], or scores, float64 [N]
    targets: np.ndarray  # the same as distributions over classes, float32 [N, C]
    splits: Sequence[np.ndarray]  # rows of each split


def data_of(splits: Sequence[Examples], vectors: Sequence[np.ndarray]) -> SetData:
    """Return a set from the unnormalised vectors of each column of each split, float32 [N, D]. The features of
    sentences u are u, those of pairs [|u - v|, u * v]. Each split is in SentEval's order, by which it draws
    folds and batches: sorted by the number of words of each column, then by the target. A line without words, which is
    read as ``.``, has none."""
    following, parts = iter(vectors), []
    for split in splits:
        lengths = [[0 if text == "." else len(text.split()) for text in column] for column in split.columns]
        rows = np.lexsort([split.gold.tolist(), *reversed(lengths)])
        u, *v = (next(following)[rows] for _ in split.columns)
        x = np.concatenate([np.abs(u - v[0]), u * v[0]], axis=1) if v else u
        parts.append((x, split.gold[rows]))
    x, y = map(np.concatenate, zip(*parts, strict=True))
    targets = distributions(y) if y.dtype.kind == "f" else np.eye(max(2, 1 + y.max()), dtype=np.float32)[y]
    return SetData(x, y, targets, np.split(np.arange(len(y)), np.cumsum([len(split) for split in splits])[:-1]))


def protocol(splits: Mapping[str, Examples], folds: int) -> tuple[str, Callable[..., Outcome]]:
    """Return the description of the protocol for a set, and a function from its data and a seed. A UserError says that
    a class has less than two training examples per fold (one without folds)."""
    train = next(iter(splits.values()))
    if train.gold.dtype.kind == "f":
        return "dev split, regression", relatedness
    classes = max(2, *(1 + int(split.gold.max()) for split in splits.values()))
    counts, needed = np.bincount(train.gold, minlength=classes), 1 if "dev" in splits else 2 * folds
    if counts.min() < needed:
        problem = f"{train.name} has {counts.min()} training examples of class {counts.argmin()}, {needed} are needed"
        raise UserError(problem, path=train.files[0], cure=f"measure with fewer `folds` or without {train.name}")
    if "dev" in splits:
        return "dev split", split
    if "all" in splits:
        return f"nested {folds}-fold", partial(nested_cross_validation, folds=folds)
    return f"{folds}-fold on train", partial(folded, folds=folds)


def nested_cross_validation(data: SetData, seed: int, folds: int) -> Outcome:
    """Run nested cross-validation (MR CR SUBJ MPQA): each fold tests a classifier that was trained on the others, with
    a weight decay that is chosen by an inner cross-validation on these; ``dev`` is the mean of the best accuracies."""
    outer = _stratified(data, data.splits[0], folds, seed)
    choices = [_choose(data, _stratified(data, rows, folds, seed), seed) for rows, _ in outer]
    grid = np.array([[decay] for decay, _ in choices])
    fitted, _ = fit(data.x, data.targets, [(rows, None) for rows, _ in outer], grid, seed)
    right = np.zeros(len(data.y), dtype=bool)
    for weights, (_, rows) in zip(fitted, outer, strict=True):
        right[rows] = logits(data.x[rows], weights[0]).argmax(1) == data.y[rows]
    accuracy, dev = np.mean([right[rows].mean() for _, rows in outer]), np.mean([dev for _, dev in choices])
    return _outcome(right, float(dev), accuracy=100 * float(accuracy))


def folded(data: SetData, seed: int, folds: int) -> Outcome:
    """Choose the weight decay by cross-validation on the training part, then train on all of it (TREC MRPC). For two
    classes, ``f1`` is that of class 1."""
    train, test = data.splits
    decay, dev = _choose(data, _stratified(data, train, folds, seed), seed)
    weights, _ = fit(data.x, data.targets, [(train, None)], np.array([[decay]]), seed)
    predicted, y = logits(data.x[test], weights[0, 0]).argmax(1), data.y[test]
    if data.targets.shape[1] > 2:
        return _outcome(predicted == y, dev)
    f1 = 2 * int((predicted & y).sum()) / max(1, int(predicted.sum() + y.sum()))
    return _outcome(predicted == y, dev, f1=100 * f1)


def split(data: SetData, seed: int) -> Outcome:
    """Choose the weight decay on the dev part, and test the classifier that is best there (SST2 SST5 SICK-E)."""
    train, dev, test = data.splits
    weights, scores = fit(data.x, data.targets, [(train, dev)], np.array([GRID]), seed)
    best = _best(scores)
    predicted = logits(data.x[test], weights[0, best]).argmax(1)
    return _outcome(predicted == data.y[test], 100 * float(scores[0, best]))


def relatedness(data: SetData, seed: int) -> Outcome:
    """Measure SICK-R with a trained regression, as in Tai et al. (2015), section 4.3.

    A score between two integers is represented as a distribution over these two. A linear layer with a softmax predicts
    the distribution, and its mean is the predicted score. As in SentEval, training minimises the squared error of the
    probabilities, without regularisation, and stops early by Pearson's correlation on dev, which is checked every 50
    epochs. The figures are ``pearson``, ``spearman`` and ``dev`` (Pearson's correlation) times 100, and ``mse``.
    """

    def score(values: torch.Tensor, rows: np.ndarray) -> np.ndarray:
        return np.array([_or_zero(pearson, expected_score(values[:, 0].numpy()), data.y[rows])])

    train, dev, test = data.splits
    often = {"epochs": 50, "tenacity": 3, "maximum": 1000, "gradient": squared_error_gradient, "score": score}
    weights, scores = fit(data.x, data.targets, [(train, dev)], np.zeros((1, 1)), seed, **often)
    predicted, y = expected_score(logits(data.x[test], weights[0, 0])), data.y[test]
    figures = {
        "pearson": 100 * _or_zero(pearson, predicted, y),
        "spearman": 100 * _or_zero(spearman, predicted, y),
        "mse": float(((predicted - y) ** 2).mean()),
        "dev": 100 * float(scores[0, 0]),
    }
    return figures, 100 * resampled(lambda rows: _or_zero(pearson, predicted[rows], y[rows]), len(y))


def distributions(scores: np.ndarray) -> np.ndarray:
    """Return scores of 1 to 5 [N] as distributions, float32 [N, 5], with that mean: 3.6 is 0.4 of 3 and 0.6 of 4."""
    return np.maximum(0, 1 - np.abs(scores[:, None] - SCORES)).astype(np.float32)


def expected_score(values: np.ndarray) -> np.ndarray:
    """Compute the mean score [N] of logits [N, 5]."""
    shares = np.exp(values - values.max(axis=1, keepdims=True))
    return (shares / shares.sum(axis=1, keepdims=True)) @ SCORES


def _stratified(data: SetData, rows: np.ndarray, folds: int, seed: int) -> list[Fold]:
    """Return (other rows, rows of the fold) for each fold of some rows, stratified by class, as SentEval draws them."""
    from sklearn.model_selection import StratifiedKFold

    drawn = StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows[:, None], data.y[rows])
    return [(rows[others], rows[fold]) for others, fold in drawn]


def _choose(data: SetData, folds: Sequence[Fold], seed: int) -> tuple[float, float]:
    """Return the weight decay with the best mean accuracy on the folds' dev rows, and that accuracy in percent."""
    _, scores = fit(data.x, data.targets, folds, np.tile(GRID, (len(folds), 1)), seed)
    best = _best(scores)
    return GRID[best], 100 * float(scores[:, best].mean())


def _best(scores: np.ndarray) -> int:
    """Return the best column of [F, R], the first if tied; percentages are rounded to two decimals as in SentEval."""
    return int(np.round(100 * scores.mean(axis=0), 2).argmax())


def _outcome(right: np.ndarray, dev: float, **others: float) -> Outcome:
    return {"accuracy": 100 * float(right.mean()), "dev": dev, **others}, 100 * resampled_means(right[:, None])[:, 0]


def _or_zero(correlation: Callable[[np.ndarray, np.ndarray], float], x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation, or 0 if one side is constant, as in SentEval."""
    return correlation(x, y) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0
