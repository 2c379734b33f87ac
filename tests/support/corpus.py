"""A small German-English corpus for tests: combinations of a few words, so that translations can be learnt from it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path

SUBJECTS = {
    "der alte Mann": "the old man",
    "die kleine Katze": "the small cat",
    "unser Nachbar": "our neighbour",
    "meine Schwester": "my sister",
    "das fremde Kind": "the strange child",
    "ihr Lehrer": "her teacher",
    "der müde Arzt": "the tired doctor",
    "die junge Frau": "the young woman",
}
VERBS = {
    "sieht": "sees",
    "kauft": "buys",
    "malt": "paints",
    "vergisst": "forgets",
    "sucht": "looks for",
    "bewundert": "admires",
    "versteckt": "hides",
    "findet": "finds",
}
OBJECTS = {
    "ein rotes Haus": "a red house",
    "das schwere Buch": "the heavy book",
    "einen gelben Vogel": "a yellow bird",
    "die lange Brücke": "the long bridge",
    "einen runden Tisch": "a round table",
    "das offene Fenster": "the open window",
    "den kalten Fluss": "the cold river",
    "eine leere Flasche": "an empty bottle",
}
TIMES = {
    "am Morgen": "in the morning",
    "jeden Tag": "every day",
    "im Winter": "in winter",
    "nach der Arbeit": "after work",
}


def sentence_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return ``count`` different (German, English) pairs, at most 2048."""
    combined = list(itertools.product(SUBJECTS.items(), VERBS.items(), OBJECTS.items(), TIMES.items()))
    random.Random(seed).shuffle(combined)
    return [(" ".join(part[0] for part in parts), " ".join(part[1] for part in parts)) for parts in combined[:count]]


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_corpus(directory: Path, train: int = 600, valid: int = 60, test: int = 60) -> Path:
    """Write raw text of three splits as ``{split}.de-en.{de,en}``. No pair is in two of them."""
    pairs, start = sentence_pairs(train + valid + test), 0
    for split, size in (("train", train), ("valid", valid), ("test", test)):
        for side, language in enumerate(("de", "en")):
            lines = [pair[side] for pair in pairs[start : start + size]]
            write_lines(directory / f"{split}.de-en.{language}", lines)
        start += size
    return directory


SPANISH_SUBJECTS = {
    "mi abuela": "my grandmother", "el panadero": "the baker", "tu primo": "your cousin", "el piloto": "the pilot",
}  # fmt: skip
SPANISH_VERBS = {"canta": "sings", "llega": "arrives", "duerme": "sleeps"}
SPANISH_PLACES = {
    "en la cocina": "in the kitchen",
    "cerca del puerto": "near the harbour",
    "sin prisa": "without haste",
}


def spanish_pairs() -> list[tuple[str, str]]:
    """Return 36 (Spanish, English) pairs."""
    combined = itertools.product(SPANISH_SUBJECTS.items(), SPANISH_VERBS.items(), SPANISH_PLACES.items())
    return [(" ".join(part[0] for part in parts), " ".join(part[1] for part in parts)) for parts in combined]
