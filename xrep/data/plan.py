"""How tasks cut one order of examples into batches: fixed numbers of examples, or as many as a token budget holds.

Either way a batch is a stretch of the order, and the cursor counts the examples behind the last one. So a run goes on
exactly with another batch size, another budget, the one in the place of the other, or another number of ranks.
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
"""Padded matrices have at most so many times the tokens of a budget. A long sentence among hundreds of short ones would
have attention, which is computed on the padded matrix, run out of memory; on news text of four languages batches are
filled to 97-99% all the same. Were padding counted as tokens, it would be 91% at 1,024 tokens and 60% at 16,384."""
_AHEAD = 2048
"""Examples whose lengths are looked up at a time."""


@dataclass(frozen=True)
class TokenBudget:
    """A batch is as many of the next examples as fit; one that is too long by itself is a batch of its own.

    Attributes:
        max_tokens: of each side of a rank's batch. Padding does not count, which the encoder does not compute; but
            padded sides have at most ``MOST_PADDING`` times as many.
        lengths: ``lengths(corpus, rows int64 [n]) -> int64 [n, sides]``: tokens of each side of these examples, as the
            batch will have them (cut, special tokens included).
        max_examples: of a rank's batch; None: any number.
    """

    max_tokens: int
    lengths: Callable[[int, np.ndarray], np.ndarray]
    max_examples: int | None = None

    def lengths_of(self, examples: np.ndarray) -> np.ndarray:
        """int64 [N, sides]: of examples that begin with (corpus, row), int64 [N, 2 or more], read corpus by corpus."""
        corpora = examples[:, 0]
        places = [np.flatnonzero(corpora == corpus) for corpus in np.unique(corpora)]
        found = [self.lengths(int(corpora[place[0]]), examples[place, 1]) for place in places]
        return np.concatenate(found)[np.argsort(np.concatenate(places))]

    def fill(self, lengths: np.ndarray) -> int:
        """How many of the first examples, of ``lengths`` int64 [N, sides], make a batch: at least one, if there is."""
        lengths = lengths[: self.max_examples]
        padded = np.maximum.accumulate(lengths) * np.arange(1, len(lengths) + 1)[:, None]
        fits = (lengths.cumsum(0) <= self.max_tokens) & (padded <= MOST_PADDING * self.max_tokens)
        return max(int(fits.all(1).sum()), min(1, len(lengths)))  # neither falls, so what fits comes first


def plan_batches(
    order: ExampleOrder, batch_size: int, cursor: int | None, rank: int, world_size: int, stop: int | None
) -> Iterator[Plan]:
    """The training batches of one rank, behind the first ``cursor`` examples of the run.

    They go on for ever, or up to example ``stop``. Each global batch of ``world_size`` * batch_size consecutive
    examples is cut into one part a rank; where examples run out, parts may be smaller, even empty.
    ``Plan.what``: (corpus, row) of each example, int64 [N, 2]. ``Plan.cursor``: examples of the run so far.
    """
    start, size = cursor or 0, batch_size * world_size
    while stop is None or start < stop:
        end = start + size if stop is None else min(start + size, stop)
        yield Plan(np.array_split(order.take(start, end), world_size)[rank], end, end)
        start = end


def plan_by_tokens(
    order: ExampleOrder, budget: TokenBudget, cursor: int | None, rank: int, world_size: int, stop: int | None
) -> Iterator[Plan]:
    """As ``plan_batches``, but every rank's part of a global batch fills ``budget`` (fairseq's --max-tokens).

    One rank's part follows the other's in the order; where examples run out, the last ranks' may be empty.
    """
    end = cursor or 0
    batches = _cut(order, budget, end, stop)
    while parts := list(islice(batches, world_size)):
        end += sum(map(len, parts))
        yield Plan(parts[rank] if rank < len(parts) else parts[0][:0], end, end)


def _cut(order: ExampleOrder, budget: TokenBudget, start: int, stop: int | None) -> Iterator[np.ndarray]:
    """The examples of one batch after the other."""
    examples = order.take(start, start)
    lengths = np.zeros((0, 1), dtype=np.int64)
    while True:
        count = budget.fill(lengths)
        if count < len(lengths) or (stop is not None and start >= stop):
            if not count:
                return
            yield examples[:count]
            examples, lengths = examples[count:], lengths[count:]
        else:  # what follows may belong to this batch
            end = start + max(_AHEAD, len(examples))
            end = end if stop is None else min(end, stop)
            more, start = order.take(start, end), end
            of_more = budget.lengths_of(more)
            lengths = np.concatenate([lengths, of_more]) if len(lengths) else of_more
            examples = np.concatenate([examples, more])


def check_size(examples: int, what: str, batch_size: int, world_size: int, path: str | Path) -> None:
    """Raise UserError if an epoch is smaller than one batch on each of ``world_size`` ranks.

    Args:
        what: what the examples are called.
        path: where they are.
    """
    if examples < batch_size * world_size:
        raise _too_small(examples, what, f"{batch_size}", "--batch-size", world_size, path)


def check_budget(order: ExampleOrder, what: str, budget: TokenBudget, world_size: int, path: str | Path) -> None:
    """``check_size`` of batches that fill a budget."""
    # One example more is planned: where it still fits, the epoch does not fill the batches.
    first = next(plan_by_tokens(order, budget, None, 0, world_size, order.epoch_size + 1))
    if first.examples > order.epoch_size:
        size = f"{budget.max_tokens} tokens"
        raise _too_small(order.epoch_size, what, size, "--max-tokens", world_size, path)


def _too_small(examples: int, what: str, size: str, option: str, world_size: int, path: str | Path) -> UserError:
    each = f" on each of {world_size} ranks" if world_size > 1 else ""
    return UserError(
        f"{examples} training {what} do not fill a batch of {size}{each}",
        path=path,
        cure=f"lower {option}{', start fewer processes' if each else ''} or give more text",
    )
