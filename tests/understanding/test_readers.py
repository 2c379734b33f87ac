"""Readers of annotated text: every published form, and the files of which it is said what is wrong."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import environment
from xrep.errors import UserError
from xrep.text.find import TextFile, of_split
from xrep.understanding.formats import read_questions, read_tagged
from xrep.understanding.labels import ClassificationTask, read_labelled
from xrep.understanding.questions import QuestionAnsweringTask
from xrep.understanding.tags import TaggingTask


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def read(reader: Any, folder: Path, name: str, content: str, *counts: Counter[str]) -> list[Any]:
    return list(reader(TextFile("en", write(folder, {name: content}) / name), *counts))


@pytest.mark.parametrize(("name", "split", "language"), [
    ("dev-de.tsv", "valid", "de"),
    ("xnli.test.tsv", "test", "xx"),
    ("multinli.train.fr.tsv", "train", "fr"),
    ("zh/test_2k.tsv", "test", "zh"),
    ("jp/books/train.review", "train", "ja"),
    ("cls-acl10/de/music/test.review", "test", "de"),
    ("s1.train", "train", "xx"),
    ("own.jsonl", None, "xx"),
])  # fmt: skip
def test_split_and_language_are_read_from_names(name: str, split: str | None, language: str, tmp_path: Path) -> None:
    write(tmp_path / "data", {name: "x", "README.txt": "x", ".hidden.tsv": "x"})
    (file,) = ClassificationTask.discover(tmp_path / "data", "xx")
    assert (file.path, file.split, file.language) == (tmp_path / "data" / name, split, language)


def test_tagged_files_and_questions_are_found(tmp_path: Path) -> None:
    names = ("en_ewt-ud-train.conllu", "de_pud-ud-test.conllu", "panx/dev-zh.tsv", "LICENSE.txt")
    files = TaggingTask.discover(write(tmp_path / "tags", dict.fromkeys(names, "x")), "en")
    assert [(file.split, file.language) for file in files] == [("test", "de"), ("train", "en"), ("valid", "zh")]
    assert [file.language for file in of_split(files, "train")] == ["en"]
    of_two = "test-context-de-question-en.json"  # of MLQA, whose other files have the same language twice
    squad = {name: '{"data": [{"paragraphs": []}]}' for name in ("xquad.es.json", of_two)} | {"other.json": "{}"}
    (file,) = QuestionAnsweringTask.discover(write(tmp_path / "qa", squad), "en")
    assert (file.split, file.language) == (None, "es") and of_split([file], "test") and not of_split([file], "valid")
    with pytest.raises(UserError, match="no such file or folder"):
        ClassificationTask.discover(tmp_path / "nowhere", "en")
    with pytest.raises(
        UserError, match="no labelled text; name a file, or a folder of files that end in .tsv, .jsonl or .review"
    ):
        ClassificationTask.discover(tmp_path / "qa", "en")


@pytest.mark.parametrize(("name", "language"), [
    ("uk_iu-ud-train.conllu", "uk"), ("de_lit-ud-test.conllu", "de"), ("kmr_mg-ud-test.conllu", "ku"),
    ("grc_proiel-ud-train.conllu", "grc"),
])  # fmt: skip
def test_treebanks_have_the_language_of_their_first_letters(name: str, language: str, tmp_path: Path) -> None:
    (file,) = TaggingTask.discover(write(tmp_path, {name: "x"}), "en")
    assert file.language == language


def test_what_is_no_example_or_there_twice_is_not_read(tmp_path: Path) -> None:
    names = ("de/books/train.review", "de/books/unlabeled.review", "snli_1.0_dev.txt", "snli_1.0_dev.jsonl")
    files = ClassificationTask.discover(write(tmp_path, dict.fromkeys(names, "x")), "en")
    assert sorted(file.path.name for file in files) == ["snli_1.0_dev.jsonl", "train.review"]


PAIR = [(("A cat.", "An animal."), "entailment")]
REVIEW = "<items>" + "<item><rating>{}</rating><text>It is &amp; so.</text></item>" * 2 + "</items>"


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("dev-en.tsv", "A cat.\tAn animal.\tentailment\nNS\tx\t1\nx\ty\t-\n", PAIR),
    ("a.tsv", "language\tgold_label\tsentence1\tsentence2\nde\tentailment\tA cat.\tAn animal.\n", PAIR),
    ("b.tsv", "id\tsentence1\tsentence2\tlabel\n1\tA cat.\tAn animal.\tentailment\n", PAIR),
    ("c.tsv", "good\tA film.\nbad\tA  bore.\n", [(("A film.",), "good"), (("A bore.",), "bad")]),
    ("d.tsv", "text\tlabel\nA film.\tgood\n", [(("A film.",), "good")]),
    ("e.jsonl", '{"premise": "A cat.", "hypothesis": "An animal.", "label": "entailment"}\n', PAIR),
    ("f.jsonl", '{"text": "A film.", "label": 1}\n', [(("A film.",), "1")]),
    ("s1.dev", "A cat.\n", PAIR),
    ("test.review", REVIEW.format("4.0", "2.0"), [(("It is & so.",), "positive"), (("It is & so.",), "negative")]),
])  # fmt: skip
def test_labelled_text(name: str, content: str, expected: list[Any], tmp_path: Path) -> None:
    write(tmp_path, {"s2.dev": "An animal.\n", "labels.dev": "entailment\n"})
    examples = read(read_labelled, tmp_path, name, content)
    assert [(example.sentences, example.label) for example in examples] == expected


def test_rows_left_out_are_counted(tmp_path: Path) -> None:
    counts = Counter[str]()
    content = "a\tb\t1\nNS\tb\t1\na\tb\t-\na\t\t0\n"
    assert len(read(read_labelled, tmp_path, "x.tsv", content, counts)) == 1
    assert counts == {"read": 4, "no text": 2, "no label": 1}


CONLLU = """# text = It doesn't.
1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
UNER = "# sent_id = 1\n1\tAnton\tB-PER\t-\t-\n2\tsah\tO\t-\t-\n"


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("x.conllu", CONLLU, [(("It", "does", "n't"), ("PRON", "AUX", "PART"), 2), (("Yes",), ("INTJ",), 8)]),
    ("a.tsv", "de:Kiel\tB-LOC\nde::\tO\n\nde:x\tO\n", [(("Kiel", ":"), ("B-LOC", "O"), 1), (("x",), ("O",), 4)]),
    ("b.txt", "10:30 O\nen: O\n", [(("10:30", "en:"), ("O", "O"), 1)]),
    ("uner.iob2", UNER, [(("Anton", "sah"), ("B-PER", "O"), 2)]),
    ("multiconer.txt", "# id 5dd\tdomain=en\nKiel _ _ B-LOC\n# _ _ O\n", [(("Kiel", "#"), ("B-LOC", "O"), 2)]),
    ("conll2003.txt", "Kiel NNP I-NP B-LOC\nwins VBZ I-VP O\n", [(("Kiel", "wins"), ("B-LOC", "O"), 1)]),
])  # fmt: skip
def test_tagged_words(name: str, content: str, expected: list[Any], tmp_path: Path) -> None:
    """Ranges and empty nodes of CoNLL-U are skipped, and PAN-X has the language before each word."""
    assert [(s.words, s.tags, s.line) for s in read(read_tagged, tmp_path, name, content)] == expected


def test_rows_of_other_languages_are_not_trained_on(tmp_path: Path) -> None:
    """The dev set of XNLI has all languages in one file, which names none."""
    row = "{0}\tentailment\tA cat of {0}.\tAn animal of {0}.\n"
    text = "language\tgold_label\tsentence1\tsentence2\n" + "".join(map(row.format, ("ar", "de", "en", "en")))
    write(tmp_path, {"xnli.train.tsv": text, "xnli.dev.tsv": text})

    def task(*languages: str) -> ClassificationTask:
        config = ClassificationTask.Config(data=str(tmp_path), languages=list(languages), vocab_size=40)
        return ClassificationTask(config, 1)

    for languages, count in ((["en"], 2), (["de", "ar"], 2), (["all"], 4)):
        own = task(*languages)
        assert own.examples == count and len(list(own.examples_of("valid"))) == count
    assert task("de").text.languages == ["de"]
    with pytest.raises(UserError, match="there is training text in ar, de, en"):
        task("fr")


def squad(answers: Any = None, **paragraph: Any) -> str:
    answers = [{"text": "Kiel", "answer_start": 12}] if answers is None else answers
    asked = {"context": "He lives in Kiel.", "qas": [{"id": 1, "question": "Where?", "answers": answers}], **paragraph}
    return json.dumps({"data": [{"paragraphs": [asked]}]})


def test_questions(tmp_path: Path) -> None:
    moved = [{"text": text, "answer_start": start} for text, start in (("Kiel", 12), ("Kiel", 11), ("", 0))]
    counts = Counter[str]()
    (question,) = read(read_questions, tmp_path, "x.json", squad(moved), counts)
    assert len(question.answers) == 3
    assert [answer.start for answer in question.spans] == [12]
    assert counts == {"read": 1, "answer not in context": 2}
    for identity, language in (("finnish-76-1", "fi"), ("56be4db", "en"), ("finnish", "en")):
        content = squad().replace('"id": 1', f'"id": "{identity}"')
        assert read(read_questions, tmp_path, "tydiqa-goldp-dev.json", content)[0].language == language


EXCLUDE = """
import sys
from xrep.text.cleaning import sentence_hashes
from xrep.text.exclusion import load_exclusion
assert load_exclusion(sys.argv[1:]).contains(sentence_hashes(["It does n't", "Anton sah", "He lives in Kiel."])).all()
assert "torch" not in sys.modules
"""


def test_exclusion_reads_the_formats_without_torch(tmp_path: Path) -> None:
    """Importing torch takes seconds, and memory in each of its workers."""
    write(tmp_path, {"x.conllu": CONLLU, "x.json": squad(), "x.iob2": UNER})
    command = [sys.executable, "-c", EXCLUDE, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("reader", "name", "content", "message"), [
    (read_labelled, "a.tsv", "one\n", "a.tsv:1: 1 columns and no header"),
    (read_labelled, "a.tsv", "1\ttext\n2\n", "a.tsv:2: 1 columns where 2 are needed"),
    (read_labelled, "a.jsonl", "{}\n", "a.jsonl:1: no keys of a label and a text"),
    (read_labelled, "a.jsonl", '{"text": "x", "label": "y"}\n[\n', "a.jsonl:2: not JSON"),
    (read_labelled, "a.jsonl", '{"text": 3, "label": "y"}\n', "must be strings"),
    (read_labelled, "s1.dev", "x\n", "s2.dev: no such file"),
    (read_labelled, "a.review", REVIEW.format("good", "1"), "is no number"),
    (read_labelled, "a.review", "<items>", "a.review: not well-formed XML"),
    (read_tagged, "a.conllu", "1\tIt\tit\n", "a.conllu:1: 3 columns where CoNLL-U has 10"),
    (read_tagged, "a.conllu", CONLLU.replace("INTJ", "_"), "a.conllu:8: the word 'Yes' has no UPOS"),
    (read_tagged, "a.tsv", "Kiel\tB-LOC\nBonn\n", "a.tsv:2: not a word and its tag"),
    (read_questions, "x.json", "{", "x.json: not JSON"),
    (read_questions, "x.json", '{"data": 3}', "not questions in SQuAD's form"),
    (read_questions, "x.json", squad(context=" "), "the context of paragraph 1 is empty"),
    (read_questions, "x.json", squad([{"text": "x"}]), "paragraph 1 is not in SQuAD's form"),
])  # fmt: skip
def test_malformed_files(reader: Any, name: str, content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(reader, tmp_path, name, content)
