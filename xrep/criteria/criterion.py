"""The contract between an objective and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class Term:
    """One loss, summed over the things that ``Criterion.sizes`` counts: ``sum`` is a scalar with gradient."""

    sum: Tensor
    weight: float = 1.0


@dataclass
class Loss:
    """The objective is Σ weight · sum / size over the terms, their sizes added up over micro-batches and ranks first.

    Attributes:
        metrics: further numbers to log, each a mean over the batch.
    """

    terms: dict[str, Term]
    metrics: dict[str, float] = field(default_factory=dict)


class Criterion(nn.Module, ABC):
    """An objective and what it throws away after training (momentum encoders, queues, heads).

    Built as ``Criterion(config, model, text)``. It must not keep the model as a submodule: the trainer wraps both
    side by side.
    """

    @abstractmethod
    def sizes(self, batch: Any) -> dict[str, float]:
        """How many things each term sums over in this batch (pairs, masked tokens).

        It is told by the batch alone, before the forward pass, because the gradients of the first micro-batch of a step
        are already divided by the sizes of all of them.
        """

    @abstractmethod
    def forward(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of one batch, with gradient towards the model (and towards what the criterion trains itself)."""

    def after_step(self, model: nn.Module) -> None:
        """Called once after each optimizer step (momentum update, enqueueing)."""

    def warnings(self, training_examples: int) -> list[str]:
        """What a user should know before training on that many examples."""
        return []
