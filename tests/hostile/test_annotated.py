"""Readers of annotated text, given any content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.fuzzing import Fuzz, files_like
from xrep.text.annotated import AnnotatedFile
from xrep.text.labelled_readers import read_labelled
from xrep.text.question_readers import is_questions, read_questions
from xrep.text.tagged_readers import read_tagged

pytestmark = pytest.mark.slow
TABLE = b"label\tsentence1\tsentence2\nyes\tder Koch\tthe cook\nno\tdie Katze\ta dog\n"
PLAIN = b"good\tein Film\nbad\tein Buch\n"
LINES = b'{"sentence1": "der Koch", "sentence2": "the cook", "gold_label": "yes"}\n{"text": "x", "label": 1}\n'
REVIEWS = b"<?xml version='1.0'?><items><item><rating>4.0</rating><text>Sch\xc3\xb6n &amp; gut</text></item></items>"
ENTITIES = b"<!DOCTYPE x [<!ENTITY a 'b'><!ENTITY c '&a;&a;&a;'>]>" + REVIEWS[21:].replace(b"&amp;", b"&c;")
TAGS = b"de:Kiel\tB-LOC\nde:ist\tO\n\nde:da\tO\n"
CONLLU = b"# x\n1\tIt\tit\tPRON\t_\t_\t0\troot\t_\t_\n2-3\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
SQUAD = (
    b'{"data": [{"paragraphs": [{"context": "He is in Kiel.", "qas": [{"id": "1", "question": "Where?", "answers": '
    b'[{"text": "Kiel", "answer_start": 9}]}]}]}]}'
)


@pytest.mark.parametrize(
    ("file", "valid", "read"),
    [
        ("train.tsv", (TABLE, PLAIN), read_labelled),
        ("train.jsonl", (LINES,), read_labelled),
        ("train.review", (REVIEWS, ENTITIES), read_labelled),
        ("train.tsv.gz", (PLAIN,), read_labelled),
        ("train.txt", (TAGS,), read_tagged),
        ("train.conllu", (CONLLU,), read_tagged),
        ("train.json", (SQUAD,), read_questions),
        ("train.json.gz", (SQUAD,), read_questions),
    ],
)
def test_any_content(fuzz: Fuzz, file: str, valid: tuple[bytes, ...], read: Callable[..., Iterator[Any]]) -> None:
    def read_all(path: Path) -> list[Any]:
        if ".json" in file and ".jsonl" not in file:
            is_questions(path)
        return list(read(AnnotatedFile(path, None, "de")))

    fuzz(f"annotated {file} ({read.__name__})", file, files_like(*valid), read_all)
