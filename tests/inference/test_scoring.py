"""``score``: its numbers of each example add up to the main figure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xrep.data.batching import Annotation
from xrep.inference.scoring import main_metric, score


def example(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(language="en", **values)


GOLD = [["B-X", "I-X", "O"], ["B-Y", "O"], ["O"]]
FOUND = [["B-X", "I-X", "B-Y"], ["B-X", "O"], ["O"]]
CASES = {
    "label": (["a", "b"], [example(sentences=["x"], label=own) for own in "abba"], list("abab"), 50),
    "tags": (["N", "V"], [example(words=own, tags=own) for own in (["N", "V", "N"], ["V"])], [list("NNN"), ["V"]], 75),
    "entities": (["O", "B-X", "B-Y", "I-X"], [example(words=own, tags=own) for own in GOLD], FOUND, 40),
    "span": (
        [],
        [example(answers=[SimpleNamespace(text=own)]) for own in ("the red house", "Kiel")],
        [SimpleNamespace(text=own) for own in ("red house", "Bonn")],
        50,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_examples_add_up(name: str) -> None:
    labels, examples, answers, expected = CASES[name]
    kind: Any = "tags" if name == "entities" else name
    annotation = Annotation(kind=kind, labels=labels)
    classifier: Any = SimpleNamespace(
        annotation=annotation,
        predict=lambda texts: (answers, None),
        tag=lambda sentences: answers,
        answer=lambda questions: answers,
    )
    figures, counts = score(classifier, examples)
    assert counts.shape == (len(examples), 2)
    assert figures[main_metric(annotation)] == pytest.approx(100 * counts[:, 0].sum() / counts[:, 1].sum())
    assert figures[main_metric(annotation)] == pytest.approx(expected)
