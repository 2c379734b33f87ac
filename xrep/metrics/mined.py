"""How many of the mined pairs are right, estimated from their scores.

A source has at most one pair. Its score follows one of two distributions: that of right pairs, or that of wrong ones,
where the translation is not in the other text, or another sentence is nearer. ``judge_by_planting`` learns both from
trusted pairs: each is planted into the two texts, once with its translation and once without it. ``judge_alone`` has
only the scores themselves: what a source would be paired with if its best candidate were not there is an example of a
wrong pair, if the best candidate is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

FEWEST_JUDGED = 100
"""Number of sentences of which at least the scores are needed to judge them alone."""
_STEPS = 10_000
"""Scores are counted, and thresholds chosen, in steps of 1 / 10,000, so that a threshold is printed exactly."""
_PENALTY = 0.1
"""Penalty of the square of a change of slope, chosen on everyday sentences and on news."""
_GRID, _ROUNDS = 400, 60
_SMALL = 0.12
"""Share of right pairs up to which its growth must slow down while the scores are judged alone."""
_DRAWS = 200
"""Number of resamples of the trusted pairs for an interval."""


@dataclass(frozen=True)
class ScoreCounts:
    """Numbers of pairs [B] by their scores, which are rounded down to a step: ``score`` [B], in ascending order."""

    score: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, scores: np.ndarray) -> ScoreCounts:
        step, count = np.unique(np.floor(scores.astype(np.float64) * _STEPS), return_counts=True)
        return cls(step / _STEPS, count)

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        score, place = np.unique(np.concatenate((self.score, other.score)), return_inverse=True)
        return ScoreCounts(score, np.bincount(place, np.concatenate((self.count, other.count))).astype(np.int64))

    def threshold(self, count: int) -> float:
        """Return the highest threshold that at least so many pairs reach, which there are."""
        return float(self.score[np.flatnonzero(self.count[::-1].cumsum()[::-1] >= count)[-1]])


@dataclass(frozen=True)
class Judgement:
    """The probability that a pair is right, by its score: ``probability`` [G] at ``score`` [G], both ascending.

    ``translated`` is the share of the sources that have a translation in the other text or, if no trusted pairs tell of
    those that are not found, the share of which it is found.
    """

    score: np.ndarray
    probability: np.ndarray
    translated: float

    def right(self, pairs: ScoreCounts) -> np.ndarray:
        """Return how many pairs of each score are right: [B]."""
        return pairs.count * np.interp(pairs.score, self.score, self.probability)

    def precision(self, pairs: ScoreCounts, threshold: float) -> float:
        """Return the share of right pairs among those with a score of at least the threshold; 0 if there are none."""
        reach = pairs.score >= threshold
        return float(self.right(pairs)[reach].sum() / max(pairs.count[reach].sum(), 1))

    def recall(self, pairs: ScoreCounts, threshold: float, sources: int) -> float:
        """Return the share of the sources with a translation that are in a right pair from the threshold on."""
        found = self.right(pairs)[pairs.score >= threshold].sum()
        return float(min(found / max(self.translated * sources, 1e-9), 1.0))

    def threshold(self, pairs: ScoreCounts, sources: int, least_precision: float | None = None) -> float | None:
        """Return the threshold with the best F1 or, with ``least_precision``, the one with the best recall of those
        from which on at least this share of the pairs is right; None if there is none."""
        if not len(pairs.score):
            return None
        right, written = (np.cumsum(some[::-1])[::-1] for some in (self.right(pairs), pairs.count))
        if least_precision is None:
            return float(pairs.score[np.argmax(right / (written + self.translated * sources + 1e-9))])
        precise = np.flatnonzero(right / written >= least_precision)
        return float(pairs.score[precise[0]]) if len(precise) else None


@dataclass(frozen=True)
class Planted:
    """What mining makes of trusted pairs, each planted into the texts alone: the score of the source's pair where the
    translation is ``absent`` and where it is ``present``, [T] each, NaN if it is in no pair; and whether the pair is
    the right one, bool [T], where it is present."""

    absent: np.ndarray
    present: np.ndarray
    is_right: np.ndarray

    def take(self, which: np.ndarray) -> Planted:
        return Planted(self.absent[which], self.present[which], self.is_right[which])


def judge_by_planting(pairs: ScoreCounts, sources: int, planted: Planted) -> Judgement:
    """Return a judgement of the pairs of a text with a number of ``sources`` by trusted pairs that were planted.

    The log of the ratio of both densities is a linear spline of the score with a penalty on changes of its slope, made
    monotone, and constant beyond the highest scores of planted pairs. The share of the sources that have a translation
    is the one of maximum likelihood (by EM).
    """
    absent, present = (some[~np.isnan(some)] for some in (planted.absent, planted.present))
    right = planted.is_right[~np.isnan(planted.present)]
    if right.any() and not len(absent):  # no wrong pair is known: one is assumed, as good as the worst known pair
        absent = present.min(keepdims=True)
    score, is_right = np.concatenate((absent, present)), np.concatenate((np.zeros(len(absent), bool), right))
    found = planted.is_right.mean()
    if not right.any() or np.ptp(score) == 0 or not len(pairs.score):
        return Judgement(np.zeros(1), np.zeros(1), 0.0)
    centre, scale = score.mean(), score.std()
    knots = np.concatenate((np.quantile(absent, (0.5, 0.9, 0.97)), np.quantile(present[right], (0.25, 0.5, 0.75))))
    highest = min(max(3, len(planted.absent) // 100), len(score))
    grid = np.linspace(score.min(), np.sort(score)[-highest], _GRID)

    def basis(at: np.ndarray) -> np.ndarray:
        z = (at - centre) / scale
        hinges = np.maximum(z[:, None] - (np.unique(knots) - centre) / scale, 0)
        return np.column_stack((np.ones(len(at)), z, hinges))

    columns, on_grid = basis(score), basis(grid)
    penalty = np.full(columns.shape[1], _PENALTY)
    penalty[:2] = 1e-9, 0.01
    weights, log_ratio = np.zeros(columns.shape[1]), np.zeros(_GRID)
    paired, translated, share = pairs.count.sum() / max(sources, 1), 0.5, 0.5 * found
    for _ in range(_ROUNDS):
        # Wrong pairs of the text are of both kinds: the translation is absent, or it is present but not the nearest.
        importance = np.where(is_right, 1.0, translated)
        importance[: len(absent)] = max(1 - translated, 1e-3)
        weights = _logistic(columns, is_right, importance, penalty, weights)
        odds = (importance * is_right).sum() / (importance * ~is_right).sum()
        log_ratio = np.maximum.accumulate(on_grid @ weights) - np.log(odds)
        of_text = np.interp(pairs.score, grid, log_ratio)
        for _ in range(_ROUNDS):
            probability = _sigmoid(of_text + _logit(share))
            share = float(np.clip(np.average(probability, weights=pairs.count), 1e-6, found / max(paired, 1e-9)))
        before, translated = translated, min(share * paired / found, 1.0)
        if abs(translated - before) < 1e-5:
            break
    return Judgement(grid, _sigmoid(log_ratio + _logit(share)), translated)


def planting_interval(
    pairs: ScoreCounts, sources: int, planted: Planted, threshold: float, seed: int = 1
) -> tuple[float, float]:
    """Return a 95% interval of the precision at a threshold, for the choice of the trusted pairs and of the text: the
    percentiles over bootstrap resamples of the trusted pairs, and draws of as many pairs as there are."""
    draw, values = np.random.default_rng(seed), []
    written = max(int(pairs.count[pairs.score >= threshold].sum()), 1)
    for _ in range(_DRAWS):
        some = planted.take(draw.integers(len(planted.absent), size=len(planted.absent)))
        precision = judge_by_planting(pairs, sources, some).precision(pairs, threshold)
        values.append(draw.binomial(written, precision) / written)
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def planting_misfit(pairs: ScoreCounts, sources: int, planted: Planted, translated: float) -> float:
    """Return how far the distribution of the scores of a text is from the mixture of those of planted pairs, where a
    share of the sources is ``translated``: the largest difference of both distribution functions, in units of the most
    that is to be expected of as many trusted pairs if they are of the kind of the text. In trials it was 0.4 to 1.3 for
    trusted pairs of the same kind, and 1 to 9 for those of another kind."""
    score = np.sort(np.nan_to_num(np.concatenate((planted.absent, planted.present)), nan=-np.inf))

    def above(scores: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        order = np.argsort(scores, kind="stable")
        total = np.append(np.cumsum((np.ones(len(scores)) if weights is None else weights[order])[::-1])[::-1], 0)
        return total[np.searchsorted(scores[order], score)]

    of_text = above(pairs.score, pairs.count) / max(sources, 1)
    absent, present = (above(some[~np.isnan(some)]) / len(some) for some in (planted.absent, planted.present))
    difference = np.abs(of_text - (1 - translated) * absent - translated * present).max()
    return float(difference / (0.025 + 0.6 / np.sqrt(len(planted.absent))))


@dataclass(frozen=True)
class Alone:
    """What is known of some sources without trusted pairs, [N] each: the score of the ``best`` candidate, and of the
    ``second``, which would be the best if the first were not in the text; and whether the candidate has no better
    partner, of the first (``mutual``) and of the second (``second_mutual``)."""

    best: np.ndarray
    second: np.ndarray
    mutual: np.ndarray
    second_mutual: np.ndarray


def judge_alone(some: Alone) -> Judgement | None:
    """Return a rough judgement of pairs by the scores of some sources alone, or None if there are fewer sources than
    ``FEWEST_JUDGED``.

    Of a source whose best candidate is right, the second one is a wrong pair. Of another source it is the second best
    of wrong ones: if F is the distribution of the best wrong candidate, that of the second best of many is F (1 - log
    F). So the scores of second candidates give F for each share of right pairs, and the scores of best candidates give
    the share for each F, as a mixture of two densities whose ratio is exponential in the score. Both are solved in
    turns from a small share on, and a small share that grows slowly ends this: where the distributions overlap, fewer
    right pairs are the better error. The share is not higher than that which follows from how often the best candidates
    have no better partner.
    """
    if len(some.best) < FEWEST_JUDGED or np.ptp(some.best) == 0:
        return None
    second = np.minimum(some.second, some.best)
    share, probability, order = 0.02, np.zeros(len(second)), np.argsort(second, kind="stable")
    rank = np.empty(len(second))
    rank[order] = (np.arange(len(second)) + 1) / (len(second) + 1)
    growth = np.inf
    for _ in range(40):
        before, (share, probability) = share, _mixture(some.best, second, _weights_of_wrong(rank, share))
        if abs(share - before) < 2e-3 or (share < _SMALL and share - before > growth / 2):
            break
        growth = share - before
    most = _most_by_partners(some, probability)
    if share > most:
        share, probability = _mixture(some.best, second, _weights_of_wrong(rank, most), most)
    by_score = np.argsort(some.best, kind="stable")
    return Judgement(some.best[by_score], np.maximum.accumulate(probability[by_score]), float(probability.mean()))


def _weights_of_wrong(rank: np.ndarray, share: float) -> np.ndarray:
    """Return how much each second candidate, whose rank is given in (0, 1), counts as an example of a wrong pair."""
    low, high = np.full_like(rank, 1e-12), np.ones_like(rank)
    for _ in range(60):  # bisection of F (1 - (1 - share) log F) = rank
        middle = (low + high) / 2
        below = middle * (1 - (1 - share) * np.log(middle)) < rank
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 1 / (share - (1 - share) * np.log((low + high) / 2))


def _mixture(
    best: np.ndarray, wrong: np.ndarray, weights: np.ndarray, share: float | None = None
) -> tuple[float, np.ndarray]:
    """Return the share of right pairs, unless it is given, and for each best candidate the probability that it is right
    [N], given weighted examples of wrong ones: maximum likelihood of telling the two samples apart."""
    centre = np.average(wrong, weights=weights)
    scale = np.sqrt(np.average((wrong - centre) ** 2, weights=weights)) + 1e-9
    z_best, z_wrong = (np.clip((scores - centre) / scale, -6, 12) for scores in (best, wrong))
    size_ratio = len(best) / weights.sum()

    def densities(parameters: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Return the density of all scores divided by that of wrong pairs."""
        of_right = _sigmoid(parameters[0]) if share is None else share
        return 1 - of_right + of_right * np.exp(np.clip(parameters[1] + np.exp(parameters[2]) * z, -40, 40))

    def loss(parameters: np.ndarray) -> float:
        of_best, of_wrong = (size_ratio * densities(parameters, z) for z in (z_best, z_wrong))
        likelihood = (np.log(of_best) - np.log1p(of_best)).sum() - (weights * np.log1p(of_wrong)).sum()
        return -likelihood / len(best) + 1e-4 * (parameters**2).sum()

    starts = [(-3.0, -2.0, 0.3), (0.0, -2.0, 0.3), (2.0, -2.0, 0.3)][: 3 if share is None else 1]
    found = min((minimize(loss, start, method="BFGS") for start in starts), key=lambda result: result.fun).x
    of_right = float(_sigmoid(found[0])) if share is None else share
    return of_right, np.clip(1 - (1 - of_right) / densities(found, z_best), 0, 1)


def _most_by_partners(some: Alone, probability: np.ndarray) -> float:
    """Return the largest share of right pairs that fits to how many of the best candidates have no better partner,
    plus a standard error. It is assumed that at least 90% of the right pairs have no better partner."""
    sure = probability > 0.8
    count = int(sure.sum())
    if count < 10:
        return 1.0
    of_right, of_wrong = max(some.mutual[sure].mean(), 0.9), (some.second_mutual[sure].sum() + 1) / (count + 2)
    gap = max(of_right - of_wrong, 1e-3)
    share = (some.mutual.mean() - of_wrong) / gap
    error = np.sqrt(of_wrong * (1 - of_wrong) / count) / gap * max(1 - share, 0)
    return float(np.clip(share + error, 0.005, 1))


def _logistic(
    columns: np.ndarray, is_right: np.ndarray, importance: np.ndarray, penalty: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the weights of a penalised logistic regression, by Newton's method from ``weights`` on."""
    for _ in range(_ROUNDS):
        probability = _sigmoid(columns @ weights)
        slope = columns.T @ (importance * (is_right - probability)) - penalty * weights
        curvature = columns.T @ (columns * (importance * probability * (1 - probability))[:, None]) + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        longest = np.abs(step).max()
        weights = weights + step * min(1, 3 / max(longest, 1e-12))
        if longest < 1e-6:
            break
    return weights


def _sigmoid(z: np.ndarray | float) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(z, -30, 30)))


def _logit(share: float) -> float:
    return float(np.log(max(share, 1e-9) / max(1 - share, 1e-9)))
