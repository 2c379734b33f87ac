"""Fixtures of the tests of training."""

from typing import Any

import pytest

from tests.support.corpus import sentence_pairs
from tests.support.planning import with_negatives


@pytest.fixture(scope="session")
def batches(make_batch: Any) -> list[Any]:
    """Batches of 8 and of 5 pairs of unequal lengths, with hard negatives of some rows."""
    pairs = [(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(13))]
    rows = [0, 0, 1, 3, 4, 4, 4]
    return [with_negatives(make_batch(some), make_batch(pairs[3:10]).target, rows) for some in (pairs[:8], pairs[8:])]
