"""``--exclude`` finds the sentences of every layout that ``xrep-eval`` reads, and drops nothing else. Lines that are
too long, files in archives and fields of records are no obstacles to training."""

from __future__ import annotations

import bz2
import io
import itertools
import json
import lzma
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from xrep.registry import EVALUATIONS
from xrep_cli import preprocess
from xrep_cli.train import main as train

ANIMALS = {"Hund": "dog", "Vogel": "bird", "Fisch": "fish", "Wolf": "wolf", "Bär": "bear", "Affe": "monkey"}
PLACES = {"Wald": "forest", "Fluss": "river", "Garten": "garden", "Park": "park", "Berg": "mountain", "See": "lake"}
ACTS = {"schläft": "sleeps", "spielt": "plays", "wartet": "waits"}
ALL = list(itertools.product(ANIMALS, ACTS, PLACES))
PAIRS = [(f"Der {a} {v} im {p}.", f"The {ANIMALS[a]} {ACTS[v]} in the {PLACES[p]}.") for a, v, p in ALL]
WORDS = [("Regen", "rain"), ("entailment", "O"), ("Neutral", "B-PER")]
"""Pairs of single words, which are words, labels and tags in the evaluation sets and no sentences of theirs."""
LEAKS = PAIRS[10:14]
"""The pairs that the evaluation sets have: of the second only the German side, of the third only the English one."""
GERMAN = ["Heute kommt Regen .", LEAKS[0][0], LEAKS[1][0], LEAKS[3][0]]
ENGLISH = ["Some rain is coming .", LEAKS[0][1], LEAKS[2][1], LEAKS[3][1]]

TEXT = "--task monolingual --criterion mlm --validation sts --sts-path sts --sts-split test --vocab-size 40".split()
"""Masked language modelling on text without a dev split."""
SMALL = "--max-steps 1 --layers 1 --hidden-size 16 --heads 2 --feedforward-size 16 --device cpu --batch-size 8".split()

Files = dict[str, bytes]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def words_and_tags(sentences: list[str], tag: str = "O", prefix: str = "") -> bytes:
    rows = ([f"{prefix}{word}\t{tag}" for word in re.findall(r"\w+|\.", own)] + [""] for own in sentences)
    return text([f"{prefix}rain\tB-PER", f"{prefix}entailment\tI-PER", "", *itertools.chain.from_iterable(rows)])


def conllu(sentences: list[str]) -> bytes:
    lines = []
    for sentence in sentences:
        lines += [f"# text = {sentence}"]
        words = enumerate(re.findall(r"\w+|\.", sentence), 1)
        lines += ["\t".join([str(n), word, "_", "NOUN", *"______"]) for n, word in words] + [""]
    return text(lines)


def squad(sentences: list[str]) -> bytes:
    asked = [{"id": "q", "question": own, "answers": [{"text": "rain", "answer_start": 0}]} for own in sentences[2:]]
    paragraphs = [{"context": "rain falls. " + "x " * 12_000, "qas": asked}, {"context": sentences[1], "qas": asked}]
    return json.dumps({"data": [{"title": "Regen", "paragraphs": paragraphs}]}).encode()


def labelled(sentences: list[str], header: str | None = None) -> bytes:
    rows = [f"{own}\tEs regnet.\tentailment" for own in sentences]
    return text([header, *(f"1\tentailment\t{row}" for row in rows)] if header else rows)


def records(key: str = "translation") -> bytes:
    return text(
        [json.dumps({"id": "row-1", key: {"de": de, "en": en}}) for de, en in zip(GERMAN, ENGLISH, strict=True)]
    )


def reviews(sentences: list[str]) -> bytes:
    rows = "".join(
        f"<item><rating>5.0</rating><category>Regen</category><text>{own}</text></item>" for own in sentences
    )
    return f'<?xml version="1.0" encoding="utf-8"?>\n<items>\n{rows}\n</items>'.encode()


def zipped(files: Files) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tatoeba(folder: str = "") -> Files:
    return {f"{folder}tatoeba.deu-eng.deu": text(GERMAN), f"{folder}tatoeba.deu-eng.eng": text(ENGLISH)}


def bucc() -> Files:
    files = {
        f"de-en.test.{code}": text([f"{code}-{n}\t{own}" for n, own in enumerate(lines)])
        for code, lines in (("de", GERMAN), ("en", ENGLISH))
    }
    return files | {"de-en.test.gold": text([f"de-{n}\ten-{n}" for n in range(4)])}


def sts() -> Files:
    pairs = [f"{de}\t{en}" for de, en in zip(GERMAN, ENGLISH, strict=True)]
    return {
        "STS14-en-test/STS.input.OnWN.txt": text(pairs),
        "STS14-en-test/STS.gs.OnWN.txt": text(["4.5", "1", "2", "0.2"]),
    }


def stsb() -> Files:
    rows = [
        f"neutral\tRegen\t2012\t{n}\t{n}.0\t{de}\t{en}" for n, (de, en) in enumerate(zip(GERMAN, ENGLISH, strict=True))
    ]
    return {"sts-test.csv": text(rows)}


def translated_stsb() -> Files:
    return {"stsb-de-test.csv": text([f'"{de}","{en}",{2.5}' for de, en in zip(GERMAN, ENGLISH, strict=True)])}


def sick() -> Files:
    rows = [f"{n}\t{de}\t{en}\t3.5\tNEUTRAL" for n, (de, en) in enumerate(zip(GERMAN, ENGLISH, strict=True))]
    return dict.fromkeys(
        ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"),
        text(["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment", *rows]),
    )


def senteval() -> Files:
    rows = [f"{n % 2}\t{n}\t{n + 9}\t{de}\t{en}" for n, (de, en) in enumerate(zip(GERMAN, ENGLISH, strict=True))]
    table = text(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows])
    questions = text([f"NUM:dist {own}" for own in (*GERMAN, *ENGLISH)])
    return {"TREC.train": questions, "TREC.test": questions} | dict.fromkeys(
        ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"), table
    )


def movie_reviews() -> Files:
    latin = "\n".join(GERMAN + ["a café\x85 of the old kind"]).encode("latin-1")
    return {"rt-polarity.pos": latin, "rt-polarity.neg": text(ENGLISH)}


def sentiment() -> Files:
    return dict.fromkeys(
        ("stsa.fine.train", "stsa.fine.dev", "stsa.fine.test"), text([f"3 {own}" for own in (*GERMAN, *ENGLISH)])
    )


def parallel_labels() -> Files:
    return {"s1.dev": text(GERMAN), "s2.dev": text(ENGLISH), "labels.dev": text(["entailment"] * 4)}


HEADER = "promptID\tgold_label\tsentence1\tsentence2\tgenre"
LAYOUTS: dict[str, tuple[str | None, dict[str, Any], Files]] = {
    "tatoeba": ("tatoeba", {}, tatoeba()),
    "tatoeba, an archive": (None, {}, {"t.zip": zipped(tatoeba("t/") | {"__MACOSX/t/._x": b"\x00\xff\xfe"})}),
    "bucc": ("bucc", {"oracle": True}, bucc()),
    "sts, SemEval": ("sts", {}, sts()),
    "sts, STS-B": ("sts", {}, stsb()),
    "sts, translated": ("sts", {}, translated_stsb()),
    "sts, SICK": ("sts", {}, sick()),
    "alignment": ("alignment", {"data": "sts-test.csv", "positive_above": 1.0}, stsb()),
    "senteval, MRPC and TREC": ("senteval", {"sets": "TREC,MRPC"}, senteval()),
    "senteval, MR": ("senteval", {"sets": "MR"}, movie_reviews()),
    "senteval, SST5": ("senteval", {"sets": "SST5"}, sentiment()),
    "nli": ("nli", {"split": "dev"}, parallel_labels()),
    "xnli, without header": ("xnli", {}, {"test-de.tsv": labelled(GERMAN), "test-en.tsv": labelled(ENGLISH)}),
    "xnli, with header": (
        None,
        {},
        {
            "xnli.test.tsv": text(
                ["language\tgold_label\tsentence1\tsentence2\tpromptID"]
                + [f"de\tneutral\t{de}\t{en}\tRegen" for de, en in zip(GERMAN, ENGLISH, strict=True)]
            )
        },
    ),
    "pawsx, records": (
        None,
        {},
        {
            "test-de.jsonl": text([
                json.dumps({"sentence1": de, "sentence2": en, "label": "O"})
                for de, en in zip(GERMAN, ENGLISH, strict=True)
            ])
        },
    ),
    "amazon": ("amazon", {}, {"de/books/test.review": reviews(GERMAN), "en/books/test.review": reviews(ENGLISH)}),
    "pos": ("pos", {}, {"de_pud-ud-test.conllu": conllu(GERMAN), "en_pud-ud-test.conllu": conllu(ENGLISH)}),
    "ner": (
        "ner",
        {},
        {"test-de.tsv": words_and_tags(GERMAN, prefix="de:"), "test-en.tsv": words_and_tags(ENGLISH, prefix="en:")},
    ),
    "ner, own tags": (None, {}, {"a.tsv": words_and_tags(GERMAN, "word"), "b.tsv": words_and_tags(ENGLISH)}),
    "qa": ("qa", {}, {"xquad.de.json": squad(GERMAN), "xquad.en.json": squad(ENGLISH)}),
    "translation": ("translation", {"data": "a.{lang}"}, {"a.de": text(GERMAN), "a.en": text(ENGLISH)}),
    "SGML": (None, {}, {"test.sgm": "".join(f'<seg id="1">{own}</seg>\n' for own in (*GERMAN, *ENGLISH)).encode()}),
    "records of Hugging Face": (None, {}, {"test.jsonl": records()}),
    "nested records": (None, {}, {"test.jsonl.xz": lzma.compress(records("text"))}),
    "JSON of no known form": (None, {}, {"test.json": b"[" + b",".join(records().splitlines()) + b"]"}),
    "table": (None, {}, {"a.tsv.bz2": bz2.compress(text([*map("\t".join, zip(GERMAN, ENGLISH, strict=True))]))}),
}  # fmt: skip


def lines(path: Path, rows: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "text.tsv", [f"{de}\t{en}" for de, en in PAIRS + WORDS])
    lines(
        tmp_path / "sts" / "sts-test.csv",
        [f"a\tb\tc\td\t{n}\t{en}\t{PAIRS[0][1]}" for n, (_, en) in enumerate(PAIRS[:5])],
    )
    return tmp_path


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def cleaned(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, int]:
    """Run xrep-preprocess on text.tsv and return how many pairs each step dropped, and what the line about exclusion
    says."""
    command = [
        "--bitext",
        "de-en=text.tsv:1,2",
        "--vocab-size",
        "60",
        "--valid-size",
        "0",
        "--destdir",
        "bin",
        *options,
    ]
    assert preprocess.main([*command, "--json", "report.json"]) == 0, capsys.readouterr().err
    said = re.search(r"excluding ([\d,]+) sentences", capsys.readouterr().out)
    steps = json.loads(Path("report.json").read_text())["cleaning"]["de-en text.tsv"]
    return {**steps, "sentences": int(said[1]) if said else 0}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_that_is_evaluated(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    evaluation, options, files = LAYOUTS[name]
    write(here / "test-set", files)
    lines(here / "test-set" / "README.md", [de for de, _ in PAIRS])
    if evaluation:  # the layout is one that xrep-eval reads
        kind: Any = EVALUATIONS.load(evaluation)
        data = str(here / "test-set" / options.get("data", ""))
        kind(kind.Config(**{**options, "data": data})).read()
    steps = cleaned(capsys, "--exclude", "test-set")
    assert steps["excluded"] == len(LEAKS), steps
    assert 7 <= steps["sentences"] <= 9  # and of some sets a sentence that is in no pair


def test_training_excludes_as_preprocessing_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines(here / "raw" / "train.de-en.tsv", (here / "text.tsv").read_text(encoding="utf-8").splitlines())
    lines(here / "raw" / "train.en.txt", [en for _, en in PAIRS])
    write(here / "test-set", LAYOUTS["qa"][2])
    options = [*SMALL, *"--exclude test-set --towers shared --save-dir".split()]
    pairs = "raw --task bitext --criterion translation_ranking --vocab-size 60".split()
    assert train([*pairs, *options, "pairs"]) == 0
    said = capsys.readouterr().out
    assert "excluding 7 sentences of test-set" in said and re.search(r"^de-en \S+ +111 +4 ", said, re.MULTILINE)
    assert train(["--data", "en=raw/train.en.txt", *TEXT, *options, "text"]) == 0
    assert f"train en: {len(PAIRS) - 3} sentences of {len(PAIRS)}" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"\n \n...\n", b'{"data": []}'])
def test_a_set_without_text_is_refused(here: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    name = "set.json" if content.startswith(b"{") else "set.txt"
    write(here, {name: content})
    command = "--bitext de-en=text.tsv:1,2 --vocab-size 60 --destdir bin --exclude".split()
    assert preprocess.main([*command, name]) == 2
    error = capsys.readouterr().err
    assert f"{name}: no text could be read from it, so it would exclude nothing; name a file or folder" in error
    assert not (here / "bin").exists()


def test_a_line_that_is_too_long_is_dropped_and_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that is longer than what is read at a time, and one without a tab."""
    rows = [f"{de}\t{en}" for de, en in PAIRS]
    long = [f"{'Wort ' * 10_001}\tword", f"Wort\t{'x' * 1_000_001}", "ä" * 4_000_001, f"Satz\t{'satz ' * 2_000_000}"]
    lines(here / "text.tsv", [*rows[:50], *long, *rows[50:]])
    steps = cleaned(capsys, "--max-length", "100000000", "--max-length-ratio", "1e9")
    assert (steps["read"], steps["too long"], steps["kept"]) == (len(PAIRS) + 4, 4, len(PAIRS))


def test_a_line_that_is_too_long_ends_no_other_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 10_001
    lines(here / "text.en", [*(en for _, en in PAIRS), long, "x" * 4_000_001])
    rows = [f"{en}\t{PAIRS[0][1]}\t{('entailment', 'neutral')[n % 2]}" for n, (_, en) in enumerate(PAIRS)]
    lines(here / "nli" / "dev-en.tsv", rows[:9])
    lines(here / "nli" / "train-en.tsv", [*rows, f"{long}\tword\tneutral"])
    options = [*SMALL, *"--towers shared --save-dir".split()]
    assert train(["--data", "en=text.en", *TEXT, *options, "text"]) == 0
    assert f"train en: {len(PAIRS)} sentences of {len(PAIRS) + 2} (2 are too long)" in capsys.readouterr().out
    assert train(["nli", *"--task nli --criterion nli --vocab-size 40".split(), *options, "pairs"]) == 0
    assert "1 left out (too long)" in capsys.readouterr().out
    labels = "nli --task classification --criterion classification --vocab-size 40 --save-dir labels".split()
    assert train([*labels, *SMALL]) == 0
    assert "left out: 1 (too long)" in capsys.readouterr().out


def test_files_in_archives_and_fields_of_records(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    german, english = (text([pair[side] for pair in PAIRS]) for side in (0, 1))
    write(here, {"c.zip": zipped({"a.de": german, "a.en": english})})
    lines(here / "m.jsonl", [json.dumps({"id": "x", "title": en, "titel": de}) for de, en in PAIRS])
    command = "--vocab-size 60 --valid-size 0 --destdir".split()
    assert preprocess.main(["--bitext", "de-en=c.zip/a.de,c.zip/a.en", *command, "one"]) == 0
    assert preprocess.main(["--bitext", "de-en=m.jsonl:titel,title", *command, "two"]) == 0
    assert capsys.readouterr().out.count(f"train: de-en {len(PAIRS)} pairs") == 2
    options = [*TEXT, *SMALL, "--towers", "shared", "--save-dir"]
    for number, file in enumerate(("m.jsonl:title", "c.zip/a.en")):
        assert train(["--data", f"en={file}", *options, str(number)]) == 0
        assert f"train en: {len(PAIRS)} sentences" in capsys.readouterr().out
    assert preprocess.main(["--bitext", "de-en=c.zip/a.de,c.zip/a.fr", *command, "no"]) == 2
    assert "c.zip/a.fr: no such file in the archive" in capsys.readouterr().err


def test_columns_in_an_archive_are_swapped_with_a_note(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here, {"c.zip": zipped({"deu-eng.tsv": text([f"{en}\t{de}" for de, en in PAIRS])})})
    assert preprocess.main("--bitext de-en=c.zip --vocab-size 60 --valid-size 0 --destdir bin".split()) == 0
    assert "c.zip/deu-eng.tsv: column 1 is English, so column 2 is read as de" in capsys.readouterr().out


def test_shards_of_archives_are_merged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, pairs in (("c.zip", PAIRS[:60]), ("d.zip", PAIRS[60:])):
        write(here, {name: zipped({"deu-eng.tsv": text([f"{en}\t{de}" for de, en in pairs])})})
    options = "--bitext de-en=c.zip --bitext de-en=d.zip --vocab-size 60 --valid-size 0".split()
    for number in (1, 2):
        assert preprocess.main([*options, "--shard", f"{number}/2", "--destdir", f"part{number}"]) == 0
    assert preprocess.main(["--merge", "part1", "part2", "--destdir", "merged"]) == 0, capsys.readouterr().err
    assert preprocess.main([*options, "--destdir", "whole"]) == 0
    for file in (here / "whole").glob("train.*"):
        assert file.read_bytes() == (here / "merged" / file.name).read_bytes()
