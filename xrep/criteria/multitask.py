"""One criterion that combines the criteria of several parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xrep.config import Parts
from xrep.criteria.criterion import Criterion, Loss, Planned, Term, merged
from xrep.criteria.masked_language import MaskedLanguage
from xrep.data.batch import TextSpec
from xrep.errors import UserError
from xrep.tasks.mixture import MixedBatch
from xrep.tasks.task import Task


class Multitask(Criterion):
    """The sum over the parts of weight · loss, where each part has its own criterion and its own batch. With mixing
    ``proportion``, each loss is also multiplied by the part's share of the batches.

    Terms and metrics are named ``part/name``, tensors ``parts.PART.name``. A step computes one part after the other, by
    the criterion of each (``Planned.parts``), and calls ``after_step`` (momentum, queues) of those that it had batches
    of. Parts that predict masked tokens (mlm, tlm, hictl, cmlm) share one head, whose tensors are named after the first
    of them.
    """

    @dataclass(kw_only=True)
    class Config(Parts):
        def problems(self) -> list[str]:
            # Parts are submodules, whose names must differ from the attributes of their container.
            taken = [part.name for part in self.parts if hasattr(nn.ModuleDict(), part.name)]
            return [f"{name!r} cannot be the name of a part: torch has it; choose another" for name in taken]

    def __init__(self, config: Config, model: Any, text: TextSpec) -> None:
        super().__init__()
        criteria: dict[str, Criterion] = {part.name: part.kind(part.config, model, text) for part in config.parts}
        self.parts: Any = nn.ModuleDict(criteria)
        _share_heads(self.parts.values())
        self.idle_parameters = config.mixing == "proportion" or any(c.idle_parameters for c in self.parts.values())
        self.trains_vectors = any(own.trains_vectors for own in self.parts.values())
        self._weights = {part.name: part.weight for part in config.parts}
        whole = sum(part.proportion for part in config.parts) if config.mixing == "proportion" else None
        self._shares = {part.name: part.proportion / whole if whole else 1.0 for part in config.parts}
        self.frozen = [pattern for own in self.parts.values() for pattern in own.frozen]

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
        return self.parts[name] if name else self

    def plan(self, batch: MixedBatch, generator: torch.Generator) -> Planned:
        parts = {part: self.parts[part].plan(rows, generator) for part, rows in batch.parts.items()}
        sizes = {f"{part}/{name}": size for part, own in parts.items() for name, size in own.sizes.items()}
        return Planned(batch, sizes, parts=parts)

    def forward(self, model: Any, planned: Planned) -> Loss:
        """Return the loss of all parts together, for validation."""
        losses = [
            self.in_sum(part, self.parts[part](model, own), len(own), self._shares[part])
            for part, own in planned.parts.items()
        ]
        return merged(losses, map(len, planned.parts.values()))

    def in_sum(self, part: str, loss: Loss, rows: int, share: float) -> Loss:
        weight = share * self._weights[part]
        return Loss(
            {f"{part}/{name}": Term(term.sum, weight * term.weight) for name, term in loss.terms.items()},
            {f"{part}/{name}": metric for name, metric in loss.metrics.items()},
            {f"{part}/{name}": loss.rows.get(name, rows) for name in loss.metrics},
        )

    def warnings(self, task: Task) -> list[str]:
        by_part = {part: own.warnings(task.parts[part]) for part, own in self.parts.items()}
        return [f"{part}: {text}" for part, texts in by_part.items() for text in texts]


def _share_heads(parts: Iterable[nn.Module]) -> None:
    """Let language models use the heads of the first of them."""
    models = [module for part in parts for module in part.modules() if isinstance(module, MaskedLanguage)]
    for language in models[1:]:
        language.share(models[0])
