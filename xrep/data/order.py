"""The order of training examples, which depends only on (seed, epoch).

An epoch is a pseudo-random permutation of the examples, which is processed in large windows: each window is sorted by
length, cut into blocks of 64 examples, and the blocks are shuffled. Batches are taken from this sequence at the cursor
(the number of examples consumed so far). The order therefore depends neither on the batch size nor on the number of
ranks, and a run resumes exactly even if one of them has changed. The permutation is computed instead of stored (by a
Feistel network with cycle walking), so memory does not grow with the corpus.

Where each batch is of one language pair or corpus (``GroupedOrder``), each of these has such an order, and the cursor
says how many examples of each were consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from xrep.hashing import GOLDEN, mix

BLOCK_SIZE = 64
WINDOW_SIZE = 65_536
_ROUNDS = 4


def permute(indices: np.ndarray, size: int, key: tuple[int, ...]) -> np.ndarray:
    """Map ``indices`` (int64, in [0, size)) by a pseudo-random permutation of [0, size) that ``key`` selects."""
    groups = np.zeros(len(indices), dtype=np.int64)
    return permute_groups(indices, groups, np.array([size]), [key])


def permute_groups(
    indices: np.ndarray, groups: np.ndarray, sizes: np.ndarray, keys: Sequence[tuple[int, ...]]
) -> np.ndarray:
    """Map ``indices[i]`` by the permutation of [0, sizes[g]) that ``keys[g]`` selects, where g is ``groups[i]``.

    Many small groups cost hardly more than one large one.
    """
    round_keys = np.stack([_round_keys(key) for key in keys], axis=1)
    halves = np.array([max(1, (max(size - 1, 1).bit_length() + 1) // 2) for size in sizes.tolist()], dtype=np.uint64)
    masks, limits = (np.uint64(1) << halves) - np.uint64(1), sizes.astype(np.uint64)
    out = indices.astype(np.uint64)
    pending = np.arange(len(out))
    while len(pending):
        group_of = groups[pending] if len(keys) > 1 else 0
        values = _feistel(out[pending], round_keys[:, group_of], halves[group_of], masks[group_of])
        out[pending] = values
        pending = pending[values >= limits[group_of]]
    return out.astype(np.int64)


@lru_cache(1 << 14)
def _round_keys(key: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(key).generate_state(_ROUNDS, dtype=np.uint64)


def _feistel(values: np.ndarray, round_keys: np.ndarray, shift: np.ndarray, mask: np.ndarray) -> np.ndarray:
    left, right = values >> shift, values & mask
    for key in round_keys:
        left, right = right, left ^ (mix(right ^ key) & mask)
    return (left << shift) | right


def sampling_quotas(sizes: list[int], alpha: float) -> np.ndarray:
    """Return the number of examples of each corpus in one epoch.

    The shares p_i are proportional to n_i ** alpha, and the numbers add up to the total size. The largest remainders
    are rounded up, so that ``alpha = 1`` gives exactly the sizes.
    """
    counts = np.asarray(sizes, dtype=np.float64)
    weights = counts**alpha
    exact = weights / weights.sum() * counts.sum()
    quotas = np.floor(exact + 1e-9).astype(np.int64)
    missing = int(sum(sizes)) - int(quotas.sum())
    quotas[np.argsort(quotas - exact, kind="stable")[:missing]] += 1
    return quotas


def by_group(groups: np.ndarray, read: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return what ``read(group, places)`` returns for the places of each distinct group, in the order of the places.

    An empty result has the type that ``read`` gives.
    """
    order = np.argsort(groups.astype(np.uint16) if groups.max(initial=0) < 1 << 16 else groups, kind="stable")
    distinct, starts = np.unique(groups[order], return_index=True)
    places = np.split(order, starts[1:])
    numbers = distinct.tolist() or [0]
    read_parts = np.concatenate([read(group, some) for group, some in zip(numbers, places, strict=True)])
    parts = np.empty_like(read_parts)
    parts[order] = read_parts
    return parts


class ExampleOrder:
    """The order of all examples of a run: maps an absolute position in training to (corpus, row).

    Args:
        sizes: Number of examples of each corpus.
        alpha: Exponent of temperature sampling between corpora. At 1 an epoch holds each example exactly once. Below 1,
            small corpora are repeated, and large ones continue in the next epoch where they stopped in this one.
        seed: Seed of the run. Negative seeds are taken modulo 2**64, as in torch.
        lengths: ``lengths(corpus, rows int64 [n]) -> int64 [n]``, the key by which a window is sorted.
    """

    def __init__(
        self, sizes: list[int], alpha: float, seed: int, lengths: Callable[[int, np.ndarray], np.ndarray]
    ) -> None:
        self.sizes = sizes
        self.epoch_size = int(sum(sizes))
        self._quotas, self._sizes = sampling_quotas(sizes, alpha), np.asarray(sizes, dtype=np.int64)
        self._borders = np.cumsum(self._quotas)
        self._seed = seed % 2**64
        self._lengths = lengths
        self._cached: tuple[tuple[int, int], np.ndarray] | None = None

    def take(self, start: int, stop: int) -> np.ndarray:
        """Return (corpus, row) of the examples ``start`` to ``stop`` of the run: int64 [stop - start, 2]."""
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.epoch_size)
            number, skip = divmod(offset, WINDOW_SIZE)
            window = self._window(epoch, number)
            part = window[skip : skip + stop - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts) if parts else np.zeros((0, 2), dtype=np.int64)

    def _window(self, epoch: int, number: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != (epoch, number):
            self._cached = ((epoch, number), self._make_window(epoch, number))
        return self._cached[1]

    def _make_window(self, epoch: int, number: int) -> np.ndarray:
        first = number * WINDOW_SIZE
        positions = np.arange(first, min(first + WINDOW_SIZE, self.epoch_size))
        drawn = permute(positions, self.epoch_size, (self._seed, epoch, 0))
        corpora = np.searchsorted(self._borders, drawn, side="right")
        rows = self._rows(corpora, epoch, drawn)
        lengths = by_group(corpora, lambda corpus, places: self._lengths(corpus, rows[places]))
        by_length = np.argsort(lengths, kind="stable")
        blocks = np.array_split(by_length, range(BLOCK_SIZE, len(by_length), BLOCK_SIZE))
        shuffled = np.random.default_rng((self._seed, epoch, number, 1)).permutation(len(blocks))
        order = np.concatenate([blocks[b] for b in shuffled])
        return np.stack([corpora[order], rows[order]], axis=1)

    def _rows(self, corpora: np.ndarray, epoch: int, drawn: np.ndarray) -> np.ndarray:
        """Return the rows of the numbers that were drawn for corpora in an epoch.

        They are positions in each corpus's endless stream, in which one permutation follows another.
        """
        quotas, sizes = self._quotas[corpora], self._sizes[corpora]
        passes, offsets = np.divmod(epoch * quotas + drawn - (self._borders[corpora] - quotas), sizes)
        first = passes.min(initial=0)
        span = int(passes.max(initial=0)) - first + 1
        both, groups = np.unique(corpora * span + passes - first, return_inverse=True)
        corpus_of, numbers = both // span, both % span + first
        keys = [(self._seed, number, corpus + 2) for corpus, number in np.stack([corpus_of, numbers], axis=1).tolist()]
        return permute_groups(offsets, groups, self._sizes[corpus_of], keys)


class RowRange(NamedTuple):
    """The examples of a table that make a group: ``size`` ones from ``first`` on."""

    table: int
    first: int
    size: int


class GroupOrder(ExampleOrder):
    """The endless order of the examples of one group."""

    def __init__(self, group: RowRange, seed: int, lengths: Callable[[int, np.ndarray], np.ndarray]) -> None:
        super().__init__([group.size], 1.0, seed, lambda _, rows: lengths(group.table, group.first + rows))
        self._group = group

    def take(self, start: int, stop: int) -> np.ndarray:
        """Return table, row and place in this order of the examples: int64 [stop - start, 3]."""
        rows = self._group.first + super().take(start, stop)[:, 1]
        return np.stack([np.full_like(rows, self._group.table), rows, np.arange(start, stop)], axis=1)


class GroupedOrder:
    """The order of examples whose batches are each of one group: which group is next, and the order in each of them.

    An epoch has a number of examples of each group, its quota, and ends for all groups at once. Its batches come in a
    random order, which depends on the seed, on how many examples of each group were consumed before, and on the batch
    size over all ranks. The order inside a group depends on the seed alone.

    Args:
        groups: The groups, which have no example in common.
        alpha: The quotas are proportional to n ** alpha, where n is the size of a group, as in ``ExampleOrder``.
        seed, lengths: As of ``ExampleOrder``.
    """

    def __init__(
        self, groups: Sequence[RowRange], alpha: float, seed: int, lengths: Callable[[int, np.ndarray], np.ndarray]
    ) -> None:
        sizes = [group.size for group in groups]
        self.epoch_size, self.quotas, self._seed = sum(sizes), sampling_quotas(sizes, alpha), seed % 2**64
        self.groups = [GroupOrder(group, seed + number * GOLDEN, lengths) for number, group in enumerate(groups)]

    def draw(self, taken: Sequence[int], size: int) -> tuple[int, int]:
        """Return the group of the next batch, and the number of its examples that are left in this epoch. Every order
        of the batches that are left is as likely.

        Args:
            taken: Number of examples of each group that were consumed so far.
            size: Number of examples in a batch.
        """
        consumed = sum(taken)
        left = np.maximum((consumed // self.epoch_size + 1) * self.quotas - taken, 0)
        borders = np.cumsum(-(-left // size))
        drawn = np.random.default_rng((self._seed, consumed, 2)).integers(borders[-1])
        group = int(np.searchsorted(borders, drawn, side="right"))
        return group, int(left[group])
