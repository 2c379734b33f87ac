"""One criterion that combines the criteria of several parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from xrep.config import Mixing, Part
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded, merged
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.criteria.masked_language import MaskedLanguage
from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.nn.containers import ModuleDict
from xrep.tasks.mixture import MixedBatch
from xrep.tasks.task import Task


class Multitask(ContrastiveCriterion):
    """The sum over the parts of weight · loss, where each part has its own criterion and its own batch.

    Terms and metrics are named ``part/name``, tensors ``parts.PART.name``. If a step has no batch of a part, the part
    gets no gradient in that step, and its criterion's ``after_step`` (momentum, queues) is not called. Parts that
    predict masked tokens (mlm, tlm, hictl, cmlm) with the same choice of head share one head, whose tensors are named
    after the first of them.

    If a batch is encoded in pieces, each piece has rows of one part whose criterion compares rows; the last piece has
    the whole batches of all other parts.
    """

    exchanges = True  # the parts do, as each of them compares its own rows

    @dataclass(kw_only=True)
    class Config:
        parts: list[Part]
        """Name, class, ``Config`` and weight of the criterion of each part."""
        mixing: Mixing
        """weight: each batch has all parts. proportion: each batch has one part."""

        def problems(self) -> list[str]:
            # Parts are submodules, whose names must differ from the attributes of their container.
            taken = [part.name for part in self.parts if hasattr(nn.ModuleDict(), part.name)]
            return [f"{name!r} cannot be the name of a part: torch has it; choose another" for name in taken]

    def __init__(self, config: Config, model: Any, text: TextSpec) -> None:
        super().__init__()
        criteria: dict[str, Criterion] = {part.name: part.kind(part.config, model, text) for part in config.parts}
        self.parts = ModuleDict(criteria)
        _share_heads(self.parts.values())
        self._weights = {part.name: part.weight for part in config.parts}
        self.idle_parameters = config.mixing == "proportion" or any(c.idle_parameters for c in self.parts.values())
        self.frozen = [pattern for own in self.parts.values() for pattern in own.frozen]
        self._seen: dict[str, None] = {}
        self._trained: dict[str, int] = {}
        """Number of vector tensors that ``encode`` gives for each part that compares rows."""
        self._constant: dict[str, int] = {}

    def check_task(self, task: Task) -> None:
        for part, criterion in self.parts.items():
            try:
                criterion.check_task(task.parts[part])
            except UserError as error:
                raise UserError(f"part {part}: {error}") from None

    def prepare(self, task: Task) -> None:
        for part, criterion in self.parts.items():
            criterion.prepare(task.parts[part])

    def of_part(self, name: str) -> Criterion:
        return self.parts[name]

    def set_micro_batch(self, rows: int) -> None:
        contrastive = [part for part in self.parts.values() if isinstance(part, ContrastiveCriterion)]
        if not contrastive:
            Criterion.set_micro_batch(self, rows)
        for part in contrastive:
            part.set_micro_batch(rows)
        self.micro_batch = rows

    def plan(self, batch: MixedBatch, generator: torch.Generator) -> Planned:
        parts = {part: self.parts[part].plan(rows, generator) for part, rows in batch.parts.items()}
        if self.micro_batch is None:
            return _joined(parts)
        whole = _joined({part: replace(own, pieces=()) for part, own in parts.items()})
        # A piece has rows of only one part that compares them: ``vectors`` draws fewer random numbers than ``encode``.
        compared = self._contrastive(whole)
        none = {part: self.parts[part].plan(batch.parts[part].rows(0, 0), generator) for part in compared}
        pieces = [_joined(none | {p: piece}) for p in compared for piece in parts[p].pieces or [parts[p]]]
        others = {part: own for part, own in parts.items() if part not in compared}
        whole.pieces = [*pieces, _joined(none | others)] if others else pieces
        return whole

    def _contrastive(self, planned: Planned) -> dict[str, tuple[ContrastiveCriterion, Planned]]:
        """Return the parts of a batch whose criteria compare rows."""
        return {
            part: (criterion, own)
            for part, own in planned.batch.parts.items()
            if isinstance(criterion := self.parts[part], ContrastiveCriterion)
        }

    def exchanged(self, planned: Planned) -> Sequence[Planned]:
        return [part for criterion, own in self._contrastive(planned).values() for part in criterion.exchanged(own)]

    def encode(self, model: Any, planned: Planned) -> Encoded:
        vectors: list[Tensor] = []
        losses: list[Loss] = []
        for part, own in planned.batch.parts.items():
            criterion = self.parts[part]
            if isinstance(criterion, ContrastiveCriterion):
                encoded = criterion.encode(model, own)
                self._trained[part] = len(encoded.vectors)
                vectors += encoded.vectors
                losses.append(self._named(part, encoded.loss, len(own)))
            else:
                losses.append(self._named(part, criterion(model, own), len(own)))
        return Encoded(tuple(vectors), merged(losses, [0] * len(losses)))

    def vectors(self, model: Any, planned: Planned) -> tuple[Tensor, ...]:
        by_part = {p: criterion.vectors(model, own) for p, (criterion, own) in self._contrastive(planned).items()}
        self._trained |= {part: len(vectors) for part, vectors in by_part.items()}
        return tuple(chain.from_iterable(by_part.values()))

    def constants(self, model: Any, planned: Planned) -> tuple[Tensor, ...]:
        by_part = {p: criterion.constants(model, own) for p, (criterion, own) in self._contrastive(planned).items()}
        self._constant |= {part: len(vectors) for part, vectors in by_part.items()}
        return tuple(chain.from_iterable(by_part.values()))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        if self.training:
            self._seen |= dict.fromkeys(planned.batch.parts)
        parts = self._contrastive(planned)
        trained, constants = iter(vectors), iter(vectors[sum(self._trained[part] for part in parts) :])
        losses = []
        for part, (criterion, own) in parts.items():
            mine = (*islice(trained, self._trained[part]), *islice(constants, self._constant[part]))
            losses.append(self._named(part, criterion.compare(mine, own), len(own)))
        return merged(losses, [0] * len(losses))

    def _named(self, part: str, loss: Loss, size: int) -> Loss:
        """Return the loss of a part with ``size`` rows, with the names and weights that it has in the sum."""
        weight = self._weights[part]
        return Loss(
            {f"{part}/{name}": Term(term.sum, weight * term.weight) for name, term in loss.terms.items()},
            {f"{part}/{name}": metric for name, metric in loss.metrics.items()},
            {f"{part}/{name}": loss.rows.get(name, size) for name in loss.metrics},
        )

    def after_step(self, model: Any) -> None:
        for part in self._seen:  # parts of all batches of the step, in the same order on all ranks
            self.parts[part].after_step(model)
        self._seen.clear()

    def warnings(self, task: Task) -> list[str]:
        by_part = {part: own.warnings(task.parts[part]) for part, own in self.parts.items()}
        return [f"{part}: {text}" for part, texts in by_part.items() for text in texts]


class PlannedParts(Planned):
    """A planned ``MixedBatch``, in which each part is planned."""

    @property
    def examples(self) -> MixedBatch:
        return MixedBatch({part: own.examples for part, own in self.batch.parts.items()})


def _joined(parts: dict[str, Planned]) -> Planned:
    sizes = {f"{part}/{name}": size for part, own in parts.items() for name, size in own.sizes.items()}
    return PlannedParts(MixedBatch(parts), sizes)


def _share_heads(parts: Iterable[nn.Module]) -> None:
    """Let language models with the same choice of head use the heads of the first of them."""
    first: dict[str, MaskedLanguage] = {}
    for language in [module for part in parts for module in part.modules() if isinstance(module, MaskedLanguage)]:
        if (owner := first.setdefault(language.head, language)) is not language:
            language.share(owner)
