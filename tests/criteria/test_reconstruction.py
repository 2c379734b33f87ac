"""The tokens that the RTL head reads and predicts, worked out by hand for two pairs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator

from tests.support.planning import pair_batch
from xrep.criteria.reconstruction import Planner
from xrep.data.batch import Batch, Vocabulary, collate

VOCABULARY = Vocabulary(size=99, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
DE, EN, ES = range(3)


@pytest.fixture
def batch() -> Batch:
    """Return a pair de-en of 2 and 3 words, and a pair en-es of 1 and 0."""
    sides = [[[11, 12], [31]], [[21, 22, 23], []]]
    source, target = (collate([np.array(ids, dtype=np.int64) for ids in side], VOCABULARY, 9) for side in sides)
    return pair_batch(
        source, target, torch.zeros(2, 2).long(), torch.tensor([7, 4]), torch.tensor([[DE, EN], [EN, ES]])
    )


def planner(direction: Any, ratio: float = 1.0, **labels: Any) -> Planner:
    return Planner(pivot=EN, direction=direction, ratio=ratio, vocabulary=VOCABULARY, **labels)


def read(planner: Planner, batch: Batch, generator: Generator | None = None) -> list[list[list[tuple[int, int]]]]:
    """What the head reads of each pair, x and y: its tokens, and whether they are masked."""
    plan = planner.plan(batch, generator or Generator())
    masked = torch.stack([torch.zeros_like(plan.masked), plan.masked])
    real = plan.mask.unflatten(1, (2, -1)).transpose(0, 1)
    tokens = plan.both.tokens[plan.sides]
    return [[list(zip(ids[there].tolist(), hidden[there].tolist(), strict=True)) for ids, hidden, there
             in zip(*side, strict=True)] for side in zip(tokens, masked, real, strict=True)]  # fmt: skip


def as_read(x: list[list[int]], y: list[list[int]]) -> list[list[list[tuple[int, int]]]]:
    return [[[(token, hidden) for token in ids] for ids in side] for hidden, side in enumerate((x, y))]


def test_to_the_pivot(batch: Batch) -> None:
    x, y = [[11, 12, 3], [3]], [[21, 22, 23, 3], [31, 3]]
    assert read(planner("to_pivot"), batch) == as_read(x, y)
    plan = planner("to_pivot").plan(batch, Generator())
    (some,) = plan.predicted
    assert (some.from_pivot, some.labels.tolist()) == (False, [21, 22, 23, 3, 31, 3])
    assert some.places.tolist() == [3, 4, 5, 6, 8, 9] and plan.side_languages.tolist() == [[DE, ES], [EN, EN]]
    assert some.shares.tolist() == [0.25] * 4 + [0.5] * 2, "shares add up to the sentences"
    assert plan.sizes() == {False: 6} and plan.sizes(sentences=True) == {False: 2}
    batch.languages[:] = EN
    assert read(planner("to_pivot"), batch)[0][0] == as_read(x, y)[0][0], "both sides are in the pivot language"


def test_from_the_pivot(batch: Batch) -> None:
    assert read(planner("from_pivot"), batch) == as_read([[21, 22, 23, 3], [31, 3]], [[11, 12, 3], [3]])


def test_both_directions(batch: Batch) -> None:
    """Pairs with odd numbers go from the pivot language."""
    both = planner("both")
    assert read(both, batch) == as_read([[21, 22, 23, 3], [3]], [[11, 12, 3], [31, 3]])
    plan = both.plan(batch, Generator())
    assert [(some.from_pivot, some.labels.tolist()) for some in plan.predicted] == [
        (False, [31, 3]),
        (True, [11, 12, 3]),
    ]
    assert plan.sizes() == {False: 2, True: 3}
    sizes = [both.plan(batch.rows(0, rows), Generator()).sizes() for rows in (1, 0)]
    assert sizes == [{False: 0, True: 3}, {False: 0, True: 0}]


def test_labels_of_each_language(batch: Batch) -> None:
    """Subwords without a label are masked, and not predicted."""
    labels = {language: torch.full((99,), -1) for language in (DE, EN, ES)}
    labels[DE][[3, 12]], labels[ES][3] = torch.tensor([0, 1]), 0
    own = planner("from_pivot", labels=labels)
    assert read(own, batch) == read(planner("from_pivot"), batch)
    found = own.plan(batch, Generator()).predicted
    assert [(some.language, some.labels.tolist(), some.places.tolist()) for some in found] == [
        (DE, [1, 0], [5, 6]), (ES, [0], [9])]  # fmt: skip
    assert [some.shares.tolist() for some in found] == [[0.5, 0.5], [1.0]]


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.5, 0.1])
def test_tokens_are_drawn_independently(batch: Batch, ratio: float) -> None:
    """Each of the six tokens of the two y is predicted with this probability, whatever becomes of the others."""
    some, generator, drawn = planner("to_pivot", ratio), Generator().manual_seed(0), []
    for _ in range(1000):
        x, y = read(some, batch, generator)
        assert not any(masked for ids in x for _, masked in ids), "x is given whole"
        drawn.append([masked for ids in y for _, masked in ids])
    seen = np.array(drawn, dtype=np.float64)
    assert seen.mean(axis=0) == pytest.approx(np.full(6, ratio), abs=0.05)
    assert np.cov(seen.T) == pytest.approx(ratio * (1 - ratio) * np.eye(6), abs=0.04)
