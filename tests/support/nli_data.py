"""Small inference data about the sentences of the tests' corpus, in the formats in which such data is published."""

from __future__ import annotations

import csv
import itertools
import json
import random
from pathlib import Path

from tests.support.corpus import OBJECTS, SUBJECTS, TIMES, VERBS
from tests.support.corpus import write_lines as write

Row = tuple[str, str, str]
"""Premise, hypothesis, label."""


def nli_rows(premises: int, language: str = "en", seed: int = 0) -> list[Row]:
    """Return three shuffled rows of each premise, one of each label. Rows of ``de`` and ``en`` translate each other."""
    choose, rows = random.Random(seed), []
    combined = itertools.product(*(words.items() for words in (SUBJECTS, VERBS, OBJECTS, TIMES)))
    for drawn in choose.sample(list(combined), premises):
        subject, verb, thing, time = (pair[language == "en"] for pair in drawn)
        other = choose.choice([pair for pair in OBJECTS.items() if pair != drawn[2]])[language == "en"]
        premise = f"{subject} {verb} {thing} {time}"
        rows += [
            (premise, f"{subject} {verb} {thing}", "entailment"),
            (premise, f"{subject} {verb} {thing} {other}", "neutral"),
            (premise, f"{subject} {verb} {other}", "contradiction"),
        ]
    choose.shuffle(rows)
    return rows


def write_jsonl(path: Path, rows: list[Row], **columns: str) -> Path:
    """Write the format of SNLI, MNLI and CNSD."""
    keys = ("sentence1", "sentence2", "gold_label")
    lines = [json.dumps({**columns, **dict(zip(keys, row, strict=True))}, ensure_ascii=False) for row in rows]
    return write(path, lines)


def write_snli_table(path: Path, rows: list[Row]) -> Path:
    """Write the .txt format of SNLI and MNLI, whose rows have as many labels as annotators."""
    header = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\tlabel1\tlabel2"
    return write(path, [header, *(f"{label}\t( x )\t{one}\t{two}\t4#0\t{label}" for one, two, label in rows)])


def write_glue_table(path: Path, rows: list[Row]) -> Path:
    """Write GLUE's format of MNLI, in which quotation marks are text."""
    header = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label"
    return write(
        path, [header, *(f'{n}\t7\t{one}\t"{two}\tneutral\t{label}' for n, (one, two, label) in enumerate(rows))]
    )


def write_columns(path: Path, rows: list[Row], header: str | None = None) -> Path:
    """Write three columns: XNLI as in XTREME, without a header, or its translated training text."""
    return write(path, [*([header] if header else []), *("\t".join(row) for row in rows)])


def write_parallel(folder: Path, split: str, rows: list[Row]) -> None:
    for name, column in zip(("s1", "s2", "labels"), zip(*rows, strict=True), strict=True):
        write(folder / f"{name}.{split}", list(column))


def write_simcse(path: Path, triplets: list[Row]) -> Path:
    """Write SimCSE's CSV file of anchor, positive and hard negative."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([("sent0", "sent1", "hard_neg"), *triplets])
    return path
