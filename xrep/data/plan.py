"""What every task plans that draws fixed numbers of examples from one order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from xrep.data.order import ExampleOrder
from xrep.data.stream import Plan
from xrep.errors import UserError


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


def check_size(examples: int, what: str, batch_size: int, world_size: int, path: str | Path) -> None:
    """Raise UserError if an epoch is smaller than one batch on each of ``world_size`` ranks.

    Args:
        what: what the examples are called.
        path: where they are.
    """
    if examples < batch_size * world_size:
        each = f" on each of {world_size} ranks" if world_size > 1 else ""
        raise UserError(
            f"{examples} training {what} do not fill a batch of {batch_size}{each}",
            path=path,
            cure=f"lower --batch-size{', start fewer processes' if each else ''} or give more text",
        )
