"""Batches of a task with the plans of a criterion, made together, in worker processes if there are any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from xrep.criteria.criterion import Criterion, Planned
from xrep.data.batching import Batch
from xrep.data.stream import Plan
from xrep.registry import check_returned
from xrep.tasks.task import Task


class PlannedBatches:
    """What ``xrep.data.stream.stream`` makes batches of: those of a task, planned by a criterion.

    The random numbers of a plan are drawn from (seed, rank, number of examples so far). So a batch is the same
    whichever process makes it, and after the run was resumed.
    """

    def __init__(self, task: Task, criterion: Criterion, seed: int, rank: int) -> None:
        self.task, self.criterion, self.seed, self.rank = task, criterion, seed, rank

    def plan(self, cursor: Any = None, rank: int = 0, world_size: int = 1, stop: int | None = None) -> Iterator[Plan]:
        """Return the plans of the task, in which ``Plan.what`` also has the number of examples so far."""
        for plan in self.task.plan(cursor, rank, world_size, stop):
            yield replace(plan, what=(plan.what, plan.examples))

    def make(self, what: tuple[Any, int]) -> Planned:
        examples, number = what
        generator = torch.Generator().manual_seed(hash((self.seed, self.rank, number)) % 2**63)
        batch = check_returned(self.task, "make", self.task.make(examples), Batch, Task)
        return check_returned(self.criterion, "plan", self.criterion.plan(batch, generator), Planned, Criterion)
