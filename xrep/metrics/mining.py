"""How many of the pairs that were mined are translations, and from which score on they should be believed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MiningScores:
    """In percent. ``precision``: share of the extracted pairs that are gold; ``recall``: share of the gold pairs that
    were extracted; ``f1``: their harmonic mean. Nothing extracted: all are 0."""

    precision: float
    recall: float
    f1: float
    extracted: int
    correct: int
    gold: int


def mining_scores(correct: int, extracted: int, gold: int) -> MiningScores:
    """Precision, recall and F1.

    Raises:
        ValueError: there are no gold pairs, or more correct pairs than were extracted or are gold.
    """
    if gold < 1 or not 0 <= correct <= min(extracted, gold):
        raise ValueError(f"{correct} correct pairs of {extracted}, {gold} gold")
    precision = 100.0 * correct / extracted if extracted else 0.0
    f1 = 200.0 * correct / (extracted + gold)
    return MiningScores(precision, 100.0 * correct / gold, f1, extracted, correct, gold)


def best_threshold(scores: np.ndarray, correct: np.ndarray, gold: int) -> tuple[float, MiningScores]:
    """The threshold with the best F1, pairs with a score of at least it being extracted, and what it gives.

    Thresholds are the midpoints of consecutive different scores, and the lowest score ("Dual-Alignment Pre-training for
    Cross-lingual Sentence Embedding", appendix B). Of equal F1 the highest threshold wins.

    Args:
        scores: [P] float, in any order.
        correct: bool [P], whether the pair is gold.
        gold: number of gold pairs, extracted or not.

    Raises:
        ValueError: no scores, a score that is not finite, or no gold pairs.
    """
    if not len(scores) or scores.shape != correct.shape or not np.isfinite(scores).all() or gold < 1:
        raise ValueError(f"{len(scores)} finite scores of shape {correct.shape} and {gold} gold pairs")
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order].astype(np.float64)  # between two float32 numbers there is a float64 one
    hits = np.cumsum(correct[order])
    ends = np.append(np.flatnonzero(ordered[:-1] > ordered[1:]), len(ordered) - 1)
    f1 = 2 * hits[ends] / (ends + 1 + gold)
    last = int(ends[np.argmax(f1)])
    threshold = ordered[last] if last == len(ordered) - 1 else (ordered[last] + ordered[last + 1]) / 2
    return float(threshold), mining_scores(int(hits[last]), last + 1, gold)
