"""Small annotated text that can be learned in seconds: the label, the tags and the answer follow from the words."""

import itertools
import json
from pathlib import Path

SUBJECTS = {"der Koch": "the cook", "die Ärztin": "the doctor", "ein Maler": "a painter", "mein Onkel": "my uncle"}
VERBS = {"lacht": "laughs", "singt": "sings", "schläft": "sleeps", "wartet": "waits"}
CITIES = {"Kiel": "LOC", "Bonn": "LOC", "Anna": "PER", "Otto": "PER"}
PLACES = ("im Haus", "am Fluss", "im Garten", "auf dem Dach", "im Zug")


def sentences() -> list[tuple[str, str, str]]:
    """Return 320 (German sentence, its verb, its name)."""
    some = itertools.product(SUBJECTS, VERBS, CITIES, PLACES)
    return [(f"{subject} {verb} bei {city} {place}", verb, city) for subject, verb, city, place in some]


def write_labels(folder: Path) -> Path:
    """Write labelled German text: the label says whether somebody is awake."""
    lines = [f"{'asleep' if verb == 'schläft' else 'awake'}\t{sentence}\n" for sentence, verb, _ in sentences()]
    return _write_splits(folder, lines[::2] + lines[1::4], lines[3::8], lines[7::8])


def write_pairs(folder: Path) -> Path:
    """Write pairs of German sentences, labelled yes (a quarter) if their verbs agree; every split has all pairs."""
    some = itertools.product(SUBJECTS, VERBS, VERBS)
    lines = [f"{subject} {one}\tjemand {other}\t{'yes' if one == other else 'no'}\n" for subject, one, other in some]
    return _write_splits(folder, lines, lines, lines)


def _write_splits(folder: Path, *splits: list[str] | str, ending: str = "tsv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(("train", "dev", "test"), splits, strict=True):
        (folder / f"{name}-de.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder


def write_tags(folder: Path) -> Path:
    """Write German words with the tags of places and persons."""
    texts = []
    for sentence, _, city in sentences():
        words = sentence.split()
        texts.append("".join(f"{word}\t{f'B-{CITIES[city]}' if word == city else 'O'}\n" for word in words) + "\n")
    return _write_splits(folder, texts[::2], texts[1::4], texts[3::4])


def write_questions(folder: Path) -> Path:
    """Write questions for the name in a German sentence, as SQuAD's JSON."""
    paragraphs = []
    for number, (sentence, _, city) in enumerate(sentences()):
        answer = {"text": city, "answer_start": sentence.index(city)}
        asked = {"id": str(number), "question": "bei wem?", "answers": [answer]}
        paragraphs.append({"context": f"{sentence}.", "qas": [asked]})
    splits = paragraphs[::2], paragraphs[1::4], paragraphs[3::4]
    texts = [json.dumps({"data": [{"paragraphs": some}]}, ensure_ascii=False) for some in splits]
    return _write_splits(folder, *texts, ending="json")
