"""Arguments of metrics that would give a wrong figure, or none, are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from xrep.metrics.entities import entity_score
from xrep.metrics.geometry import alignment_loss, language_shares, uniformity_loss
from xrep.metrics.mining import best_threshold, mining_scores
from xrep.metrics.retrieval import mean_cosine

X = np.eye(3, dtype=np.float32)
NAN = np.full((3, 3), np.nan, np.float32)
YES = np.ones(3, bool)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda: alignment_loss(X, X[:1]), "one shape"),  # numpy would repeat the single row
        (lambda: alignment_loss(X[:0], X[:0]), "at least 1"),
        (lambda: alignment_loss(X, NAN), "that are finite"),
        (lambda: uniformity_loss(X[:1]), "at least 2"),
        (lambda: uniformity_loss(NAN), "that are finite"),
        (lambda: language_shares([X, X[:0]], 1), "without vectors"),
        (lambda: language_shares([X, X], 6), "6 neighbours of 6"),
        (lambda: language_shares([X, NAN], 1), "not finite"),
        (lambda: mean_cosine(X[:1]), "at least 2 rows"),
        (lambda: mining_scores(correct=3, extracted=2, gold=5), "3 correct pairs of 2"),
        (lambda: mining_scores(correct=0, extracted=0, gold=0), "0 gold"),
        (lambda: best_threshold(NAN[0], YES, 1), "finite scores"),
        (lambda: best_threshold(X[0], YES[:2], 1), "finite scores"),
        (lambda: entity_score([["B-X"]], [["B-X", "O"]]), "2 tags for 1 words"),
    ],
)
def test_refused(measure: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measure()
