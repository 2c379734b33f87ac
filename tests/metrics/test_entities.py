"""Entities beside a reading of seqeval's strict IOB2 by hand, and beside seqeval where it is installed."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.metrics.entities import entities_of, entity_score, is_entity_scheme, tag_accuracy

TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
SENTENCES = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-X I-X I-X", [(0, 3, "X")]),
        ("B-X B-X", [(0, 1, "X"), (1, 2, "X")]),
        ("B-X I-Y I-Y", [(0, 1, "X")]),
        ("I-X I-X O B-X", [(3, 4, "X")]),
        ("B-X O I-X", [(0, 1, "X")]),
        ("B-X-Y I-X-Y", [(0, 2, "X-Y")]),
    ],
)
def test_entities(tags: str, expected: list[tuple[int, int, str]]) -> None:
    assert entities_of(tags.split()) == expected


def test_scores_by_hand() -> None:
    gold = [["B-X", "I-X", "O"], ["B-Y", "O"]]
    found = [["B-X", "I-X", "B-Y"], ["B-X", "O"]]
    result = entity_score(gold, found)
    assert (result.precision, result.recall, result.f1) == pytest.approx((100 / 3, 50, 40))
    assert tag_accuracy(gold, found) == pytest.approx(60)
    assert entity_score([["O"]], [["O"]]).f1 == 0
    with pytest.raises(ValueError, match="2 tags for 1 words"):
        entity_score([["O"]], [["O", "O"]])


def test_the_scheme_is_recognised() -> None:
    assert is_entity_scheme(["B-LOC", "I-LOC", "O"]) and not is_entity_scheme(["NOUN", "O"])
    assert not is_entity_scheme([]) and not is_entity_scheme(["O"])


@pytest.mark.skipif(importlib.util.find_spec("seqeval") is None, reason="seqeval is not installed")
@settings(max_examples=300)
@given(SENTENCES)
def test_scores_are_those_of_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score  # pyright: ignore[reportMissingImports]
    from seqeval.scheme import IOB2  # pyright: ignore[reportMissingImports]

    gold, found = ([[pair[column] for pair in sentence] for sentence in sentences] for column in (0, 1))
    ours = entity_score(gold, found)
    strict = {"mode": "strict", "scheme": IOB2, "zero_division": 0}
    expected = [100 * measure(gold, found, **strict) for measure in (precision_score, recall_score, f1_score)]
    assert [ours.precision, ours.recall, ours.f1] == pytest.approx(expected)
