"""Exact match and F1 of answers, as SQuAD (Rajpurkar et al., 2016) and MLQA (Lewis et al., 2020) compute them."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

Normalisation = Literal["squad", "mlqa"]

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
    text = "".join(character for character in answer.lower() if not _is_punctuation(character, form))
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


def _is_punctuation(character: str, form: Normalisation) -> bool:
    return character in string.punctuation or (form == "mlqa" and unicodedata.category(character).startswith("P"))
