"""Figures of a classifier on annotated examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xrep.data.batch import Annotation
from xrep.inference.classifier import SentenceClassifier
from xrep.metrics.answers import Normalisation, exact_match, f1
from xrep.metrics.entities import entity_counts, is_entity_scheme, score_of, tag_accuracy
from xrep.text.annotated import TaggedSentence


def main_metric(annotation: Annotation) -> str:
    """Return the name of the figure by which a classifier is usually judged: ``accuracy`` or ``f1``."""
    return "f1" if annotation.kind == "span" or is_entity_scheme(annotation.labels) else "accuracy"


Scores = tuple[dict[str, float], dict[str, np.ndarray]]
"""Figures by name in percent, and those by which a test is quoted as two numbers of each example, [N, 2]: the figure
is the share of the sum of the first in that of the second."""


def score(classifier: SentenceClassifier, examples: Sequence[Any], normalisation: Normalisation = "mlqa") -> Scores:
    """Return ``accuracy`` of labels or tags; ``f1``, ``precision`` and ``recall`` of entities; or ``f1`` and
    ``exact_match`` of answers, which are compared by ``normalisation``. Of tags and entities also ``xtreme_f1``, the F1
    of ``lenient_entities``. All but precision and recall have numbers of each example."""
    kind = classifier.annotation.kind
    if kind == "tags":
        return _tag_scores(classifier, examples)
    if kind == "label":
        labels, _ = classifier.predict([example.sentences for example in examples])
        columns = {"accuracy": [label == example.label for label, example in zip(labels, examples, strict=True)]}
    else:
        answers = zip(classifier.answer(examples), examples, strict=True)
        pairs = [(found.text, [gold.text for gold in example.answers], example.language) for found, example in answers]
        metrics = {"f1": f1, "exact_match": exact_match}
        columns = {name: [float(metric(*pair, normalisation)) for pair in pairs] for name, metric in metrics.items()}
    figures = {name: 100 * float(np.mean(column)) for name, column in columns.items()}
    return figures, {name: np.stack((column, np.ones(len(column))), axis=1) for name, column in columns.items()}


def _tag_scores(classifier: SentenceClassifier, examples: Sequence[TaggedSentence]) -> Scores:
    gold, tags = [example.tags for example in examples], classifier.tag([example.words for example in examples])
    if main_metric(classifier.annotation) == "accuracy":
        figures = {"accuracy": tag_accuracy(gold, tags)}
        right = [sum(map(str.__eq__, *pair)) for pair in zip(gold, tags, strict=True)]
        counts = {"accuracy": np.stack((right, [len(sentence) for sentence in gold]), axis=1)}
    else:
        strict = entity_counts(gold, tags)
        entities = score_of(strict)
        figures = {"f1": entities.f1, "precision": entities.precision, "recall": entities.recall}
        counts = {"f1": _f1_counts(strict)}
    lenient = entity_counts(gold, tags, lenient=True)
    figures["xtreme_f1"], counts["xtreme_f1"] = score_of(lenient).f1, _f1_counts(lenient)
    return figures, counts


def _f1_counts(counts: Sequence[tuple[int, int, int]]) -> np.ndarray:
    return np.array([(2 * right, expected + given) for right, expected, given in counts]).reshape(-1, 2)
