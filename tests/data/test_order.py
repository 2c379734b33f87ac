"""The order of data: a permutation that depends only on seed and epoch, in blocks of similar length."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest

from xrep.data.order import BLOCK_SIZE, WINDOW_SIZE, ExampleOrder, permute, sampling_quotas


def length_of(corpus: int, rows: np.ndarray) -> np.ndarray:
    """Return pseudo-random lengths from 1 to 50."""
    return (rows * 7919 + corpus * 31) % 50 + 1


def make(sizes: list[int], alpha: float = 1.0, seed: int = 1) -> ExampleOrder:
    return ExampleOrder(sizes, alpha, seed, length_of)


@pytest.mark.parametrize("sizes", [range(1, 101), [4095, 4096, 4097, 65535, 65536, 65537, 70001]])
def test_permute_is_a_permutation(sizes) -> None:
    for size in sizes:
        image = permute(np.arange(size), size, (3, 1, 4))
        assert np.array_equal(np.sort(image), np.arange(size)), size
        assert np.array_equal(permute(np.arange(size)[::-1][:7], size, (3, 1, 4)), image[::-1][:7]), size


@pytest.mark.parametrize("size", [1, 1000, WINDOW_SIZE + 1000])
def test_an_epoch_holds_every_example_once(size: int) -> None:
    order = make([size])
    epochs = [order.take(epoch * size, (epoch + 1) * size)[:, 1] for epoch in range(2)]
    for rows in epochs:
        assert np.array_equal(np.sort(rows), np.arange(size))
    other = make([size], seed=2).take(0, size)[:, 1]
    if size > 1:
        assert not np.array_equal(*epochs) and not np.array_equal(epochs[0], other)
        assert np.array_equal(make([size], seed=-3).take(0, size), make([size], seed=2**64 - 3).take(0, size))


@pytest.mark.slow
def test_it_depends_neither_on_the_batch_size_nor_on_where_reading_starts() -> None:
    sizes = [WINDOW_SIZE, 900]
    stop = 2 * sum(sizes) + 100
    whole = make(sizes).take(0, stop)
    for batch_size in (8192, 999):
        order = make(sizes)
        cut = [order.take(start, min(start + batch_size, stop)) for start in range(0, stop, batch_size)]
        assert np.array_equal(np.concatenate(cut), whole)
    for start in (1, WINDOW_SIZE - 1, stop - 5):
        assert np.array_equal(make(sizes).take(start, min(start + 300, stop)), whole[start : start + 300])
    assert make(sizes).take(7, 7).shape == (0, 2)


def test_blocks_are_of_similar_length_and_shuffled() -> None:
    order = make([5000, 1400])
    stream = order.take(0, 6400)
    lengths = np.array([length_of(corpus, row) for corpus, row in stream]).reshape(-1, BLOCK_SIZE)
    assert (np.diff(lengths, axis=1) >= 0).all() and np.ptp(lengths, axis=1).max() <= 1
    assert abs(np.corrcoef(np.arange(100), lengths.mean(1))[0, 1]) < 0.4


@pytest.mark.parametrize(
    "sizes, alpha, expected",
    [([10, 20, 70], 1.0, [10, 20, 70]), ([10, 20, 70], 0.0, [34, 33, 33]), ([100, 900], 0.5, [250, 750]),
     ([1, 3, 96], 0.5, [8, 14, 78]), ([10**9, 7, 123456789], 1.0, [10**9, 7, 123456789])],
)  # fmt: skip
def test_quotas(sizes: list[int], alpha: float, expected: list[int]) -> None:
    # By hand for [1, 3, 96] at 0.5: 100 * (1, 1.732, 9.798) / 12.530 = 7.98, 13.82, 78.20.
    assert sampling_quotas(sizes, alpha).tolist() == expected


def test_sampling_loses_no_example() -> None:
    sizes, alpha = [100, 900], 0.5
    order = make(sizes, alpha)
    seen: Counter[tuple[int, int]] = Counter()
    for epoch in range(12):
        rows = order.take(epoch * 1000, (epoch + 1) * 1000)
        assert np.bincount(rows[:, 0]).tolist() == [250, 750]
        seen.update(map(tuple, rows.tolist()))
    # 12 * 250 draws are 30 passes over the small corpus, 12 * 750 are 10 passes over the large one.
    assert set(seen) == {(corpus, row) for corpus, size in enumerate(sizes) for row in range(size)}
    assert {count for (corpus, _), count in seen.items() if corpus == 0} == {30}
    assert {count for (corpus, _), count in seen.items() if corpus == 1} == {10}


def test_the_order_is_that_of_earlier_versions():
    """A run that was begun before goes on with the same examples. The digests were computed by an earlier version."""
    digest = hashlib.sha256()
    for sizes, alpha in (([70_001], 1.0), ([700], 1.0), ([5000, 3, 777, 1, 20_000, 12], 0.3), ([1000] * 100, 0.3)):
        order = ExampleOrder(sizes, alpha, 7, lambda corpus, rows: rows * 2654435761 % 61)
        for start in (0, sum(sizes) - 100, 3 * sum(sizes) // 2):
            digest.update(np.ascontiguousarray(order.take(start, start + 1000)).tobytes())
    assert digest.hexdigest()[:32] == "3e9dde65271cc8cd7353e583db2122b0"
