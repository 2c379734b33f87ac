"""Several validations during training, one of which chooses the best checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from xrep.criteria.criterion import Criterion
from xrep.models.model import SentenceModel
from xrep.registry import VALIDATORS
from xrep.tasks.task import Task
from xrep.training.validator import Validator
from xrep.validation.retrieval import RetrievalValidator
from xrep.validation.sts import StsValidator

Name = Literal["retrieval", "sts", "nli", "loss"]


class SeveralValidator(Validator):
    """Validate a sentence encoder in several ways, one after the other.

    Attributes:
        metric: ``NAME/METRIC``, the metric of the validation ``best_by``.

    Raises:
        UserError: One of them cannot be used with the text.
    """

    needs = SentenceModel

    @dataclass(kw_only=True)
    class Config(RetrievalValidator.Config, StsValidator.Config):
        sts_path: str = "sts"
        """Folder with data sets of semantic textual similarity, as xrep-eval sts reads them, if sts is among them."""
        validate_with: list[Name] = field(default_factory=lambda: ["retrieval", "loss"])
        """Validations, such as retrieval,sts: retrieval, sts, nli or loss. --validate-with alone chooses validation
        several."""
        best_by: Name | None = None
        """The one of them whose metric chooses the best checkpoint, and which patience counts. none: the first."""

        def problems(self) -> list[str]:
            names, problems = self.validate_with, list[str]()
            if not names or len(set(names)) < len(names):
                problems.append(f"validate_with must name validations, each once, not {','.join(names) or 'none'}")
            if self.best_by is not None and self.best_by not in names:
                problems.append(f"best_by is {self.best_by}, which validate_with ({','.join(names)}) does not name")
            return problems

    def __init__(self, config: Config, task: Task) -> None:
        self._validators: dict[str, Any] = {}
        for name in config.validate_with:
            kind = VALIDATORS.load(name)
            own = {key: value for key, value in vars(config).items() if key in kind.Config.__dataclass_fields__}
            self._validators[name] = kind(kind.Config(**own), task)
        deciding = config.best_by or config.validate_with[0]
        self.metric = f"{deciding}/{self._validators[deciding].metric}"
        self.maximize = self._validators[deciding].maximize

    def measure(self, model: SentenceModel, criterion: Criterion) -> dict[str, float]:
        """Return the metrics of all validations, each as ``NAME/METRIC``."""
        measured = {name: each(model, criterion) for name, each in self._validators.items()}
        return {f"{name}/{metric}": value for name, own in measured.items() for metric, value in own.items()}
