"""F1 of named entities in IOB2 tags, counted as seqeval does in its strict mode, and the accuracy of tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Entity = tuple[int, int, str]
"""First word, word behind the last one, and type."""


@dataclass(frozen=True)
class EntityScore:
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
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "B":
            entities.append((place, place + 1, kind))
        elif prefix == "I" and entities and entities[-1][1:] == (place, kind):
            entities[-1] = (entities[-1][0], place + 1, kind)
    return entities


def entity_score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> EntityScore:
    """Compare the entities of sentences; one is right if both ends and the type agree (micro-average).

    Raises:
        ValueError: A sentence has another number of tags.
    """
    right, expected, given = (sum(column) for column in zip((0, 0, 0), *entity_counts(gold, predicted), strict=True))
    precision, recall = right / max(given, 1), right / max(expected, 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return EntityScore(100 * precision, 100 * recall, 100 * f1)


def entity_counts(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> list[tuple[int, int, int]]:
    """Return the numbers of right, of expected and of given entities of each sentence; errors as ``entity_score``."""
    counts = []
    for wanted, tags in zip(gold, predicted, strict=True):
        if len(wanted) != len(tags):
            raise ValueError(f"{len(tags)} tags for {len(wanted)} words")
        ours, theirs = set(entities_of(tags)), set(entities_of(wanted))
        counts.append((len(ours & theirs), len(theirs), len(ours)))
    return counts


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Return whether tags are those of entities: all are O, B-X or I-X, and there is a B-X."""
    return any(tag.startswith("B-") for tag in labels) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in labels)


def tag_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Return the percentage of words whose tag is right; for tags of words this is also their micro-averaged F1."""
    pairs = [wanted == tag for tags in zip(gold, predicted, strict=True) for wanted, tag in zip(*tags, strict=True)]
    return 100 * sum(pairs) / max(len(pairs), 1)
