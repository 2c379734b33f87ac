"""The contract between a validation and the trainer."""

from __future__ import annotations

from typing import Any, Protocol

from xrep.criteria.criterion import Criterion


class Validator(Protocol):
    """Measures a model while it is trained."""

    @property
    def metric(self) -> str:
        """The one of its numbers by which the best checkpoint is chosen."""
        ...

    @property
    def maximize(self) -> bool:
        """Whether more of it is better."""
        ...

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Its numbers, by name. Model and criterion are left as they were."""
        ...
