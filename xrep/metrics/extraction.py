"""Evaluation of mined sentence pairs: precision, recall and F1, and the best score threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xrep.errors import UserError


@dataclass(frozen=True)
class MiningScores:
    """Precision, recall and their harmonic mean, in percent (0 if nothing was extracted), and the numbers of pairs."""

    precision: float
    recall: float
    f1: float
    extracted: int
    correct: int
    gold: int


def mining_scores(correct: int, extracted: int, gold: int) -> MiningScores:
    """Return the shares of the correct pairs in the extracted ones and in the gold ones, and their harmonic mean."""
    precision, recall = 100.0 * correct / max(extracted, 1), 100.0 * correct / gold
    return MiningScores(precision, recall, 200.0 * correct / (extracted + gold), extracted, correct, gold)


def best_threshold(
    scores: np.ndarray, correct: np.ndarray, gold: int, least_precision: float | None = None
) -> tuple[float, MiningScores]:
    """Return the threshold with the best F1, and the scores with this threshold.

    Pairs with a score of at least the threshold are extracted. Candidate thresholds are the midpoints of consecutive
    different scores, and the lowest score ("Dual-Alignment Pre-training for Cross-lingual Sentence Embedding", appendix
    B). If several have the same F1, the highest threshold is returned.

    Args:
        scores: [P] float, in any order; at least one, and all finite.
        correct: bool [P], whether each pair is gold.
        gold: Number of gold pairs, extracted or not, at least 1.
        least_precision: Take the threshold with the best recall instead, of those where this share of the extracted
            pairs is correct. A UserError says that there is none.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order].astype(np.float64)  # in float64 there is a number between any two float32 scores
    hits = np.cumsum(correct[order])
    ends = np.append(np.flatnonzero(ordered[:-1] > ordered[1:]), len(ordered) - 1)
    merit = 2 * hits[ends] / (ends + 1 + gold)
    if least_precision is not None:
        precision = hits[ends] / (ends + 1)
        merit = np.where(precision >= least_precision, hits[ends], -1)
        if merit.max() <= 0:
            cure = f"lower `least_precision`, to {np.floor(1000 * precision.max()) / 1000:g} at most"
            raise UserError(f"no threshold has a precision of {least_precision:g}", cure=cure)
    last = int(ends[np.argmax(merit)])
    threshold = ordered[last] if last == len(ordered) - 1 else (ordered[last] + ordered[last + 1]) / 2
    return float(threshold), mining_scores(int(hits[last]), last + 1, gold)
