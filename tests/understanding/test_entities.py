"""Entities beside a reading of seqeval's rules by hand, and figures that seqeval computed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.understanding.figures import entities_of, entity_counts, is_entity_scheme

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
    right, expected, given = map(int, entity_counts(gold, found, lenient=lenient).sum(axis=0))
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
