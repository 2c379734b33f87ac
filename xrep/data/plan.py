"""How tasks cut the order of examples into batches: by a fixed number of examples, or by a token budget.

Either way a batch is a contiguous part of the order, and the cursor is the number of examples consumed so far. A run
can therefore resume exactly with another batch size, another budget, a budget instead of a batch size or the reverse,
or another number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from xrep.data.order import ExampleOrder
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
        corpora = examples[:, 0]
        places = [np.flatnonzero(corpora == corpus) for corpus in np.unique(corpora)]
        lengths = [self.lengths(int(corpora[place[0]]), examples[place, 1]) for place in places]
        return np.concatenate(lengths)[np.argsort(np.concatenate(places))]

    def fill(self, lengths: np.ndarray) -> int:
        """Return how many of the first examples form a batch, at least one if any; ``lengths`` is int64 [N, sides]."""
        lengths = lengths[: self.max_examples]
        padded = np.maximum.accumulate(lengths) * np.arange(1, len(lengths) + 1)[:, None]
        fits = (lengths.cumsum(0) <= self.max_tokens) & (padded <= MOST_PADDING * self.max_tokens)
        # Neither quantity decreases, so the examples that fit are the first ones.
        return max(int(fits.all(1).sum()), min(1, len(lengths)))


def plan_batches(
    order: ExampleOrder, batch_size: int, cursor: int | None, rank: int, world_size: int, stop: int | None
) -> Iterator[Plan]:
    """Yield the plans of the training batches of one rank, after the first ``cursor`` examples of the run.

    There is no end unless ``stop`` gives the number of the last example. Each global batch of ``world_size`` *
    ``batch_size`` consecutive examples is split into one part per rank; at the end, parts may be smaller or empty.
    ``Plan.what`` is (corpus, row) of each example, int64 [N, 2]. ``Plan.cursor`` counts the examples consumed so far.
    """
    start, size = cursor or 0, batch_size * world_size
    while stop is None or start < stop:
        end = start + size if stop is None else min(start + size, stop)
        yield Plan(np.array_split(order.take(start, end), world_size)[rank], end, end)
        start = end


def plan_by_tokens(
    order: ExampleOrder, budget: TokenBudget, cursor: int | None, rank: int, world_size: int, stop: int | None
) -> Iterator[Plan]:
    """Do what ``plan_batches`` does, but fill ``budget`` on every rank (like fairseq's --max-tokens).

    The parts of the ranks follow each other in the order; at the end, those of the last ranks may be empty.
    """
    end = cursor or 0
    batches = _cut(order, budget, end, stop)
    while parts := list(islice(batches, world_size)):
        end += sum(map(len, parts))
        yield Plan(parts[rank] if rank < len(parts) else parts[0][:0], end, end)


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


def check_size(examples: int, what: str, batch_size: int, world_size: int, path: str | Path) -> None:
    """Raise UserError if an epoch is smaller than one batch on each of ``world_size`` ranks.

    Args:
        examples: Number of examples of an epoch.
        what: Name of the examples in the error message.
        path: Where the examples are stored.
    """
    if examples < batch_size * world_size:
        raise _too_small(examples, what, f"{batch_size}", "`batch_size`", world_size, path)


def check_budget(order: ExampleOrder, what: str, budget: TokenBudget, world_size: int, path: str | Path) -> None:
    """Raise UserError as ``check_size`` does, for batches that fill a budget."""
    # One example more than the epoch has is allowed. If it still fits, the epoch does not fill the batches.
    first = next(plan_by_tokens(order, budget, None, 0, world_size, order.epoch_size + 1))
    if first.examples > order.epoch_size:
        size = f"{budget.max_tokens} tokens"
        raise _too_small(order.epoch_size, what, size, "`max_tokens`", world_size, path)


def _too_small(examples: int, what: str, size: str, option: str, world_size: int, path: str | Path) -> UserError:
    each = f" on each of {world_size} ranks" if world_size > 1 else ""
    return UserError(
        f"{examples} training {what} do not fill a batch of {size}{each}",
        path=path,
        cure=f"lower {option}{', start fewer processes' if each else ''} or give more text",
    )
