"""Several validations during training, the first of which chooses the best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from xrep.criteria.criterion import Criterion
from xrep.models.model import SentenceModel
from xrep.registry import VALIDATORS
from xrep.tasks.task import Task
from xrep.training.validator import SEED, OverRanks, Validator
from xrep.validation.retrieval import RetrievalValidator
from xrep.validation.sts import StsValidator


class SeveralValidator(Validator):
    """Validate a sentence encoder in several ways, one after the other. The metrics are named ``NAME/METRIC``.

    Raises:
        UserError: One of them cannot be used with the text.
    """

    needs = SentenceModel

    @dataclass(kw_only=True)
    class Config(RetrievalValidator.Config, StsValidator.Config):
        sts_path: str = "sts"
        """Folder with data sets of semantic textual similarity, as xrep-eval sts reads them, if sts is among them."""
        validate_with: list[Literal["retrieval", "sts", "nli", "loss"]] = field(
            default_factory=lambda: ["retrieval", "loss"]
        )
        """Validations, such as retrieval,sts: retrieval, sts, nli or loss. The metric of the first one chooses the best
        checkpoint, and patience counts it. --validate-with alone chooses validation several."""

        def problems(self) -> list[str]:
            names = self.validate_with
            if names and len(set(names)) == len(names):
                return []
            return [f"validate_with must name validations, each once, not {','.join(names) or 'none'}"]

    def __init__(self, config: Config, task: Task) -> None:
        self._validators: dict[str, Any] = {}
        for name in config.validate_with:
            kind = VALIDATORS.load(name)
            options = {key: value for key, value in vars(config).items() if key in kind.Config.__dataclass_fields__}
            self._validators[name] = kind(kind.Config(**options), task)
        deciding, first = next(iter(self._validators.items()))
        self.metric, self.maximize = f"{deciding}/{first.metric}", first.maximize

    def measure(self, model: SentenceModel, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the metrics of all validations."""
        measured: dict[str, float] = {}
        for name, each in self._validators.items():
            torch.manual_seed(SEED)  # so that each measures as it does alone
            found = each.measure(model, criterion, over_ranks)
            measured |= {f"{name}/{metric}": value for metric, value in found.items()}
        return measured
