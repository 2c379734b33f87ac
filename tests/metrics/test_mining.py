import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.retrieval import plain_margins
from xrep.errors import UserError
from xrep.metrics.extraction import best_threshold, mining_scores


def test_precision_recall_and_f1() -> None:
    found = mining_scores(correct=3, extracted=4, gold=12)
    assert (found.precision, found.recall) == (75, 25)
    assert found.f1 == pytest.approx(2 * 75 * 25 / 100)
    nothing = mining_scores(correct=0, extracted=0, gold=5)
    assert (nothing.precision, nothing.recall, nothing.f1) == (0, 0, 0)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-5, 9), st.booleans()), min_size=1, max_size=30), st.integers(0, 5), st.booleans()
)
def test_no_threshold_is_better(rows: list[tuple[int, bool]], missed: int, close: bool) -> None:
    """Compare with a search over all thresholds; ``close`` scores are neighbours in float32."""
    step = np.spacing(np.float32(1)) if close else 0.25
    scores = (1 + step * np.array([score for score, _ in rows])).astype(np.float32)
    correct = np.array([right for _, right in rows])
    gold = int(correct.sum()) + missed + (not correct.any())
    pairs = {(row, row): float(score) for row, score in enumerate(scores)}
    right = {(row, row) for row in np.flatnonzero(correct).tolist()} | {(-1 - row, 0) for row in range(gold)}
    right = set(sorted(right, reverse=True)[:gold])
    threshold, found = best_threshold(scores, correct, gold)
    expected_threshold, f1 = plain_margins.best_f1(pairs, right)
    assert found.f1 == pytest.approx(f1) and threshold == expected_threshold
    assert plain_margins.f1_at(pairs, right, threshold) == pytest.approx(f1)


def test_a_wanted_precision() -> None:
    scores, correct = np.array([9.0, 8, 7, 6, 5, 4, 3]), np.array([True, True, False, True, True, False, False])
    threshold, found = best_threshold(scores, correct, 4, least_precision=0.8)
    assert (threshold, found.precision, found.recall) == (4.5, 80, 100)
    assert best_threshold(scores, correct, 4, least_precision=1.0)[0] == 7.5
    with pytest.raises(UserError, match="no threshold has a precision of 0.9; lower `least_precision`, to 0.5"):
        best_threshold(scores[1:3], correct[[2, 3]], 1, least_precision=0.9)
    two_thirds = np.array([8.0, 7, 7]), np.array([False, True, True])
    with pytest.raises(UserError, match="to 0.666 at most"):  # not 0.667, which no threshold has either
        best_threshold(*two_thirds, 2, least_precision=0.9)
    assert best_threshold(*two_thirds, 2, least_precision=0.666)[0] == 7
