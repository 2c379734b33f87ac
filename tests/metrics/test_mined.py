"""Estimates of how many mined pairs are right, on scores of which it is known."""

import numpy as np
import pytest

from xrep.metrics.mined import (
    FEWEST_JUDGED,
    Alone,
    Planted,
    ScoreCounts,
    judge_alone,
    judge_by_planting,
    planting_interval,
    planting_misfit,
)

SOURCES = 20_000
NEAREST = 50
"""Number of wrong candidates of each source, of which the best is taken."""


def drawn(rows: int, draw: np.random.Generator, shift: float = 0.0) -> tuple[np.ndarray, ...]:
    """Return the scores of the translation, and of the best and the second best wrong candidate, of some sources."""
    wrong = np.sort(draw.normal(0.85, 0.08, (rows, NEAREST)), axis=1) + shift
    return draw.normal(1.22, 0.12, rows) + shift, wrong[:, -1], wrong[:, -2]


def text(translated: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the scores of the pairs and of the second candidates of all sources, and which pairs are right."""
    right, best, second = drawn(SOURCES, draw)
    right[round(translated * SOURCES) :] = -np.inf
    ordered = np.sort(np.stack((right, best, second)), axis=0)
    return ordered[2], ordered[1], right > best


def planted(rows: int, draw: np.random.Generator, shift: float = 0.0) -> Planted:
    right, best, _ = drawn(rows, draw, shift)
    return Planted(best, np.maximum(right, best), right > best)


@pytest.mark.parametrize("translated", [0.05, 0.3, 0.9])
def test_planted_pairs_tell_precision_and_recall(translated: float) -> None:
    draw = np.random.default_rng(1)
    scores, _, is_right = text(translated, draw)
    pairs, trusted = ScoreCounts.of(scores), planted(1_000, draw)
    judgement = judge_by_planting(pairs, SOURCES, trusted)
    assert judgement.translated == pytest.approx(translated, abs=0.03)
    threshold = judgement.threshold(pairs, SOURCES)
    assert threshold is not None
    for at in (threshold, threshold - 0.05, threshold + 0.05):
        precision, recall = is_right[scores >= at].mean(), is_right[scores >= at].sum() / (translated * SOURCES)
        assert judgement.precision(pairs, at) == pytest.approx(precision, abs=0.05)
        assert judgement.recall(pairs, at, SOURCES) == pytest.approx(recall, abs=0.08)
    low, high = planting_interval(pairs, SOURCES, trusted, threshold)
    assert low <= is_right[scores >= threshold].mean() <= high and high - low < 0.25
    best = max(2 * is_right[scores >= at].sum() / ((scores >= at).sum() + translated * SOURCES) for at in pairs.score)
    found = 2 * is_right[scores >= threshold].sum() / ((scores >= threshold).sum() + translated * SOURCES)
    assert found > best - 0.01
    precise = judgement.threshold(pairs, SOURCES, 0.95)
    assert precise is not None and is_right[scores >= precise].mean() == pytest.approx(0.95, abs=0.04)
    assert planting_misfit(pairs, SOURCES, trusted, judgement.translated) < 1
    other = planted(1_000, draw, shift=0.15)
    assert planting_misfit(pairs, SOURCES, other, judge_by_planting(pairs, SOURCES, other).translated) > 1


def test_a_wanted_precision_may_be_out_of_reach() -> None:
    draw = np.random.default_rng(2)
    wrong = np.sort(draw.normal(0.85, 0.08, (2_000, NEAREST)), axis=1)
    pairs = ScoreCounts.of(wrong[:1_000, -1])
    half_right = Planted(wrong[1_000:, -2], wrong[1_000:, -1], draw.random(1_000) < 0.5)
    judgement = judge_by_planting(pairs, 1_000, half_right)
    assert judgement.threshold(pairs, 1_000, 0.999) is None
    never_right = judge_by_planting(pairs, 1_000, Planted(wrong[1_000:, -2], wrong[1_000:, -1], np.zeros(1_000, bool)))
    assert never_right.precision(pairs, 0.0) == 0 and never_right.recall(pairs, 0.0, 1_000) == 0


def test_sources_without_a_pair_count() -> None:
    """A one-to-one choice leaves half of the wrong pairs out, of the text as of the planted sources."""
    draw = np.random.default_rng(3)
    scores, _, is_right = text(0.4, draw)
    kept, trusted = is_right | (draw.random(SOURCES) < 0.5), planted(1_000, draw)
    absent = np.where(draw.random(1_000) < 0.5, trusted.absent, np.nan)
    present = np.where(trusted.is_right | (draw.random(1_000) < 0.5), trusted.present, np.nan)
    pairs = ScoreCounts.of(scores[kept])
    judgement = judge_by_planting(pairs, SOURCES, Planted(absent, present, trusted.is_right))
    assert judgement.translated == pytest.approx(0.4, abs=0.03)
    assert judgement.precision(pairs, 0.0) == pytest.approx(is_right[kept].mean(), abs=0.04)


@pytest.mark.parametrize("known", [0, 2])
def test_wrong_pairs_may_be_so_rare_that_trusted_pairs_show_none(known: int) -> None:
    """A one-to-one choice in well translated texts: hardly a source without its translation is in a pair."""
    draw = np.random.default_rng(5)
    scores, _, is_right = text(0.5, draw)
    kept, right, wrong = is_right | (draw.random(SOURCES) < 0.01), *drawn(40, draw)[:2]
    pairs, trusted = ScoreCounts.of(scores[kept]), Planted(np.full(40, np.nan), right, np.ones(40, bool))
    trusted.absent[:known] = wrong[:known]
    judgement = judge_by_planting(pairs, SOURCES, trusted)
    threshold = judgement.threshold(pairs, SOURCES)
    assert threshold is not None
    precision = is_right[kept & (scores >= threshold)].mean()
    assert judgement.precision(pairs, threshold) == pytest.approx(precision, abs=0.02)
    low, high = planting_interval(pairs, SOURCES, trusted, threshold)
    assert 0.7 < low <= precision <= high


def test_what_is_hardly_there_is_judged() -> None:
    """Trusted pairs that are nearly all in no pair, and a text of which no sentence is in one."""
    draw, none = np.random.default_rng(6), ScoreCounts.of(np.empty(0))
    pairs, missing = ScoreCounts.of(draw.normal(1.0, 0.1, 500)), np.full(28, np.nan)
    right = np.arange(30) == 0
    few = Planted(np.append(missing, [0.9, np.nan]), np.append([1.2], np.append(missing, np.nan)), right)
    low, high = planting_interval(pairs, 1_000, few, 1.0)
    assert 0 <= low <= high <= 1 and 0 <= judge_by_planting(pairs, 1_000, few).precision(pairs, 1.0) <= 1
    judgement = judge_by_planting(none, 1_000, planted(100, draw))
    assert judgement.threshold(none, 1_000) is None and judgement.precision(none, -np.inf) == 0


@pytest.mark.parametrize("translated", [0.1, 0.4, 0.95])
def test_scores_alone_tell_the_precision_roughly(translated: float) -> None:
    draw = np.random.default_rng(4)
    scores, second, is_right = (some[:: SOURCES // 4_000] for some in text(translated, draw))
    mutual, second_mutual = is_right | (draw.random(len(scores)) < 0.3), draw.random(len(scores)) < 0.3
    judgement = judge_alone(Alone(scores, second, mutual, second_mutual))
    assert judgement is not None
    pairs = ScoreCounts.of(scores)
    threshold = judgement.threshold(pairs, len(scores))
    assert threshold is not None
    precision = is_right[scores >= threshold].mean()
    assert precision > 0.75 and judgement.precision(pairs, threshold) == pytest.approx(precision, abs=0.12)


def test_few_sentences_are_not_judged() -> None:
    some = np.linspace(0, 1, FEWEST_JUDGED - 1)
    assert judge_alone(Alone(some, some / 2, some > 0.5, some > 2)) is None


def test_scores_are_counted_in_steps_and_added() -> None:
    counted = ScoreCounts.of(np.array([1.00004, 1.00009, -0.5])) + ScoreCounts.of(np.array([1.00001, 2.0], np.float32))
    assert counted.score.tolist() == pytest.approx([-0.5, 1.0, 2.0]) and counted.count.tolist() == [1, 3, 1]
    assert [counted.threshold(count) for count in (1, 2, 4, 5)] == [2.0, 1.0, 1.0, -0.5]
