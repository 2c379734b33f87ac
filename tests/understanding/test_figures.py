"""Figures: answers by the rules of SQuAD and MLQA, entities by seqeval's, and what tasks say of a classifier."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.understanding.classifier import Annotation
from xrep.understanding.evaluations import percentages
from xrep.understanding.labels import ClassificationTask
from xrep.understanding.questions import QuestionAnsweringTask, compare, normalise
from xrep.understanding.tags import TaggingTask, entities_of, entity_counts, is_entity_scheme

IOB2 = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
UPOS = ["NOUN", "VERB", "X", "CCONJ", "SCONJ", "SYM", "INTJ", "_"]
Sentences = list[list[tuple[str, str]]]


def sentences_of(*tags: str) -> st.SearchStrategy[Sentences]:
    """Draw sentences of pairs of tags."""
    some = st.sampled_from(tags)
    return st.lists(st.lists(st.tuples(some, some), min_size=1, max_size=8), min_size=1, max_size=6)


def columns_of(sentences: Sentences) -> tuple[list[list[str]], list[list[str]]]:
    gold, found = ([[pair[column] for pair in sentence] for sentence in sentences] for column in (0, 1))
    return gold, found


def test_entities() -> None:
    for tags, expected in {
        "O O": set(),
        "B-X B-X I-Y I-Y": {(0, 1, "X"), (1, 2, "X")},
        "I-X I-X O B-X": {(3, 4, "X")},
        "B-X O I-X": {(0, 1, "X")},
        "B-X-Y I-X-Y": {(0, 2, "X-Y")},
    }.items():
        assert entities_of(tags.split()) == expected


def scores(gold: list[list[str]], found: list[list[str]], *, lenient: bool = False) -> list[float]:
    """Return precision, recall and F1 in percent."""
    right, expected, given = map(int, entity_counts(gold, found, lenient=lenient).sum(axis=1))
    parts = (right, given), (right, expected), (2 * right, expected + given)
    return [100 * part / max(whole, 1) for part, whole in parts]


def test_scores_by_hand() -> None:
    gold = [["B-X", "I-X", "O"], ["B-Y", "O"]]
    found = [["B-X", "I-X", "B-Y"], ["B-X", "O"]]
    assert scores(gold, found) == pytest.approx((100 / 3, 50, 40))
    assert scores([["O"]], [["O"]]) == [0, 0, 0]


def test_the_default_of_seqeval_by_hand() -> None:
    """The expected figures were computed by seqeval 1.2.2."""
    gold = [["DET", "NOUN", "NOUN", "VERB", "SCONJ"], ["X", "NOUN", "CCONJ", "SCONJ", "SYM", "SYM"]]
    found = [["DET", "NOUN", "VERB", "VERB", "CCONJ"], ["X", "NOUN", "SCONJ", "SCONJ", "SYM", "NOUN"]]
    assert scores(gold, found, lenient=True) == pytest.approx((60, 200 / 3, 63.157895))
    gold = [["B-PER", "I-PER", "O", "I-LOC"], ["B-LOC", "I-PER", "O"]]
    found = [["B-PER", "I-PER", "O", "I-LOC"], ["I-LOC", "I-PER", "B-PER"]]
    assert scores(gold, found, lenient=True)[2] == pytest.approx(88.888889)
    assert scores(gold, found)[2] == pytest.approx(50)


def plain_lenient(sentences: list[list[str]]) -> set[tuple[int, int, str]]:
    """Find the entities of seqeval's default by two tables of what ends and what begins one, over all sentences."""
    tags = [tag for sentence in sentences for tag in (*sentence, "O")]
    prefixes = ["O", *(tag[0] for tag in tags)]
    kinds = ["", *("".join(tag[1:].partition("-")[2] if "-" in tag[1:] else tag[1:]) or "_" for tag in tags)]
    ending = {*("BB", "BS", "BO", "IB", "IS", "IO")}
    starting = {*("EE", "EI", "SE", "SI", "OE", "OI")}
    begins, ends = [], []
    for place, (two, kind) in enumerate(zip(zip(prefixes, prefixes[1:], strict=False), kinds[1:], strict=True)):
        other = kind != kinds[place]
        if two[0] in "ES" or "".join(two) in ending or (two[0] not in "O." and other):
            ends.append((place, begins[-1] if begins else 0, kinds[place]))
        if two[1] in "BS" or "".join(two) in starting or (two[1] not in "O." and other):
            begins.append(place)
    return {(begin, end, kind) for end, begin, kind in ends}


@pytest.mark.slow
@settings(max_examples=60)
@given(sentences_of(*IOB2) | sentences_of(*UPOS) | sentences_of("B-A", "E-A", "S-A", "I-B", "O"))
def test_the_default_of_seqeval_as_two_tables(sentences: Sentences) -> None:
    gold, found = columns_of(sentences)
    wanted, ours = plain_lenient(gold), plain_lenient(found)
    expected = 200 * len(wanted & ours) / max(len(wanted) + len(ours), 1)
    assert scores(gold, found, lenient=True)[2] == pytest.approx(expected)


def test_the_scheme_is_recognised() -> None:
    assert is_entity_scheme(["B-LOC", "I-LOC", "O"]) and not is_entity_scheme(["NOUN", "O"])
    assert not is_entity_scheme([]) and not is_entity_scheme(["O"])


@pytest.mark.parametrize(("answer", "language", "form", "words"), [
    ("The  Eiffel-Tower!", "en", "squad", ["eiffeltower"]),
    ("an apple a day", "en", "mlqa", ["apple", "day"]),
    ("Der Turm von der Stadt", "de", "mlqa", ["turm", "von", "stadt"]),
    ("Der Turm", "de", "squad", ["der", "turm"]),
    ("los “niños”", "es", "mlqa", ["niños"]),
    ("“Zitat”", "en", "squad", ["“zitat”"]),
    ("北京 2008年", "zh", "mlqa", ["北", "京", "2008", "年"]),
    ("北京。", "zh", "squad", ["北京。"]),
    ("البيت", "ar", "mlqa", ["بيت"]),
    ("những cái nhà", "vi", "mlqa", ["nhà"]),
    ("a b", "fi", "mlqa", ["a", "b"]),
    ("", "en", "mlqa", []),
])  # fmt: skip
def test_normalisation(answer: str, language: str, form: str, words: list[str]) -> None:
    assert normalise(answer, language, form) == words  # pyright: ignore[reportArgumentType]


def test_the_best_gold_answer_counts() -> None:
    assert compare("in the old town", ["Old Town", "elsewhere"], "en") == pytest.approx((2 * 2 / (3 + 2), 0))
    assert compare("the Old Town.", ["x", "old town"], "en") == (1, 1)
    assert compare("x", ["y"], "en") == compare("x", [], "en") == (0, 0)
    assert compare("年年", ["年"], "zh") == pytest.approx((2 / 3, 0))
    assert compare("the", ["a"], "en") == (0, 1)


def example(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(language="en", **values)


def text(value: str) -> SimpleNamespace:
    return SimpleNamespace(text=value)


GOLD = [["B-X", "I-X", "O"], ["B-Y", "O"], ["O"]]
FOUND = [["B-X", "I-X", "B-Y"], ["B-X", "O"], ["O"]]
ANSWERS = ("red house", "Bonn")
TWO_TAGS, TAGGED = ["NOUN", "VERB"], [["NOUN"] * 3, ["VERB"]]
CASES = {
    "label": (["a", "b"], [example(sentences=["x"], label=own) for own in "abba"], list("abab"), 50),
    "tags": (TWO_TAGS, [example(words=own, tags=own) for own in (["NOUN", "VERB", "NOUN"], ["VERB"])], TAGGED, 75),
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
    task = {"label": ClassificationTask, "span": QuestionAnsweringTask}.get(kind, TaggingTask)
    numbers = task.figures(classifier, examples)
    assert {own.shape for own in numbers.values()} == {(len(examples), 2)}
    assert next(iter(percentages(numbers).values())) == pytest.approx(expected)
