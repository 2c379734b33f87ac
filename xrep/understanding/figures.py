"""Figures of answers and of named entities, from words alone.

Exact match and F1 of answers are computed as for SQuAD (Rajpurkar et al., 2016) and MLQA (Lewis et al., 2020), and
entities in IOB2 tags are counted as by seqeval, in its strict mode and by default.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

Normalisation = Literal["squad", "mlqa"]
Entity = tuple[int, int, str]
"""First word, word behind the last one, and type."""
ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": r"\sال^|ال",
}
"""Articles that MLQA leaves out, as regular expressions."""
_IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")
"""A character that MLQA counts as a word in Chinese."""


def normalise(answer: str, language: str, form: Normalisation = "mlqa") -> list[str]:
    """Return the words of an answer that are compared: lower case, without punctuation and articles.

    Args:
        language: Canonical code of the answer's language.
        form: ``squad`` treats every language as English, as XTREME does for XQuAD and TyDiQA; ``mlqa`` leaves out the
            articles and Unicode punctuation of each language, and divides Chinese into characters.

    >>> normalise("The “Rhein-Ruhr”  area", "en")
    ['rheinruhr', 'area']
    >>> normalise("第3号", "zh")
    ['第', '3', '号']
    """
    language = "en" if form == "squad" else language
    kept = [own for own in answer.lower() if own not in string.punctuation]
    text = "".join(own for own in kept if form == "squad" or not unicodedata.category(own).startswith("P"))
    if language in ARTICLES:
        text = re.sub(ARTICLES[language], " ", text)
    if language == "zh":
        text = _IDEOGRAPH.sub(lambda match: f" {match[0]} ", text)
    return text.split()


def exact_match(prediction: str, gold: Sequence[str], language: str, form: Normalisation = "mlqa") -> float:
    """Return 1 if the prediction is one of the gold answers after normalisation, else 0."""
    return float(normalise(prediction, language, form) in [normalise(answer, language, form) for answer in gold])


def f1(prediction: str, gold: Sequence[str], language: str, form: Normalisation = "mlqa") -> float:
    """Return the best F1 of the prediction's words with those of a gold answer, between 0 and 1."""
    words, scores = normalise(prediction, language, form), [0.0]
    for wanted in (normalise(answer, language, form) for answer in gold):
        shared = (Counter(words) & Counter(wanted)).total()
        scores.append(2 * shared / max(len(words) + len(wanted), 1))
    return max(scores)


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of a sentence: B-X, followed by any number of I-X. Other I-X belong to no entity.

    >>> sorted(entities_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-PER"]))
    [(0, 2, 'PER'), (4, 5, 'LOC')]
    """
    entities = list[Entity]()
    for word, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix == "B":
            entities.append((word, word + 1, kind))
        elif prefix == "I" and entities and entities[-1][1:] == (word, kind):
            entities[-1] = (entities[-1][0], word + 1, kind)
    return set(entities)


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


def entity_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, lenient: bool = False
) -> np.ndarray:
    """Return the numbers of right, of expected and of given entities of each sentence, int64 [N, 3].

    Entities are those of ``lenient_entities`` or those of ``entities_of``; one is right if ends and type agree.
    """
    find = lenient_entities if lenient else lambda sentences: list(map(entities_of, sentences))
    pairs = zip(find(gold), find(predicted), strict=True)
    counts = [(len(expected & given), len(expected), len(given)) for expected, given in pairs]
    return np.array(counts, np.int64).reshape(-1, 3)


def is_entity_scheme(labels: Sequence[str]) -> bool:
    """Return whether tags are those of entities: all are O, B-X or I-X, and there is a B-X."""
    return any(tag.startswith("B-") for tag in labels) and all(tag == "O" or tag[:2] in ("B-", "I-") for tag in labels)
