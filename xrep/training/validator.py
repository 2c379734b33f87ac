"""The interface between a validation and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.kernels.gather import without_others
from xrep.models.model import Model
from xrep.tasks.task import Task
from xrep.training.distributed import World, alone

T = TypeVar("T")
R = TypeVar("R")
SEED = 1
"""Seed for the random draws of a validation, so that each validation masks the same tokens."""


@dataclass(frozen=True)
class OverRanks:
    """Divides the work of a validation among the ranks of a run."""

    world: World

    def __call__(self, items: Iterable[T], compute: Callable[[T], R]) -> list[R]:
        """Return ``compute(item)`` for all items, in their order; the ranks take the items in turn.

        Every rank goes through all items, so that what is drawn at random for them does not depend on the number of
        ranks. The results are sent to all ranks, and should be small.

        Raises:
            UserError: ``compute`` raised it, on any rank.
        """
        count, own = 0, list[R]()
        problem: UserError | None = None
        try:
            for item in items:
                if count % self.world.size == self.world.rank:
                    own.append(compute(item))
                count += 1
        except UserError as error:  # the other ranks wait for an answer
            problem = error
        told = self.world.gather((own, problem))
        if problem := next((error for _, error in told if error is not None), None):
            raise problem
        return [told[number % self.world.size][0][number // self.world.size] for number in range(count)]


@dataclass
class NoOptions:
    """The options of a validation that has none."""


class Validator(ABC):
    """Measures a model while it is trained. A validator is built as ``Validator(config, task)``, before training.

    Attributes:
        Config: Dataclass of its options.
        needs: Kind of model that it measures; None: any kind.
        metric: Name of the metric by which the best checkpoint is chosen.
        maximize: Whether a higher value of the metric is better.
        examples: Lines that show the last validation to the user.
    """

    Config: ClassVar[Any] = NoOptions
    needs: ClassVar[type[Model] | None] = None
    metric: str
    maximize: bool
    examples: Sequence[str] = ()

    @abstractmethod
    def __init__(self, config: Any, task: Task) -> None: ...

    def __call__(self, model: Any, criterion: Criterion, world: World | None = None) -> dict[str, float]:
        """Return the metrics by name, and leave model and criterion in evaluation mode; the random state is restored.

        Args:
            world: The ranks that make this call together, and share the work; None: this process alone.
        """
        device = next(model.parameters()).device
        devices = [device] if device.type == "cuda" else []
        with torch.inference_mode(), without_others(), torch.random.fork_rng(devices):
            torch.manual_seed(SEED)
            return self.measure(model.eval(), criterion.eval(), OverRanks(world or alone(device)))

    def advice(self, best: float) -> list[str]:
        """Return what a user should know after training, from the best value of the metric."""
        return []

    @abstractmethod
    def measure(self, model: Any, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the metrics by name.

        Model and criterion are in evaluation mode and without gradients, and do not communicate with other processes.
        The random numbers are the same in every validation. All ranks of a run make this call; ``over_ranks(items,
        compute)`` divides work among them.
        """
