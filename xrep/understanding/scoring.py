"""Figures of a classifier on annotated examples, and validation by them during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.tasks.task import Task
from xrep.training.validator import OverRanks, Validator
from xrep.understanding.annotated import AnnotatedTask
from xrep.understanding.classifier import Annotation, Classifier
from xrep.understanding.figures import Normalisation, entity_counts, exact_match, f1, is_entity_scheme
from xrep.understanding.sentence_classifier import SentenceClassifier

DETAILS = ("precision", "recall")
"""Figures by which no test is quoted."""


def main_metric(annotation: Annotation) -> str:
    """Return the name of the figure by which a classifier is usually judged: ``accuracy`` or ``f1``."""
    return "f1" if annotation.kind == "span" or is_entity_scheme(annotation.labels) else "accuracy"


def score(
    classifier: SentenceClassifier, examples: Sequence[Any], normalisation: Normalisation = "mlqa"
) -> dict[str, np.ndarray]:
    """Return two numbers of each example, [N, 2], for each figure, which is the share of the sum of the first in that
    of the second.

    Figures are ``accuracy`` of labels or tags; ``f1``, ``precision`` and ``recall`` of entities; or ``f1`` and
    ``exact_match`` of answers, which are compared by ``normalisation``. Of tags and entities there is also
    ``xtreme_f1``, the F1 of ``lenient_entities``.
    """
    kind = classifier.annotation.kind
    if kind == "label":
        labels, _ = classifier.predict([example.sentences for example in examples])
        return {"accuracy": _pairs([label == own.label for label, own in zip(labels, examples, strict=True)], 1)}
    if kind == "span":
        answers = zip(classifier.answer(examples), examples, strict=True)
        pairs = [(found.text, [gold.text for gold in own.answers], own.language) for found, own in answers]
        metrics = {"f1": f1, "exact_match": exact_match}
        return {name: _pairs([metric(*pair, normalisation) for pair in pairs], 1) for name, metric in metrics.items()}
    gold, tags = [example.tags for example in examples], classifier.tag([example.words for example in examples])
    if main_metric(classifier.annotation) == "accuracy":
        right = [sum(map(str.__eq__, *pair)) for pair in zip(gold, tags, strict=True)]
        figures = {"accuracy": _pairs(right, list(map(len, gold)))}
    else:
        right, expected, given = entity_counts(gold, tags).T
        figures = {"f1": _pairs(2 * right, expected + given)}
        figures |= {"precision": _pairs(right, given), "recall": _pairs(right, expected)}
    right, expected, given = entity_counts(gold, tags, lenient=True).T
    return {**figures, "xtreme_f1": _pairs(2 * right, expected + given)}


def percentages(numbers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the figures of ``score`` in percent."""
    return {name: 100 * float(own[:, 0].sum() / max(own[:, 1].sum(), 1)) for name, own in numbers.items()}


def _pairs(part: Any, whole: Any) -> np.ndarray:
    return np.stack(np.broadcast_arrays(np.array(part, float), whole), axis=1)


class AnnotationValidator(Validator):
    """Validate by what a classifier predicts of the dev split.

    Attributes:
        metric: ``accuracy`` of labels or of tags, ``f1`` of entities, ``f1`` of answers.

    Raises:
        UserError: The task has no annotated text, or no dev split.
    """

    needs = Classifier
    maximize = True

    def __init__(self, config: Any, task: Task) -> None:
        if not isinstance(task, AnnotatedTask) or not task.has_validation:
            cure = "give it a file such as dev-en.tsv, set `dev_share`, or choose the `validation` loss"
            raise UserError("there is no dev split of annotated text to validate on", cure=cure)
        self._task, self._examples = task, list(task.examples_of("valid"))
        self.metric = main_metric(Annotation.of(task.text))

    def measure(self, model: Classifier, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the figures of ``score``, in percent."""
        options: dict[str, Any] = vars(self._task.config)
        classifier = SentenceClassifier(model, self._task.text, self._task.tokenizers, options=options)
        return percentages(score(classifier, self._examples))
