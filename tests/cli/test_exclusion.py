"""``--exclude`` finds the sentences of every layout that ``xrep-eval`` reads, and drops nothing else. Lines that are
too long and files in archives are no obstacles to training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_preprocess import PAIRS as ANIMALS
from tests.support.commands import Commands
from tests.support.corpus import write_lines
from xrep.registry import EVALUATIONS

PAIRS = [pair for number, pair in enumerate(ANIMALS) if number % 30 < 18]  # of three things that animals do
WORDS = [("Regen", "rain"), ("entailment", "O"), ("Neutral", "B-PER")]
"""Pairs of single words, which are words, labels and tags in the evaluation sets and no sentences of theirs."""
LEAKS = PAIRS[10:14]
"""The pairs that the evaluation sets have: of the second only the German side, of the third only the English one."""
GERMAN = ["Heute kommt Regen .", LEAKS[0][0], LEAKS[1][0], LEAKS[3][0]]
ENGLISH = ["Some rain is coming .", LEAKS[0][1], LEAKS[2][1], LEAKS[3][1]]
BOTH = [*GERMAN, *ENGLISH]

TEXT = "--task monolingual --criterion mlm --validation sts --sts-path sts --sts-split test --vocab-size 40".split()
"""Masked language modelling on text without a dev split."""
SMALL = "--max-steps 1 --layers 1 --hidden-size 16 --heads 2 --feedforward-size 16 --device cpu --batch-size 8".split()
Files = dict[str, bytes]


def each(form: str, lines: list[str], header: str = "") -> bytes:
    return (header + "".join(form.format(line, n=n) + "\n" for n, line in enumerate(lines))).encode()


def rows(form: str, header: str = "") -> bytes:
    """Return a line of each pair, in which ``de`` and ``en`` are its sides and ``n`` its number."""
    pairs = enumerate(zip(GERMAN, ENGLISH, strict=True))
    return (header + "".join(form % {"n": n, "de": de, "en": en} + "\n" for n, (de, en) in pairs)).encode()


def tagged(lines: list[str], tag: str = "O", prefix: str = "") -> bytes:
    words = "".join("".join(f"{prefix}{word}\t{tag}\n" for word in re.findall(r"\w+|\.", x)) + "\n" for x in lines)
    return f"{prefix}rain\tB-PER\n{prefix}entailment\tI-PER\n\n{words}".encode()


def conllu(lines: list[str]) -> bytes:
    text = ""
    for line in lines:
        words = enumerate(re.findall(r"\w+|\.", line), 1)
        text += f"# text = {line}\n" + "".join(f"{n}\t{word}\t_\tNOUN\t_\t_\t_\t_\t_\t_\n" for n, word in words) + "\n"
    return text.encode()


def squad(lines: list[str]) -> bytes:
    asked = [{"id": "q", "question": own, "answers": [{"text": "rain", "answer_start": 0}]} for own in lines[2:]]
    paragraphs = [{"context": "rain falls. " + "x " * 12_000, "qas": asked}, {"context": lines[1], "qas": asked}]
    return json.dumps({"data": [{"title": "Regen", "paragraphs": paragraphs}]}).encode()


DE, EN = each("{}", GERMAN), each("{}", ENGLISH)
REVIEW = "<item><rating>5.0</rating><category>Regen</category><text>{}</text></item>"
REVIEWS = [
    b'<?xml version="1.0" encoding="utf-8"?>\n<items>\n' + each(REVIEW, x) + b"</items>" for x in (GERMAN, ENGLISH)
]
RECORDS = rows('{"id": "row-1", "translation": {"de": "%(de)s", "en": "%(en)s"}}')
STSB = rows("neutral\tRegen\t2012\t%(n)s\t%(n)s.0\t%(de)s\t%(en)s")
SICK = rows(
    "%(n)s\t%(de)s\t%(en)s\t3.5\tNEUTRAL", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
)
MRPC = rows("1\t%(n)s\t9\t%(de)s\t%(en)s", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n")
XNLI = rows("de\tneutral\t%(de)s\t%(en)s\tRegen", "language\tgold_label\tsentence1\tsentence2\tpromptID\n")
GOLD = {"de-en.test.gold": each("de-{n}\ten-{n}", GERMAN)}
TATOEBA = {"tatoeba.deu-eng.deu": DE, "tatoeba.deu-eng.eng": EN}
LABELS = each("entailment", GERMAN)
NLI = "{}\tEs regnet.\tentailment"
LAYOUTS: dict[str, tuple[str | None, dict[str, Any], Files]] = {
    "tatoeba": ("tatoeba", {}, TATOEBA),
    "bucc": ("bucc", {"oracle": True}, GOLD | {
        "de-en.test.de": each("de-{n}\t{}", GERMAN), "de-en.test.en": each("en-{n}\t{}", ENGLISH)}),
    "sts, SemEval": ("sts", {}, {
        "STS14-en-test/STS.input.a.txt": rows("%(de)s\t%(en)s"), "STS14-en-test/STS.gs.a.txt": b"4.5\n1\n2\n0.2\n"}),
    "sts, STS-B": ("sts", {}, {"sts-test.csv": STSB}),
    "sts, translated": ("sts", {}, {"stsb-de-test.csv": rows('"%(de)s","%(en)s",2.5')}),
    "sts, SICK": ("sts", {}, {f"SICK_{x}.txt": SICK for x in ("train", "trial", "test_annotated")}),
    "alignment": ("alignment", {"data": "sts-test.csv", "positive_above": 1.0}, {"sts-test.csv": STSB}),
    "senteval, MRPC and TREC": ("senteval", {"sets": "TREC,MRPC"}, {
        f"TREC.{x}": each("NUM:dist {}", BOTH) for x in ("train", "test")} | {
        f"msr_paraphrase_{x}.txt": MRPC.replace(b"\n1\t1", b"\n0\t1") for x in ("train", "test")}),
    "senteval, MR": ("senteval", {"sets": "MR"}, {
        "rt-polarity.pos": "\n".join([*GERMAN, "a café\x85 of old"]).encode("latin-1"), "rt-polarity.neg": EN}),
    "senteval, SST5": ("senteval", {"sets": "SST5"}, {
        f"stsa.fine.{x}": each("3 {}", BOTH) for x in ("train", "dev", "test")}),
    "nli": ("nli", {"split": "dev"}, {"s1.dev": DE, "s2.dev": EN, "labels.dev": LABELS}),
    "xnli, without header": ("xnli", {}, {"test-de.tsv": each(NLI, GERMAN), "test-en.tsv": each(NLI, ENGLISH)}),
    "xnli, with header": (None, {}, {"xnli.test.tsv": XNLI}),
    "amazon": ("amazon", {}, {"de/books/test.review": REVIEWS[0], "en/books/test.review": REVIEWS[1]}),
    "pos": ("pos", {}, {"de_pud-ud-test.conllu": conllu(GERMAN), "en_pud-ud-test.conllu": conllu(ENGLISH)}),
    "ner": ("ner", {}, {"test-de.tsv": tagged(GERMAN, prefix="de:"), "test-en.tsv": tagged(ENGLISH, prefix="en:")}),
    "ner, own tags": (None, {}, {"a.tsv": tagged(GERMAN, "word"), "b.tsv": tagged(ENGLISH)}),
    "qa": ("qa", {}, {"xquad.de.json": squad(GERMAN), "xquad.en.json": squad(ENGLISH)}),
    "translation": ("translation", {"data": "a.{lang}"}, {"a.de": DE, "a.en": EN}),
    "SGML": (None, {}, {"test.sgm": each('<seg id="1">{}</seg>', BOTH)}),
    "JSON of no known form": (None, {}, {"test.json": b"[" + b",".join(RECORDS.splitlines()) + b"]"}),
}  # fmt: skip


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_lines(tmp_path / "text.tsv", [f"{de}\t{en}" for de, en in PAIRS + WORDS])
    similar = [f"a\tb\tc\td\t{n}\t{en}\t{PAIRS[0][1]}" for n, (_, en) in enumerate(PAIRS[:5])]
    write_lines(tmp_path / "sts" / "sts-test.csv", similar)
    return tmp_path


def cleaned(cli: Commands, vocabulary: Path, *options: str) -> tuple[dict[str, int], str]:
    """Run xrep-preprocess on text.tsv; return how many pairs each step dropped, and what was printed."""
    words = ["--bitext", "de-en=text.tsv:1,2", "--tokenizer", vocabulary, "--valid-size", 0, "--destdir", "bin"]
    result = cli("preprocess", *words, *options, "--json", "report.json")
    assert result.code == 0, result.err
    report = json.loads((cli.folder / "report.json").read_text())
    return report["cleaning"]["de-en text.tsv"], result.out


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_that_is_evaluated(here, cli, data_directory, monkeypatch, name):
    evaluation, options, files = LAYOUTS[name]
    write(here / "test-set", files)
    write_lines(here / "test-set" / "README.md", [de for de, _ in PAIRS])
    if evaluation:  # the layout is one that xrep-eval reads
        kind: Any = EVALUATIONS.load(evaluation)
        kind(kind.Config(**{**options, "data": str(here / "test-set" / options.get("data", ""))})).read()
    steps, said = cleaned(cli, data_directory, "--exclude", "test-set")
    assert steps["excluded"] == len(LEAKS), steps
    assert 7 <= int(re.search(r"excluding ([\d,]+) sentences", said)[1]) <= 9  # some sets have one that is in no pair


@pytest.mark.slow
def test_training_excludes_as_preprocessing_does(here: Path, cli: Commands) -> None:
    write_lines(here / "raw" / "train.de-en.tsv", [f"{de}\t{en}" for de, en in PAIRS + WORDS])
    write_lines(here / "raw" / "train.en.txt", [en for _, en in PAIRS])
    write(here / "test-set", LAYOUTS["qa"][2])
    options = [*SMALL, *"--exclude test-set --towers shared --save-dir".split()]
    pairs = "raw --task bitext --criterion translation_ranking --vocab-size 60".split()
    said = cli("train", *pairs, *options, "pairs").out
    assert "excluding 7 sentences of test-set" in said and re.search(r"^de-en \S+ +111 +4 ", said, re.MULTILINE)
    said = cli("train", "--data", "en=raw/train.en.txt", *TEXT, *options, "text").out
    assert f"train en: {len(PAIRS) - 3} sentences of {len(PAIRS)}" in said
    write_lines(here / "labels" / "train-en.tsv", [f"{n % 2}\t{en}" for n, (_, en) in enumerate(PAIRS)])
    labels = "labels --task classification --criterion classification --vocab-size 40".split()
    said = cli("train", *labels, *SMALL, *"--exclude test-set --save-dir labelled".split()).out
    assert f"train: {len(PAIRS) - 3} examples, {len(PAIRS) - 3} sequences; left out: 3 (excluded)" in said


def test_a_line_that_is_too_long_is_dropped_and_counted(here: Path, cli: Commands, data_directory: Path) -> None:
    """Also one that is longer than what is read at a time, and one without a tab."""
    pairs = [f"{de}\t{en}" for de, en in PAIRS]
    long = [f"{'Wort ' * 10_001}\tword", f"Wort\t{'x' * 1_000_001}", "ä" * 4_000_001, f"Satz\t{'satz ' * 2_000_000}"]
    write_lines(here / "text.tsv", [*pairs[:50], *long, *pairs[50:]])
    steps, _ = cleaned(cli, data_directory, "--max-length", "100000000", "--max-length-ratio", "1e9")
    assert (steps["read"], steps["too long"], steps["kept"]) == (len(PAIRS) + 4, 4, len(PAIRS))


@pytest.mark.slow
def test_a_line_that_is_too_long_ends_no_other_training(here: Path, cli: Commands) -> None:
    long = "word " * 10_001
    write_lines(here / "text.en", [*(en for _, en in PAIRS), long, "x" * 4_000_001])
    labelled = [f"{en}\t{PAIRS[0][1]}\t{('entailment', 'neutral')[n % 2]}" for n, (_, en) in enumerate(PAIRS)]
    write_lines(here / "nli" / "dev-en.tsv", labelled[:9])
    write_lines(here / "nli" / "train-en.tsv", [*labelled, f"{long}\tword\tneutral"])
    for line, said in (
        (f"--data en=text.en {' '.join(TEXT)} --towers shared", f"sentences of {len(PAIRS) + 2} (2 are too long)"),
        ("nli --task nli --criterion nli --vocab-size 40 --towers shared", "1 left out (too long)"),
        ("nli --task classification --criterion classification --vocab-size 40", "left out: 1 (too long)"),
    ):
        result = cli("train", *line.split(), *SMALL, "--save-dir", f"run{len(line)}")
        assert result.code == 0 and said in result.out, result
