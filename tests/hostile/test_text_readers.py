"""Hostile text: files of lines, pairs and inference data, specifications of them, and names of languages."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from tests.hostile.fuzzing import HOSTILE, Fuzz, files_like
from tests.hostile.refusals import Case, case_name, check_refused
from xrep.errors import UserError
from xrep.text.cleaning import CleaningOptions, drop_reason, sentence_hash, template_hash
from xrep.text.exclusion import load_exclusion
from xrep.text.languages import canonical, name
from xrep.text.nli_readers import discover_nli, read_nli
from xrep.text.readers import (
    discover_bitext,
    find_text,
    orient,
    parse_bitext,
    read_lines,
    read_pairs,
    read_sentences,
)

LINES = "Der Zug kommt.\nThe train comes.\r\n\n電車が来ます。\n".encode()
ROWS = b"Der Zug kommt.\tThe train comes.\nGuten Tag.\tHello.\n\n"
PAIR = {"sentence1": "A man.", "sentence2": "A person.", "language": "de"}
JSONL = "".join(
    f"{json.dumps({**PAIR, 'gold_label': gold})}\n" for gold in ("entailment", "contradiction", "-")
).encode()
TABLE = b"premise\thypo\tlabel\tlanguage\nA man.\tNobody.\tcontradictory\tde\nA man.\tA person.\tentailment\ten\n"
TRIPLETS = b'sent0,sent1,hard_neg\n"A man, here.",A person.,Nobody.\n"a ""b""",c,d\n'


@pytest.mark.slow
def test_lines(fuzz: Fuzz) -> None:
    packed = gzip.compress(LINES), lzma.compress(LINES), gzip.compress(LINES) + gzip.compress(b"")
    fuzz(
        "lines",
        "a.txt",
        files_like(LINES, *packed),
        lambda path: [*read_lines(path), *read_lines(path, most_words=None)],
    )


@pytest.mark.slow
def test_columns(fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        for spec in (f"de-en={path}", f"de-en={path}:3,1"):
            for _, source, target in read_pairs(orient(parse_bitext(spec))[0]):
                template_hash(source)
                drop_reason(source, target, (sentence_hash(source), sentence_hash(target)), CleaningOptions())

    fuzz("columns", "a.tsv", files_like(ROWS, gzip.compress(ROWS), ROWS.replace(b"\t", b"\t\t")), read)


@pytest.mark.slow
def test_two_files(fuzz: Fuzz) -> None:
    fuzz.folder.mkdir()
    (fuzz.folder / "train.en").write_bytes(LINES)

    def read(path: Path) -> None:
        for bitexts in discover_bitext(path.parent).values():
            for bitext in bitexts:
                list(read_pairs(bitext))

    fuzz("two files", "train.de", files_like(LINES, LINES * 2), read)


@pytest.mark.slow
def test_documents(fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        for files in find_text(path.parent).values():
            for file in files:
                list(read_sentences(file))

    fuzz("documents", "train.de", files_like(LINES), read)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "triplets"),
    [
        ("train.jsonl", JSONL, True),
        ("train.tsv", TABLE, False),
        ("nli.csv", TRIPLETS, True),
        ("labels.train", b"-\n", False),
    ],
)
def test_inference_data(fuzz: Fuzz, file: str, content: bytes, triplets: bool) -> None:
    fuzz.folder.mkdir()
    if file == "labels.train":
        for side in ("s1.train", "s2.train"):
            (fuzz.folder / side).write_bytes(b"a\n")

    def read(path: Path) -> None:
        for files in discover_nli(path.parent, "en").values():
            list(read_nli(files, triplets=triplets))

    fuzz(f"inference data in {file}", file, files_like(content), read)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "content"), [("a.csv", TRIPLETS), ("b.jsonl", JSONL), ("c.txt", LINES)])
def test_excluded_sets(fuzz: Fuzz, file: str, content: bytes) -> None:
    fuzz(f"evaluation set in {file[1:]}", file, files_like(content), lambda path: load_exclusion([path.parent]))


@pytest.mark.slow
def test_specifications(fuzz: Fuzz) -> None:
    """Whatever the command line holds, a specification of text is refused or understood."""

    def read(path: Path) -> None:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        for parse in (parse_bitext, find_text):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(path.parent)
                try:
                    parse(text)
                except OSError as error:  # a name that the file system refuses, which the commands print as a line
                    assert error.filename
                except UserError as error:
                    assert "\n" not in str(error) or "\n" in text
        assert canonical(canonical(text)) == canonical(text) and isinstance(name(text), str)

    specs = (b"de-en=x.tsv@500", b"de-en=x.tsv:2,1@9", b"de=a.txt,en=b.txt", b"de-en=a.de,b.en", b"zh-Hans", b"pt_BR")
    fuzz("specifications", "spec", files_like(*specs), read)


def test_hostile_pieces_are_read_or_refused(tmp_path: Path) -> None:
    """Every hostile piece alone, in every kind of file."""
    for number, piece in enumerate(HOSTILE):
        for file, content in (("train.jsonl", piece), ("train.tsv", b"a\tb\t" + piece), ("n.csv", TRIPLETS + piece)):
            folder = tmp_path / f"{number}{file}"
            folder.mkdir()
            (folder / file).write_bytes(content)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                try:
                    for files in discover_nli(folder, "en").values():
                        list(read_nli(files, triplets=file.endswith("csv")))
                except UserError as error:
                    assert error.path is not None and error.cure


def test_a_language_that_is_not_text_is_named(tmp_path: Path) -> None:
    row = json.dumps({"sentence1": "a", "sentence2": "b", "gold_label": "neutral", "language": 5})
    (tmp_path / "train.jsonl").write_text(row)
    with pytest.raises(UserError, match="train.jsonl:1: .*language must be strings; fetch the file again"):
        list(read_nli(discover_nli(tmp_path, "en")["train"], triplets=False))


def test_a_blank_row_needs_no_memory_for_its_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("\n")
    assert list(read_pairs(parse_bitext(f"de-en={tmp_path}/a.tsv:999999,1"))) == [(1, "", "")]
    with pytest.raises(UserError, match="cannot read the parallel text|names 2 files|no such file"):
        list(read_pairs(parse_bitext("de-en=a.tsv:1,9999999999999")))


CASES = [
    Case("preprocess", "--bitext de-en=fifo --destdir out", "fifo: its columns cannot be recognised"),
    Case("preprocess", "--bitext de-en=a.de,/dev/null --destdir out", "/dev/null: the file is empty"),
    Case("preprocess", "--bitext de-en=latin1.tsv --destdir out", "latin1.tsv:1: invalid UTF-8 (byte 3 of the line)"),
    Case("preprocess", "--bitext de-en=a.tsv@0 --destdir out", "asks for a sample of 0 pairs"),
    Case("preprocess", "--bitext de-en=a.tsv@" + "9" * 99 + " --destdir out", "no such file"),
    Case("preprocess", "--bitext de-en=a.tsv:0,1 --destdir out", "needs two different columns"),
    Case("preprocess", "--bitext de-en=short.tsv.gz --destdir out", "short.tsv.gz:1: damaged or truncated gzip file"),
    Case(
        "preprocess",
        "--bitext de-en=a.tsv --vocab-size " + "9" * 12 + " --destdir out",
        "a vocabulary of 9999",
    ),
    Case("preprocess", "--bitext de-en=a.tsv --vocab-size -1 --destdir out", "a vocabulary of -1 pieces"),
    Case(
        "preprocess",
        "--bitext de-en=a.tsv --sampling-exponent 1e6 --destdir out",
        "must lie in [0, 1], not 1e+06",
    ),
    Case(
        "preprocess",
        "--bitext de-en=a.tsv --sampling-exponent -3 --destdir out",
        "must lie in [0, 1], not -3",
    ),
    Case("preprocess", "--bitext de-en=a.tsv --exclude deep --destdir out", "deep: a folder without files"),
    Case(
        "train",
        "task.data=de=fifo --task monolingual --criterion mlm --save-dir run",
        "fifo: a pipe or device",
    ),
    Case("train", "fifo --task nli --criterion nli --save-dir run", "fifo: neither a file nor a folder"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    place = tmp_path / "text"
    (place / "deep").mkdir(parents=True)
    os.mkfifo(place / "fifo")  # Nothing writes to it, so that reading it would wait.
    (place / "a.tsv").write_bytes(ROWS * 20)
    (place / "a.de").write_bytes(LINES)
    (place / "latin1.tsv").write_bytes("grün\tgreen\n".encode("latin1"))
    (place / "short.tsv.gz").write_bytes(gzip.compress(os.urandom(2000).hex().encode())[:500])
    return place


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refused(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """JSON can spell it, but no tokenizer can encode it."""
    (tmp_path / "train.jsonl").write_text(json.dumps({**PAIR, "sentence1": "a\ud800", "gold_label": "neutral"}))
    with pytest.raises(UserError, match="train.jsonl:1: half of a surrogate pair in a text; fetch the file again"):
        list(read_nli(discover_nli(tmp_path, "en")["train"], triplets=False))
