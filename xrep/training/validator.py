"""The interface between a validation and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn

from xrep.criteria.criterion import Criterion
from xrep.kernels.gather import apart
from xrep.models.model import Model
from xrep.tasks.task import Task

SEED = 1
"""Seed for the random draws of a validation, so that each validation masks the same tokens."""


class Validator(ABC):
    """Measures a model while it is trained. A validator is built as ``Validator(config, task)``, before training.

    Attributes:
        needs: Kind of model that it measures; None: any kind.
        metric: Name of the metric by which the best checkpoint is chosen.
        maximize: Whether a higher value of the metric is better.
    """

    needs: ClassVar[type[Model] | None] = None
    metric: str
    maximize: bool

    @abstractmethod
    def __init__(self, config: Any, task: Task) -> None: ...

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Return the metrics by name; training modes and the random state are restored afterwards."""
        device = next(model.parameters()).device
        devices = [device] if device.type == "cuda" else []
        with evaluating(model, criterion), apart(), torch.random.fork_rng(devices):
            torch.manual_seed(SEED)
            return self.measure(model, criterion)

    @abstractmethod
    def measure(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Return the metrics by name.

        Model and criterion are in evaluation mode and without gradients, and do not communicate with other processes.
        The random numbers are the same in every validation.
        """


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Context manager that puts modules into evaluation mode, without gradients, and restores their modes on exit."""
    # The mode of each submodule is saved, because a frozen part may already have been in evaluation mode.
    training = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, mode in training:
            part.training = mode
