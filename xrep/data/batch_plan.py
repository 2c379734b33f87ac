"""How tasks cut the order of examples into batches: by a fixed number of examples, or by a token budget.

Either way a batch is a contiguous part of the order, and the cursor is the number of examples consumed so far. A run
can therefore resume exactly with another batch size, another budget, a budget instead of a batch size or the reverse,
or another number of ranks. Of a ``GroupedOrder`` a batch is a contiguous part of the order of one group, and the cursor
is the number of examples of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.order import WINDOW_SIZE, ExampleOrder, GroupedOrder, by_group
from xrep.data.stream import Plan
from xrep.errors import UserError

MOST_PADDING = 3
"""Maximum size of a padded matrix as a multiple of the token budget. Attention is computed on the padded matrix, so one
long sentence among hundreds of short ones could exhaust the memory. On news text of four languages, batches are still
filled to 97-99%. If padding counted as tokens, they would be filled to 91% at 1,024 tokens and to 60% at 16,384."""
_AHEAD = 2048
"""Number of examples whose lengths are looked up at a time."""


@dataclass(frozen=True)
class TokenBudget:
    """The rule that a batch holds as many of the next examples as fit into a number of tokens.

    An example that is too long by itself becomes a batch of its own.

    Attributes:
        max_tokens: Maximum number of tokens of each side of a rank's batch. Padding does not count, because the encoder
            does not compute it, but each padded side has at most ``MOST_PADDING`` times this size.
        lengths: ``lengths(corpus, rows int64 [n]) -> int64 [n, sides]``, the number of tokens of each side of these
            examples as they will be in the batch (after cutting, including special tokens).
        max_examples: Maximum number of examples of a rank's batch; None for no limit.
    """

    max_tokens: int
    lengths: Callable[[int, np.ndarray], np.ndarray]
    max_examples: int | None = None

    def lengths_of(self, examples: np.ndarray) -> np.ndarray:
        """Return the lengths, int64 [N, sides], of examples, int64 [N, 2 or more], that begin with (corpus, row)."""
        return by_group(examples[:, 0], lambda corpus, places: self.lengths(corpus, examples[places, 1]))

    def fill(self, lengths: np.ndarray) -> int:
        """Return how many of the first examples form a batch, at least one if any; ``lengths`` is int64 [N, sides]."""
        lengths = lengths[: self.max_examples]
        padded = np.maximum.accumulate(lengths) * np.arange(1, len(lengths) + 1)[:, None]
        fits = (lengths.cumsum(0) <= self.max_tokens) & (padded <= MOST_PADDING * self.max_tokens)
        # Neither quantity decreases, so the examples that fit are the first ones.
        return max(int(fits.all(1).sum()), min(1, len(lengths)))


def plan_batches(
    order: ExampleOrder | GroupedOrder,
    size: int | TokenBudget,
    cursor: Any = None,
    rank: int = 0,
    world_size: int = 1,
    stop: int | None = None,
) -> Iterator[Plan]:
    """Yield the plans of the training batches of one rank, after the first ``cursor`` examples of the run, or after
    those of each group.

    There is no end unless ``stop`` gives the number of the last example. ``Plan.rows`` is (corpus, row) of each
    example, int64 [N, 2]. ``Plan.cursor`` counts the examples consumed so far.

    Each global batch is a part of the order. If ``size`` is a number, it has ``world_size`` * ``size`` examples and is
    split into one part per rank; at the end, parts may be smaller or empty. A budget is filled on every rank (like
    fairseq's --max-tokens). The parts of the ranks follow each other; at the end, those of the last ranks may be empty.
    """
    if isinstance(order, GroupedOrder):
        yield from _plan_groups(order, size, cursor, rank, world_size, stop)
        return
    end = cursor or 0
    if isinstance(size, TokenBudget):
        batches = _cut(order, size, end, stop)
        while parts := list(islice(batches, world_size)):
            end += sum(map(len, parts))
            yield Plan(parts[rank] if rank < len(parts) else parts[0][:0], end, end)
        return
    while stop is None or end < stop:
        start, end = end, end + size * world_size
        end = end if stop is None else min(end, stop)
        yield Plan(_own_part(order, start, end, rank, world_size), end, end)


def _own_part(order: ExampleOrder, start: int, end: int, rank: int, world_size: int) -> np.ndarray:
    """Return a rank's part of a global batch, which np.array_split would divide so; those of others are not looked
    up."""
    part, larger = divmod(end - start, world_size)
    first = start + rank * part + min(rank, larger)
    return order.take(first, first + part + (rank < larger))


def _plan_groups(
    order: GroupedOrder, size: int | TokenBudget, cursor: Any, rank: int, world_size: int, stop: int | None
) -> Iterator[Plan]:
    """Yield what ``plan_batches`` yields. What is left of a group in an epoch is divided evenly into batches, so that
    none is much smaller than the others; with a budget, the last one is smaller."""
    taken = list(cursor or [0] * len(order.groups))
    while stop is None or sum(taken) < stop:
        whole = 1 if isinstance(size, TokenBudget) else size * world_size
        group, left = order.draw(taken, whole)
        own, start = order.groups[group], taken[group]
        end = start + (left if stop is None else min(left, stop - sum(taken)))
        if isinstance(size, TokenBudget):
            parts = list(islice(_cut(own, size, start, end), world_size))
            rows, end = parts[rank] if rank < len(parts) else parts[0][:0], start + sum(map(len, parts))
        else:
            end = min(end, start + -(-left // -(-left // whole)))
            rows = _own_part(own, start, end, rank, world_size)
        taken[group] = end
        yield Plan(rows, list(taken), sum(taken))


def mean_size(order: ExampleOrder | GroupedOrder, size: int | TokenBudget) -> float:
    """Return the mean number of examples of a rank's batch; with a budget, over the first examples of the order."""
    if not isinstance(size, TokenBudget):
        return order.epoch_size / sum(-(-order.quotas // size)) if isinstance(order, GroupedOrder) else size
    first = min(order.epoch_size, WINDOW_SIZE)
    return first / sum(1 for _ in plan_batches(order, size, stop=first))


def _cut(order: ExampleOrder, budget: TokenBudget, start: int, stop: int | None) -> Iterator[np.ndarray]:
    """Yield the examples of each batch."""
    examples = order.take(start, start)
    lengths = np.zeros((0, 1), dtype=np.int64)
    while True:
        count = budget.fill(lengths)
        if count < len(lengths) or (stop is not None and start >= stop):
            if not count:
                return
            yield examples[:count]
            examples, lengths = examples[count:], lengths[count:]
        else:  # the examples that follow may also fit into this batch
            end = start + max(_AHEAD, len(examples))
            end = end if stop is None else min(end, stop)
            more, start = order.take(start, end), end
            of_more = budget.lengths_of(more)
            lengths = np.concatenate([lengths, of_more]) if len(lengths) else of_more
            examples = np.concatenate([examples, more])


def check_size(
    order: ExampleOrder | GroupedOrder, size: int | TokenBudget, unit: str, world_size: int, path: str | Path
) -> None:
    """Raise UserError if an epoch, or all of the largest group, is smaller than one batch on each of ``world_size``
    ranks.

    Args:
        unit: Name of the examples in the error message.
        path: Where the examples are stored.
    """
    if isinstance(order, GroupedOrder):
        order, unit = max(order.groups, key=lambda group: group.epoch_size), f"{unit} of the largest group"
    if not _fills(order, size, world_size):
        batch, option = str(size), "`batch_size`"
        if isinstance(size, TokenBudget):
            batch, option = f"{size.max_tokens} tokens", "`max_tokens`"
        each = f" on each of {world_size} ranks" if world_size > 1 else ""
        cure = f"lower {option}{', start fewer processes' if each else ''} or give more text"
        problem = f"{order.epoch_size} training {unit} do not fill a batch of {batch}{each}"
        raise UserError(problem, path=path, cure=cure)


def small_groups(order: ExampleOrder | GroupedOrder, size: int | TokenBudget, world_size: int) -> list[str]:
    """Return a warning if groups are smaller than one batch on each of ``world_size`` ranks."""
    groups = order.groups if isinstance(order, GroupedOrder) else []
    if not (small := sum(not _fills(group, size, world_size) for group in groups)):
        return []
    warning = f"{small} of {len(groups)} groups of `batch_by` do not fill a batch, and their pairs weigh more than"
    return [f"{warning} others: every batch is a step; join them, or lower the size of a batch"]


def _fills(order: ExampleOrder, size: int | TokenBudget, world_size: int) -> bool:
    """Return whether an epoch fills one batch on each rank."""
    if not isinstance(size, TokenBudget):
        return order.epoch_size >= size * world_size
    # One example more than the epoch has is allowed. If it still fits, the epoch does not fill the batches.
    more = plan_batches(order, size, None, 0, world_size, order.epoch_size + 1)
    return order.epoch_size >= next(more).examples
