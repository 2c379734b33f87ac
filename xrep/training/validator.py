"""The interface between a validation and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from xrep.criteria.criterion import Criterion
from xrep.models.model import Model
from xrep.tasks.task import Task


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

    @abstractmethod
    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Return the metrics by name, without changing model, criterion or random state."""
