"""Criteria that compare the rows of a batch: what each row gives alone, and the comparison of them all."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from xrep.criteria.criterion import Criterion, Loss


@dataclass
class Encoded:
    """What the rows of a batch give, each by itself.

    Attributes:
        vectors: tensors of one row for each row of the batch, with gradient where they are trained.
        loss: terms that need no other rows (a reconstruction of each sentence, say).
    """

    vectors: tuple[Tensor, ...]
    loss: Loss = field(default_factory=lambda: Loss({}))


class ContrastiveCriterion(Criterion):
    """An objective in two parts, so that a batch may be encoded piece by piece where its activations do not fit.

    ``encode`` sees some rows of a batch (a slice that ``batch.rows`` gives), ``contrast`` the vectors of all of them.
    """

    @abstractmethod
    def encode(self, model: nn.Module, batch: Any) -> Encoded:
        """The vectors that are compared, in the order ``contrast`` takes them; no row may look at another."""

    @abstractmethod
    def contrast(self, vectors: tuple[Tensor, ...], batch: Any) -> Loss:
        """The terms that compare rows. It may exchange tensors between ranks; ``encode`` may not."""

    def forward(self, model: nn.Module, batch: Any) -> Loss:
        encoded = self.encode(model, batch)
        loss = self.contrast(encoded.vectors, batch)
        return Loss(loss.terms | encoded.loss.terms, loss.metrics | encoded.loss.metrics)
