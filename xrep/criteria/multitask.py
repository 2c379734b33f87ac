"""The criteria of several parts as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from xrep.config import Part
from xrep.criteria.criterion import Criterion, Loss, Term
from xrep.data.batching import TextSpec
from xrep.tasks.mixture import MixedBatch


class Multitask(Criterion):
    """Σ over the parts of weight · the part's loss, each by its own criterion on its own batch.

    Terms and metrics are named ``part/name``, tensors ``parts.PART.name``. A part that a step has no batch of has no
    gradient in that step, and its criterion's ``after_step`` (momentum, queues) is left out.
    """

    @dataclass(kw_only=True)
    class Config:
        parts: list[Part]
        """Name, class, ``Config`` and weight of the criterion of each part."""
        mixing: Literal["weight", "proportion"]
        """Whether a batch has all parts or one."""

        def problems(self) -> list[str]:
            # Parts are submodules, whose names may not be those of the attributes of their container.
            taken = [part.name for part in self.parts if hasattr(nn.ModuleDict(), part.name)]
            return [f"{name!r} cannot be the name of a part: torch has it; choose another" for name in taken]

    def __init__(self, config: Config, model: nn.Module, text: TextSpec) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({part.name: part.kind(part.config, model, text) for part in config.parts})
        self._weights = {part.name: part.weight for part in config.parts}
        self.idle_parameters = config.mixing == "proportion" or any(c.idle_parameters for c in self.parts.values())
        self._seen: dict[str, None] = {}

    def sizes(self, batch: MixedBatch) -> dict[str, float]:
        return {
            f"{part}/{name}": size
            for part, own in batch.parts.items()
            for name, size in self.parts[part].sizes(own).items()
        }

    def forward(self, model: nn.Module, batch: MixedBatch) -> Loss:
        terms: dict[str, Term] = {}
        metrics: dict[str, Tensor] = {}
        for part, own in batch.parts.items():
            loss = self.parts[part](model, own)
            weight = self._weights[part]
            terms |= {f"{part}/{name}": Term(term.sum, weight * term.weight) for name, term in loss.terms.items()}
            metrics |= {f"{part}/{name}": metric for name, metric in loss.metrics.items()}
            if self.training:
                self._seen[part] = None
        return Loss(terms, metrics)

    def after_step(self, model: nn.Module) -> None:
        for part in self._seen:  # over all the batches of the step; in the same order on all ranks
            self.parts[part].after_step(model)
        self._seen.clear()

    def warnings(self, task: Any) -> list[str]:
        found = {part: own.warnings(task.tasks[part]) for part, own in self.parts.items()}
        return [f"{part}: {text}" for part, texts in found.items() for text in texts]
