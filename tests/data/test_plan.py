"""Batches by number of tokens: full, within their budget, and consecutive in the order on every rank."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.data.batch_plan import MOST_PADDING, TokenBudget, plan_batches
from xrep.data.order import ExampleOrder
from xrep.data.stream import Plan

SIZES = [1500, 850]
EPOCH = sum(SIZES)


def lengths_of(corpus: int, rows: np.ndarray) -> np.ndarray:
    """Return the lengths of both sides: 2 to 41 tokens, and sometimes 400."""
    first = (rows * 7919 + corpus * 31) % 40 + 2
    second = (rows * 104729 + corpus) % 40 + 2
    return np.stack([np.where(rows % 97 == 5, 400, first), second], axis=1)


def one_side(corpus: int, rows: np.ndarray) -> np.ndarray:
    return lengths_of(corpus, rows)[:, :1]


def order(seed: int = 1) -> ExampleOrder:
    return ExampleOrder(SIZES, 1.0, seed, lambda corpus, rows: lengths_of(corpus, rows).sum(1))


def expected(
    stream: np.ndarray, max_tokens: int, max_examples: int | None, lengths: Callable[..., np.ndarray]
) -> list[list[tuple[int, int]]]:
    """Fill batches with one example after the other while they fit."""
    batches: list[list[tuple[int, int]]] = []
    totals = widths = np.zeros(1)
    for corpus, row in stream.tolist():
        own = lengths(corpus, np.array([row]))[0]
        totals, widths = totals + own, np.maximum(widths, own)
        full = not batches or len(batches[-1]) == max_examples
        if full or (totals > max_tokens).any() or (widths * (len(batches[-1]) + 1) > MOST_PADDING * max_tokens).any():
            batches.append([])
            totals = widths = own
        batches[-1].append((corpus, row))
    return batches


def rows(plan: Plan) -> list[tuple[int, int]]:
    return list(map(tuple, plan.rows.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize(("max_tokens", "lengths", "max_examples"), [
    (50, one_side, None), (700, lengths_of, None), (6000, lengths_of, 60), (6000, one_side, None),
])  # fmt: skip
def test_a_batch_is_as_many_of_the_next_examples_as_fit(max_tokens: int, lengths, max_examples: int | None) -> None:
    """Batches are the same for any number of ranks, and an epoch neither loses nor repeats examples."""
    budget = TokenBudget(max_tokens, lengths, max_examples)
    batches = expected(order().take(0, EPOCH), max_tokens, max_examples, lengths)
    long = [batch for batch in batches if any(lengths(c, np.array([row])).max() > max_tokens for c, row in batch)]
    assert all(len(batch) == 1 for batch in long) and bool(long) is (max_tokens == 50)
    for world in (1, 2, 3):
        ranks = [list(plan_batches(order(), budget, None, rank, world, EPOCH)) for rank in range(world)]
        steps = list(zip(*ranks, strict=True))
        assert len(steps) == -(-len(batches) // world)
        found = [rows(plan) for step in steps for plan in step]
        assert found == batches + [[]] * (len(found) - len(batches))
        assert sorted(itertools.chain(*found)) == [(c, row) for c, size in enumerate(SIZES) for row in range(size)]
        consumed = np.cumsum([sum(len(plan.rows) for plan in step) for step in steps]).tolist()
        for step, total in zip(steps, consumed, strict=True):
            assert {(plan.cursor, plan.examples) for plan in step} == {(total, total)}
        assert consumed[-1] == EPOCH


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.integers(0, 2 * EPOCH),
    st.lists(st.tuples(st.integers(30, 9000), st.integers(1, 4), st.integers(1, 4)), min_size=2, max_size=3),
)
def test_a_run_goes_on_at_any_example_with_another_budget(start: int, legs: list[tuple[int, int, int]]) -> None:
    """This also holds when a budget is replaced by a fixed number of examples, and back."""
    cursor, seen = start, []
    for max_tokens, world, steps in legs:
        budget = TokenBudget(max_tokens, lengths_of)
        ranks = [
            list(itertools.islice(plan_batches(order(), budget, cursor, r, world, None), steps)) for r in range(world)
        ]
        for step in zip(*ranks, strict=True):
            assert all(len(plan.rows) for plan in step)
            seen += [row for plan in step for row in rows(plan)]
            assert {plan.cursor for plan in step} == {start + len(seen)}
        (fixed,) = itertools.islice(plan_batches(order(), 7, start + len(seen), 0, 1, None), 1)
        seen += rows(fixed)
        cursor = fixed.cursor
    assert seen == list(map(tuple, order().take(start, start + len(seen)).tolist()))


def test_it_ends_where_it_is_told_to() -> None:
    budget = TokenBudget(3000, one_side)
    *_, last = plan_batches(order(), budget, None, 0, 1, EPOCH + 11)
    assert last.examples == EPOCH + 11
    for start in (EPOCH, EPOCH + 5):
        assert list(plan_batches(order(), budget, start, 0, 2, EPOCH)) == []
    (only,) = plan_batches(order(), budget, EPOCH - 3, 2, 3, EPOCH)
    assert only.rows.shape == (0, 2) and only.examples == EPOCH
