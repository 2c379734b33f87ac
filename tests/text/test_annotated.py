"""Readers of annotated text: every published form, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile, discover, of_split
from xrep.text.labelled_readers import is_labelled, read_labelled
from xrep.text.question_readers import is_questions, read_questions
from xrep.text.tagged_readers import is_tagged, read_tagged


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def file_of(path: Path) -> AnnotatedFile:
    return AnnotatedFile(path, None, "en")


@pytest.mark.parametrize(
    ("name", "split", "language"),
    [
        ("dev-de.tsv", "valid", "de"),
        ("xnli.test.tsv", "test", "xx"),
        ("multinli.train.fr.tsv", "train", "fr"),
        ("zh/test_2k.tsv", "test", "zh"),
        ("jp/books/train.review", "train", "ja"),
        ("cls-acl10/de/music/test.review", "test", "de"),
        ("s1.train", "train", "xx"),
        ("own.jsonl", None, "xx"),
    ],
)
def test_split_and_language_are_read_from_names(name: str, split: str | None, language: str, tmp_path: Path) -> None:
    write(tmp_path / "data", **{name: "x", "README.txt": "x", ".hidden.tsv": "x"})
    (file,) = discover(tmp_path / "data", "xx", "labelled text", ".tsv", is_labelled)
    assert (file.path, file.split, file.language) == (tmp_path / "data" / name, split, language)


def test_tagged_files_and_questions_are_found(tmp_path: Path) -> None:
    names = {"en_ewt-ud-train.conllu": "x", "de_pud-ud-test.conllu": "x", "panx/dev-zh.tsv": "x", "LICENSE.txt": "x"}
    files = discover(write(tmp_path / "tags", **names), "en", "tagged words", ".conllu", is_tagged)
    assert [(file.split, file.language) for file in files] == [("test", "de"), ("train", "en"), ("valid", "zh")]
    assert [file.language for file in of_split(files, "train", ["en"])] == ["en"]
    squad = {"xquad.es.json": '{"data": [{"paragraphs": []}]}', "other.json": "{}"}
    (file,) = discover(write(tmp_path / "qa", **squad), "en", "questions", ".json", is_questions)
    assert (file.split, file.language) == (None, "es") and of_split([file], "test") and not of_split([file], "valid")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        discover(tmp_path / "nowhere", "en", "labelled text", ".tsv", is_labelled)
    with pytest.raises(UserError, match="no labelled text; name a file, or a folder of files that end in .tsv"):
        discover(tmp_path, "en", "labelled text", ".tsv", is_labelled)


# -- labels -----------------------------------------------------------------------------------------------------------

PAIR = [(("A cat.", "An animal."), "entailment")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("dev-en.tsv", "A cat.\tAn animal.\tentailment\nNS\tx\t1\nx\ty\t-\n", PAIR),
        ("a.tsv", "language\tgold_label\tsentence1\tsentence2\nde\tentailment\tA cat.\tAn animal.\n", PAIR),
        ("b.tsv", "id\tsentence1\tsentence2\tlabel\n1\tA cat.\tAn animal.\tentailment\n", PAIR),
        ("c.tsv", "good\tA film.\nbad\tA  bore.\n", [(("A film.",), "good"), (("A bore.",), "bad")]),
        ("d.tsv", "text\tlabel\nA film.\tgood\n", [(("A film.",), "good")]),
        ("e.jsonl", '{"premise": "A cat.", "hypothesis": "An animal.", "label": "entailment"}\n', PAIR),
        ("f.jsonl", '{"text": "A film.", "label": 1}\n', [(("A film.",), "1")]),
    ],
)
def test_labelled_text(name: str, content: str, expected: list[Any], tmp_path: Path) -> None:
    write(tmp_path, **{name: content})
    examples = list(read_labelled(file_of(tmp_path / name)))
    assert [(example.sentences, example.label) for example in examples] == expected


def test_rows_left_out_are_counted(tmp_path: Path) -> None:
    write(tmp_path, **{"x.tsv": "a\tb\t1\nNS\tb\t1\na\tb\t-\na\t\t0\n"})
    counts = Counter[str]()
    assert len(list(read_labelled(file_of(tmp_path / "x.tsv"), counts))) == 1
    assert counts == {"read": 4, "no text": 2, "no label": 1}


def test_parallel_files_and_reviews(tmp_path: Path) -> None:
    write(tmp_path, **{"s1.dev": "A cat.\n", "s2.dev": "An animal.\n", "labels.dev": "entailment\n"})
    (example,) = read_labelled(file_of(tmp_path / "s1.dev"))
    assert (example.sentences, example.label) == PAIR[0]
    reviews = "".join(f"<item><rating>{r}</rating><text>It is {r} &amp; so.</text></item>" for r in ("4.0", "2.0"))
    write(tmp_path, **{"test.review": f"<items>{reviews}</items>"})
    examples = list(read_labelled(file_of(tmp_path / "test.review")))
    assert [(e.sentences[0], e.label) for e in examples] == [
        ("It is 4.0 & so.", "positive"),
        ("It is 2.0 & so.", "negative"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "one\n", "a.tsv:1: 1 columns and no header"),
        ("a.tsv", "1\ttext\n2\n", "a.tsv:2: 1 columns where 2 are needed"),
        ("a.jsonl", "{}\n", "a.jsonl:1: no keys of a label and a text"),
        ("a.jsonl", '{"text": "x", "label": "y"}\n[\n', "a.jsonl:2: not a line of JSON"),
        ("a.jsonl", '{"text": 3, "label": "y"}\n', "must be strings"),
        ("a.jsonl", "[" * 100_000, "not a line of JSON"),
        ("s1.dev", "x\n", "s2.dev: no such file"),
        ("a.review", "<items><item><rating>good</rating><text>x</text></item></items>", "is no number"),
        ("a.review", "<items>", "not an XML file"),
    ],
)
def test_damaged_labelled_text(name: str, content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, **{name: content})
    with pytest.raises(UserError, match=message):
        list(read_labelled(file_of(tmp_path / name)))


# -- tags -------------------------------------------------------------------------------------------------------------

CONLLU = """# text = It doesn't.
1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_conllu_skips_ranges_and_empty_nodes(tmp_path: Path) -> None:
    write(tmp_path, **{"x.conllu": CONLLU})
    first, second = read_tagged(file_of(tmp_path / "x.conllu"))
    assert first.words == ("It", "does", "n't") and first.tags == ("PRON", "AUX", "PART") and first.line == 2
    assert second.words == ("Yes",) and second.line == 8


def test_tags_with_and_without_language_prefix(tmp_path: Path) -> None:
    write(tmp_path, **{"a.tsv": "de:Kiel\tB-LOC\nde::\tO\n\nde:x\tO\n", "b.txt": "10:30 O\nen: O\n"})
    assert [s.words for s in read_tagged(file_of(tmp_path / "a.tsv"))] == [("Kiel", ":"), ("x",)]
    (sentence,) = read_tagged(file_of(tmp_path / "b.txt"))
    assert sentence.words == ("10:30", "en:") and sentence.tags == ("O", "O")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conllu", "1\tIt\tit\n", "a.conllu:1: 3 columns where CoNLL-U has 10"),
        ("a.conllu", CONLLU.replace("INTJ", "_"), "a.conllu:8: the word 'Yes' has no UPOS"),
        ("a.tsv", "Kiel\tB-LOC\nBonn\n", "a.tsv:2: not a word and its tag"),
    ],
)
def test_damaged_tags(name: str, content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, **{name: content})
    with pytest.raises(UserError, match=message):
        list(read_tagged(file_of(tmp_path / name)))


# -- questions --------------------------------------------------------------------------------------------------------


def squad(context: Any = "He lives in Kiel.", answers: Any = None) -> dict[str, Any]:
    answers = [{"text": "Kiel", "answer_start": 12}] if answers is None else answers
    return {
        "data": [{"paragraphs": [{"context": context, "qas": [{"id": 1, "question": "Where?", "answers": answers}]}]}]
    }


def test_questions(tmp_path: Path) -> None:
    moved = [
        {"text": "Kiel", "answer_start": 12},
        {"text": "Kiel", "answer_start": 11},
        {"text": "", "answer_start": 0},
    ]
    write(tmp_path, **{"x.json": json.dumps(squad(answers=moved))})
    counts = Counter[str]()
    (question,) = read_questions(file_of(tmp_path / "x.json"), counts)
    assert question.identity == "1" and len(question.answers) == 3
    assert [answer.start for answer in question.spans] == [12]
    assert counts == {"read": 1, "answer not in context": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a JSON file"),
        ("[" * 100_000, "not a JSON file"),
        ('{"data": 3}', "not questions in SQuAD's form"),
        (json.dumps(squad(context=" ")), "the context of paragraph 1 is empty"),
        (json.dumps(squad(context=None)), "paragraph 1 is not in SQuAD's form"),
        (json.dumps(squad(answers=[{"text": "x"}])), "paragraph 1 is not in SQuAD's form"),
        (json.dumps(squad(answers=[{"text": "x", "answer_start": True}])), "paragraph 1 is not in SQuAD's form"),
    ],
)
def test_damaged_questions(content: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, **{"x.json": content})
    with pytest.raises(UserError, match=message):
        list(read_questions(file_of(tmp_path / "x.json")))
