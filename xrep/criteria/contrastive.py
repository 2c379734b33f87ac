"""Criteria that compare the rows of a batch: what each row gives alone, and the comparison of them all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from xrep.criteria.criterion import Criterion, Loss, Term


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
    def encode(self, model: Any, batch: Any) -> Encoded:
        """The trained vectors that are compared; no row may look at another, and no rank at another."""

    @abstractmethod
    def contrast(self, vectors: tuple[Tensor, ...], batch: Any) -> Loss:
        """The terms that compare rows: called once for each batch. It may exchange tensors between ranks.

        Args:
            vectors: those of ``encode``, then those of ``constants``.
        """

    def constants(self, model: Any, batch: Any) -> tuple[Tensor, ...]:
        """Further vectors that are compared and get no gradient (of a momentum encoder): computed once for each row."""
        return ()

    def vectors(self, model: Any, batch: Any) -> tuple[Tensor, ...]:
        """Those of ``encode`` alone. To be overridden where its loss is dear: these are computed twice, it is not.

        It must begin as ``encode`` does: what both draw random numbers for is the same, in the same order.
        """
        return self.encode(model, batch).vectors

    def set_micro_batch(self, rows: int) -> None:
        self.micro_batch = rows

    def pieces(self, batch: Any) -> list[Any]:
        rows = self.micro_batch
        if rows is None or len(batch) <= rows:
            return [batch]
        return [batch.rows(start, start + rows) for start in range(0, len(batch), rows)]

    def forward(self, model: Any, batch: Any) -> Loss:
        pieces, encoded, constants = self.pieces(batch), [], []
        for piece in pieces:
            encoded.append(self.encode(model, piece))
            with torch.no_grad():
                constants.append(self.constants(model, piece))
        vectors = joined(each.vectors for each in encoded) + joined(constants)
        losses = [self.contrast(vectors, batch), *(each.loss for each in encoded)]
        return merged(losses, [len(batch), *map(len, pieces)])


def joined(pieces: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The vectors of pieces as those of the whole batch."""
    columns = zip(*pieces, strict=True)
    return tuple(column[0] if len(column) == 1 else torch.cat(column) for column in columns)


def merged(losses: list[Loss], sizes: list[int]) -> Loss:
    """Sums of the terms, means of the metrics.

    Args:
        sizes: rows of what each loss is of.
    """
    terms: dict[str, Term] = {}
    metrics: dict[str, list[tuple[Tensor, int]]] = {}
    for loss, size in zip(losses, sizes, strict=True):
        for name, term in loss.terms.items():
            terms[name] = Term(terms[name].sum + term.sum, term.weight) if name in terms else term
        for name, metric in loss.metrics.items():
            metrics.setdefault(name, []).append((metric, loss.rows.get(name, size)))
    rows = {name: sum(count for _, count in found) for name, found in metrics.items()}
    means = {name: _mean(found, rows[name]) for name, found in metrics.items()}
    return Loss(terms, means, rows)


def _mean(found: list[tuple[Tensor, int]], rows: int) -> Tensor:
    if len(found) == 1:
        return found[0][0]
    return torch.stack([count * metric for metric, count in found]).sum() / max(rows, 1)
