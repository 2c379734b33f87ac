"""Criteria that compare the rows of a batch: each row is encoded on its own, then all of them are compared."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from xrep.criteria.all_ranks import of_all_ranks
from xrep.criteria.criterion import Criterion, Loss, Planned, Term, merged
from xrep.criteria.false_negatives import guide_of
from xrep.criteria.matryoshka import add_widths, widths_of
from xrep.data.batch import TextSpec
from xrep.errors import UserError
from xrep.kernels.gather import current_group, without_others
from xrep.tasks.bitext import blocks
from xrep.tasks.task import TableTask, Task


@dataclass
class Encoded:
    """The vectors of the rows of a batch, each encoded on its own, and terms that need no other rows.

    Each tensor has one row for each row of the batch, or for each of its hard negatives; those that are trained have a
    gradient.
    """

    vectors: tuple[Tensor, ...]
    loss: Loss = field(default_factory=lambda: Loss({}))


class ContrastiveCriterion(Criterion):
    """An objective in two parts: ``encode`` and ``constants`` see some rows of a batch, ``contrast`` all vectors.

    So a batch can be encoded in pieces if its activations do not fit into memory. With several ranks, ``contrast`` and
    ``remember`` see the rows of all of them, and loss, gradient and metrics are those of one process that has them all.

    Attributes:
        term: name of the loss term, if it is one whose size is the number of rows.
        exchanges: with several ranks, ``contrast`` and ``remember`` get only the rows of the own one, and ``contrast``
            itself compares them with those of the others (the losses of ``xrep.kernels`` do, which compute only the
            own rows). It is not inherited by a class that has a ``contrast`` of its own.

    Raises:
        UserError: a width of ``matryoshka`` is not below that of the model's vectors.
    """

    term: str
    exchanges: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "contrast" in vars(cls):
            cls.exchanges = vars(cls).get("exchanges", False)

    def __init__(self, config: Any = None, model: Any = None, text: TextSpec | None = None) -> None:
        super().__init__(config, model, text)
        self._widths, self._guide = widths_of(config, model), guide_of(config)

    def prepare(self, task: Task) -> None:
        if self._guide is not None:
            assert isinstance(task, TableTask)
            self._guide.check(hashes.ravel() for table in task.train for hashes in blocks(table.hashes))

    def plan_rows(self, batch: Any, generator: torch.Generator) -> Planned:
        """Return the plan of some rows of a batch, which are encoded together (see ``Criterion.plan``)."""
        return Planned(batch, {self.term: len(batch)})

    def encode(self, model: Any, planned: Planned) -> Encoded:
        """Return the trained vectors that are compared, of both sides of pairs unless a criterion has others.

        Rows must not depend on each other, nor on other ranks.
        """
        return Encoded(model.encode_pair(planned.batch.source, planned.batch.target))

    @abstractmethod
    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        """Return the terms that compare rows. It changes nothing (see ``remember``).

        It is called for each batch, and again with shortened vectors for each width of ``matryoshka``.

        Args:
            vectors: the vectors of ``encode``, then those of ``constants``. Of a batch with hard negatives, those that
                use them have the vectors of the negatives behind their own.
            planned: the whole batch; ``details`` is for ``encode`` and ``constants``. With several ranks, unless the
                class ``exchanges``, it has the rows of all ranks, of which only ``ids``, ``labels``, ``languages``,
                ``indices`` and ``negatives.rows`` of the batch are known. What else is needed of a row comes from
                ``constants``.
        """

    def remember(self, vectors: tuple[Tensor, ...], planned: Planned, loss: Loss) -> None:
        """Keep what later steps need, such as keys for a queue. Called once for each batch in training.

        Args:
            vectors: the whole vectors that ``contrast`` got, without gradient.
            planned: the plan that it got.
            loss: its result.
        """

    def compare(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        """Return what ``contrast`` finds of the rows of all ranks, with the terms of the widths of ``matryoshka``."""
        group = None if self.exchanges else current_group()
        if group is not None:
            vectors, planned = of_all_ranks(vectors, planned, group)
        with nullcontext() if group is None else without_others():  # every rank then computes the same loss
            loss = self.contrast(vectors, planned)
            if self.training:
                self.remember(tuple(vector.detach() for vector in vectors), planned, loss)
            add_widths(loss, self._widths, self.contrast, vectors, planned)
        if group is not None:  # each counts its share of it
            loss.terms = {name: Term(term.sum / group.size(), term.weight) for name, term in loss.terms.items()}
        return loss

    def constants(self, model: Any, planned: Planned) -> tuple[Tensor, ...]:
        """Return further vectors that are compared and get no gradient (such as those of a momentum encoder). They are
        computed once for each row."""
        return ()

    def vectors(self, model: Any, planned: Planned) -> tuple[Tensor, ...]:
        """Return only the vectors of ``encode``.

        Override this if the loss of ``encode`` is expensive: with micro-batches the vectors are computed twice, the
        loss once. The second pass begins with the generators' state of the first, so both must draw dropout in the same
        order.
        """
        return self.encode(model, planned).vectors

    def plan(self, batch: Any, generator: torch.Generator) -> Planned:
        rows = self.micro_batch
        if self._guide is not None:
            batch = replace(batch, facts={**batch.facts, "guide": self._guide.of(batch.ids)})
        if rows is None or len(batch) <= rows:
            return self.plan_rows(batch, generator)
        starts = range(0, len(batch), rows)
        pieces = [self.plan_rows(batch.rows(start, start + rows), generator) for start in starts]
        sizes = {name: sum(piece.sizes[name] for piece in pieces) for name in pieces[0].sizes}
        return Planned(batch, sizes, pieces=pieces)

    def forward(self, model: Any, planned: Planned) -> Loss:
        pieces, encoded, constants = planned.pieces or [planned], [], []
        for piece in pieces:
            encoded.append(self.encode(model, piece))
            with torch.no_grad():
                constants.append(self.constants(model, piece))
        vectors = joined(each.vectors for each in encoded) + joined(constants)
        losses = [self.compare(vectors, planned), *(each.loss for each in encoded)]
        return merged(losses, [len(planned), *map(len, pieces)])


def encode_in_pieces(criterion: Criterion, rows: int) -> None:
    """Let a criterion, or those of its parts that compare the rows of a batch, encode so many rows at a time.

    Raises:
        UserError: it does not compare the rows of a batch, and neither does a part of it.
    """
    comparing = [part for part in criterion.modules() if isinstance(part, ContrastiveCriterion)]
    if not comparing:
        problem = "micro_batch is for objectives that compare the sentences of a batch"
        raise UserError(problem, cure="lower `batch_size` and raise `update_freq`")
    for part in comparing:
        part.micro_batch = rows


def joined(pieces: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the vectors of pieces as those of the whole batch."""
    columns = zip(*pieces, strict=True)
    return tuple(column[0] if len(column) == 1 else torch.cat(column) for column in columns)
