"""The interface between a validation and the trainer."""

from __future__ import annotations

from typing import Any, Protocol

from xrep.criteria.criterion import Criterion


class Validator(Protocol):
    """Measures a model while it is trained."""

    @property
    def metric(self) -> str:
        """Name of the metric by which the best checkpoint is chosen."""
        ...

    @property
    def maximize(self) -> bool:
        """Whether a higher value of the metric is better."""
        ...

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Return the metrics by name, without changing model and criterion."""
        ...
