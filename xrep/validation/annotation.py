"""Validation during training by the annotations of the dev split."""

from __future__ import annotations

from typing import Any

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.inference.classifier import SentenceClassifier
from xrep.inference.scoring import main_metric, score
from xrep.models.model import ClassifyingModel
from xrep.tasks.annotated import AnnotatedTask
from xrep.tasks.task import Task
from xrep.training.validator import OverRanks, Validator


class AnnotationValidator(Validator):
    """Validate by what a classifier predicts of the dev split.

    Attributes:
        metric: ``accuracy`` of labels or of tags, ``f1`` of entities, ``f1`` of answers.

    Raises:
        UserError: The task has no annotated text, or no dev split.
    """

    needs = ClassifyingModel
    maximize = True

    def __init__(self, config: Any, task: Task) -> None:
        if not isinstance(task, AnnotatedTask) or not task.has_validation:
            cure = "give it a file such as dev-en.tsv, set `dev_share`, or choose the `validation` loss"
            raise UserError("there is no dev split of annotated text to validate on", cure=cure)
        self._task, self._examples = task, list(task.examples_of("valid"))
        annotation = task.text.annotation
        assert annotation is not None
        self.metric = main_metric(annotation)

    def measure(self, model: ClassifyingModel, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the figures of ``xrep.inference.scoring.score``, in percent."""
        options: dict[str, Any] = vars(self._task.config)
        classifier = SentenceClassifier(model, self._task.text, self._task.tokenizers, options=options)
        return score(classifier, self._examples)[0]
