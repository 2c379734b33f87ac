"""The batches of each step, planned by task and criterion, and what the ranks agree on before they compute it."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch

from xrep.criteria.criterion import Criterion, Planned
from xrep.data.stream import Plan
from xrep.tasks.task import Task
from xrep.training.distributed import World


@dataclass
class Group:
    """The batches of a step of this rank, and what all ranks know about the step.

    Attributes:
        plan: the plan of the last batch.
        waited: seconds for which this rank waited for its batches.
        sizes: size of each term, summed over the ranks.
        tokens: number of tokens on all ranks.
        seconds: seconds of training so far, by the clock of rank 0.
        stop: whether a rank was told to stop.
    """

    batches: list[Planned]
    plan: Plan
    waited: float = 0.0
    sizes: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    stop: bool = False


def planned_batch(task: Task, criterion: Criterion, seed: int, rank: int, plan: Plan) -> Planned:
    """Return the batch of a task's plan, with the plan of a criterion.

    The random numbers of the latter are drawn from (seed, rank, number of examples so far). So a batch is the same
    whichever process makes it, and after the run was resumed.
    """
    generator = torch.Generator().manual_seed(hash((seed, rank, plan.examples)) % 2**63)
    return criterion.plan(task.make(plan.rows), generator)


def groups_of(batches: Generator[tuple[Planned, Plan], None, None], size: int) -> Generator[Group, None, None]:
    """Yield the batches of each step of this rank, ``size`` at a time."""
    with closing(batches):
        began = time.monotonic()
        while group := list(itertools.islice(batches, size)):
            yield Group([batch for batch, _ in group], group[-1][1], waited=time.monotonic() - began)
            began = time.monotonic()


def steps_ahead(
    groups: Iterator[Group], world: World, status: Callable[[], tuple[float, bool]]
) -> Generator[Group, None, None]:
    """Yield the batches of each step, with what the ranks agreed on.

    With several ranks, these agree on a step while the one before it is computed: nobody waits for the slowest rank's
    data at once, and a request to stop takes effect a step later.

    Args:
        status: returns the seconds of this rank, 0 on all but rank 0, and whether it was told to stop.
    """
    told, ahead = deque[Callable[[], Group]](), int(world.size > 1)
    try:
        for group in groups:
            told.append(_tell(group, world, *status()))
            if len(told) > ahead:
                yield told.popleft()()
        while told:
            yield told.popleft()()
    finally:
        for wait in told:  # every rank has told about these steps, and no message may be left under way
            wait()


def _tell(group: Group, world: World, seconds: float, stop: bool) -> Callable[[], Group]:
    """Tell the other ranks about a step; return a function that waits for what they tell."""
    sizes = defaultdict[str, float](float)
    for name, size in (item for batch in group.batches for item in batch.sizes.items()):
        sizes[name] += size
    tokens = sum(batch.token_count for batch in group.batches)
    plans = [own for batch in group.batches for own in batch.by_part.values()] if world.size > 1 else []
    rows = [float(len(own) * (rank == world.rank)) for own in plans for rank in range(world.size)]
    sums = world.sums_later([seconds, tokens, float(stop), *sizes.values(), *rows])

    def wait() -> Group:
        numbers = iter(sums())
        seconds, tokens, stop, *agreed = itertools.islice(numbers, 3 + len(sizes))
        for own in plans:
            own.rank_rows = [int(count) for count in itertools.islice(numbers, world.size)]
        known = dict(zip(sizes, agreed, strict=True))
        return replace(group, sizes=known, tokens=int(tokens), seconds=seconds, stop=stop > 0)

    return wait
