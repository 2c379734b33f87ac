"""F1 of named entities in IOB2 tags as seqeval counts them, in its strict mode and by default, and accuracy of tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Entity = tuple[int, int, str]
"""First word, word behind the last one, and type."""


class EntityScore(NamedTuple):
    """Precision, recall and their harmonic mean, in percent, over all entities of all sentences."""

    precision: float
    recall: float
    f1: float


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence: B-X, followed by any number of I-X. Other I-X belong to no entity.

    >>> entities_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"])
    [(0, 2, 'PER'), (4, 5, 'LOC')]
    """
    entities = list[Entity]()
    for word, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "B":
            entities.append((word, word + 1, kind))
        elif prefix == "I" and entities and entities[-1][1:] == (word, kind):
            entities[-1] = (entities[-1][0], word + 1, kind)
    return entities


def lenient_entities(sentences: Sequence[Sequence[str]]) -> list[set[Entity]]:
    """Return the entities that end in each sentence, as seqeval finds them by default; XTREME scores all tags so.

    The first character of a tag is its prefix, and the rest is its type (without what precedes a hyphen; ``_`` if
    nothing is left). An entity is a sequence of words of one type. A word with B or S begins another one, S and E end
    it, and O is no entity. Unlike in IOB2, an I may begin an entity, and tags without a prefix, such as UPOS, are read
    in the same way: neighbours of one tag are one entity, SCONJ and SYM always stand alone, and the types of CCONJ and
    SCONJ are equal. seqeval reads all sentences as one sequence with an O behind each, and O has the type ``_`` like X.
    So words are counted across all sentences, and an X beside the end of a sentence is joined to what precedes it.

    >>> lenient_entities([["I-LOC", "I-LOC", "O"], ["NOUN", "NOUN", "VERB"]])
    [{(0, 2, 'LOC')}, {(4, 6, 'OUN'), (6, 7, 'ERB')}]
    """
    entities, begin, word, previous, previous_type = list[set[Entity]](), 0, 0, "O", ""
    for tags in sentences:
        ending = set[Entity]()
        for tag in (*tags, "O"):
            prefix, kind = tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_"
            changes = kind != previous_type
            if previous in "ES" or (previous in "BI" and prefix in "BSO") or (previous not in "O." and changes):
                ending.add((begin, word, previous_type))
            if prefix in "BS" or (previous in "OES" and prefix in "EI") or (prefix not in "O." and changes):
                begin = word
            previous, previous_type, word = prefix, kind, word + 1
        entities.append(ending)
    return entities


def entity_score(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, lenient: bool = False
) -> EntityScore:
    """Compare the entities of sentences, which are those of ``lenient_entities`` or those of ``entities_of``; one is
    right if both ends and the type agree (micro-average).
    """
    return score_of(entity_counts(gold, predicted, lenient=lenient))


def score_of(counts: Sequence[tuple[int, int, int]]) -> EntityScore:
    """Return the score of the ``entity_counts`` of sentences."""
    right, expected, given = map(sum, zip((0, 0, 0), *counts, strict=True))
    precision, recall = right / max(given, 1), right / max(expected, 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return EntityScore(100 * precision, 100 * recall, 100 * f1)


def entity_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, lenient: bool = False
) -> list[tuple[int, int, int]]:
    """Return the numbers of right, of expected and of given entities of each sentence; see ``entity_score``."""
    find = lenient_entities if lenient else lambda side: [set(entities_of(tags)) for tags in side]
    pairs = zip(find(gold), find(predicted), strict=True)
    return [(len(expected & given), len(expected), len(given)) for expected, given in pairs]


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Return whether tags are those of entities: all are O, B-X or I-X, and there is a B-X."""
    return any(tag.startswith("B-") for tag in labels) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in labels)


def tag_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the percentage of words whose tag is right."""
    pairs = [wanted == tag for tags in zip(gold, predicted, strict=True) for wanted, tag in zip(*tags, strict=True)]
    return 100 * sum(pairs) / max(len(pairs), 1)
