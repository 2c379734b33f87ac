"""The tokens that the RTL head reads and predicts, worked out by hand for two pairs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator

from tests.support.planning import pair_batch
from xrep.criteria.reconstruction import LANGUAGE, PLACE, POSITION, SLOT, Planner, ranges
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


def planner(direction: Any, ratio: float = 1.0) -> Planner:
    return Planner(pivot=EN, direction=direction, ratio=ratio)


def read(planner: Planner, batch: Batch, generator: Generator | None = None) -> list[list[list[int]]]:
    """What stands in each row of the head's input: tokens (0 where it is filled up), whether predicted, languages."""
    plan = planner.plan(batch, generator or Generator())
    both = batch.source.followed_by(batch.target, VOCABULARY.pad_id).tokens.flatten()
    tokens = torch.zeros(3, len(batch) * plan.width, dtype=torch.int64)
    for number, table in enumerate((plan.given, plan.predicted)):
        values = (both[table[PLACE]], torch.full_like(table[PLACE], number), table[LANGUAGE])
        tokens[:, table[SLOT]] = torch.stack(values)
    return [x.view(len(batch), -1).tolist() for x in tokens]


TO, FROM = ([[11, 12, 3, 21, 22, 23, 3], [3, 31, 3, 0, 0, 0, 0]], [[21, 22, 23, 3, 11, 12, 3], [31, 3, 3, 0, 0, 0, 0]])
HALF = {True: [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0, 0]], False: [[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0]]}


def test_to_the_pivot(batch: Batch) -> None:
    languages = [[DE] * 3 + [EN] * 4, [ES] + [EN] * 2 + [0] * 4]
    assert read(planner("to_pivot"), batch) == [TO, HALF[True], languages]
    plan = planner("to_pivot").plan(batch, Generator())
    assert plan.lengths.tolist() == [7, 3] and plan.predicted[POSITION].tolist() == [1, 2, 3, 4, 1, 2]
    assert plan.shares.tolist() == [0.25] * 4 + [0.5] * 2, "shares add up to the sentences"
    assert plan.sizes() == {False: 6} and plan.sizes(sentences=True) == {False: 2}
    batch.languages[:] = EN
    assert read(planner("to_pivot"), batch)[0][0] == TO[0], "both sides are in the pivot language"


def test_from_the_pivot(batch: Batch) -> None:
    assert read(planner("from_pivot"), batch)[:2] == [FROM, HALF[False]]
    runs = planner("from_pivot").plan(batch, Generator()).runs
    assert [(run.from_pivot, run.language, run.start, run.stop) for run in runs] == [(True, DE, 0, 3), (True, ES, 3, 4)]


def test_both_directions(batch: Batch) -> None:
    """Pairs with odd numbers go from the pivot language; groups are ordered by direction and language."""
    both = planner("both")
    assert read(both, batch)[0] == [[3, 31, 3, 0, 0, 0, 0], FROM[0]]
    plan = both.plan(batch, Generator())
    assert [dataclasses.astuple(run) for run in plan.runs] == [(False, EN, 0, 2), (True, DE, 2, 5)]
    assert plan.sizes() == {False: 2, True: 3}
    sizes = [both.plan(batch.rows(0, rows), Generator()).sizes() for rows in (1, 0)]
    assert sizes == [{False: 0, True: 3}, {False: 0, True: 0}]


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.5, 0.1])
def test_tokens_are_drawn_independently(batch: Batch, ratio: float) -> None:
    """Each of the six tokens of the two y is predicted with this probability, whatever becomes of the others."""
    some, generator, drawn = planner("to_pivot", ratio), Generator().manual_seed(0), []
    for _ in range(1000):
        tokens, predicted, _ = read(some, batch, generator)
        assert tokens == TO, "those given stay where they were"
        assert not any(predicted[0][:3]) and not predicted[1][0], "x is given whole"
        drawn.append(predicted[0][3:] + predicted[1][1:3])
    seen = np.array(drawn, dtype=np.float64)
    assert seen.mean(axis=0) == pytest.approx(np.full(6, ratio), abs=0.05)
    assert np.cov(seen.T) == pytest.approx(ratio * (1 - ratio) * np.eye(6), abs=0.04)


def test_ranges() -> None:
    assert ranges(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]
    assert ranges(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
