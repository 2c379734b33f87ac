"""``score``: its numbers of each example add up to the figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xrep.understanding.classifier import Annotation
from xrep.understanding.scoring import main_metric, percentages, score


def example(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(language="en", **values)


def text(value: str) -> SimpleNamespace:
    return SimpleNamespace(text=value)


GOLD = [["B-X", "I-X", "O"], ["B-Y", "O"], ["O"]]
FOUND = [["B-X", "I-X", "B-Y"], ["B-X", "O"], ["O"]]
ANSWERS = ("red house", "Bonn")
UPOS, TAGGED = ["NOUN", "VERB"], [["NOUN"] * 3, ["VERB"]]
CASES = {
    "label": (["a", "b"], [example(sentences=["x"], label=own) for own in "abba"], list("abab"), 50),
    "tags": (UPOS, [example(words=own, tags=own) for own in (["NOUN", "VERB", "NOUN"], ["VERB"])], TAGGED, 75),
    "entities": (["O", "B-X", "B-Y", "I-X"], [example(words=own, tags=own) for own in GOLD], FOUND, 40),
    "span": ([], [example(answers=[text(own)]) for own in ("the red house", "Kiel")], list(map(text, ANSWERS)), 50),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_examples_add_up(name: str) -> None:
    labels, examples, answers, expected = CASES[name]
    kind: Any = "tags" if name == "entities" else name
    annotation = Annotation(kind=kind, labels=labels)
    classifier: Any = SimpleNamespace(annotation=annotation, predict=lambda texts: (answers, None))
    classifier.tag = classifier.answer = lambda examples: answers
    numbers = score(classifier, examples)
    assert next(iter(numbers)) == main_metric(annotation)
    assert {own.shape for own in numbers.values()} == {(len(examples), 2)}
    assert percentages(numbers)[main_metric(annotation)] == pytest.approx(expected)
