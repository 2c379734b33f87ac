"""What holds for every evaluation: what was trained on is counted and left out, and the command prints and writes what
was measured, also on vectors that another system computed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.conftest import PAIRS, SCORED, NgramEncoder, measured, save_hashes, write, write_tatoeba
from tests.support.corpus import sentence_pairs
from tests.support.nli_data import nli_rows
from xrep.errors import UserError
from xrep.evaluation.encoders import Overlap, open_encoder
from xrep.files import json_text
from xrep.registry import EVALUATIONS

NUMBERED = [(f"{german} {n}", f"{english} {n}") for n, (german, english) in enumerate(sentence_pairs(24))]
"""Trigrams find the translation by the number."""
REVIEWS = [(f"{('a good', 'a dull')[n % 2]} film about {english}", n % 2) for n, (_, english) in enumerate(NUMBERED)]


def write_sts(folder: Path, rows: Sequence[Any]) -> Path:
    lines = [f"genre\tfile\tyear\t{n}\t{score}\t{one}\t{other}" for n, (one, other, score) in enumerate(rows)]
    return write(folder / "sts-test.csv", lines)


def write_texts(folder: Path, rows: Sequence[Any]) -> Path:
    for language, column in zip(("de", "en"), zip(*rows, strict=True), strict=True):
        write(folder / f"text.{language}", column)
    return folder / "text.{lang}"


def write_bucc(folder: Path, rows: Sequence[Any]) -> Path:
    """Write gold pairs, those with a number below 16, among sentences without a translation."""
    numbers = [int(german.split()[-1]) for german, _ in rows]
    for column, language in enumerate(("de", "en")):
        texts = [row[column] if n < 16 or n % 2 == column else None for n, row in zip(numbers, rows, strict=True)]
        lines = [f"{language}-{n}\t{text}" for n, text in zip(numbers, texts, strict=True) if text]
        write(folder / f"de-en.test.{language}", lines)
    write(folder / "de-en.test.gold", [f"de-{n}\ten-{n}" for n in numbers if n < 16])
    return folder


def write_reviews(folder: Path, rows: Sequence[Any]) -> Path:
    for label, name in enumerate(("neg", "pos")):
        write(folder / "CR" / f"custrev.{name}", [text for text, own in rows if own == label])
    return folder


def write_flores(folder: Path, rows: Sequence[Any]) -> Path:
    for code, column in zip(("deu_Latn", "eng_Latn"), zip(*rows, strict=True), strict=True):
        write(folder / "devtest" / f"{code}.devtest", column)
    changed = {f"{english}9": {"errtype": "number", "src": english} for _, english in rows}
    write(folder / "devtest_augmented" / "eng_Latn_augmented.devtest", list(changed))
    write(folder / "devtest_augmented" / "eng_Latn_errtype.devtest.json", [json.dumps(changed)])
    return folder


@dataclass(frozen=True)
class Case:
    """An evaluation, its rows, and a function that writes them and returns ``--data``. ``known`` are sentences of the
    training text and ``seen`` the rows with one of them."""

    name: str
    write: Callable[[Path, Sequence[Any]], Path]
    rows: Sequence[Any]
    known: Sequence[str] = ()
    seen: Sequence[int] = ()
    options: dict[str, Any] = field(default_factory=dict)
    total: int | None = None
    """Number of examples, where it is not that of the rows."""

    def write_without(self, folder: Path) -> Path:
        return self.write(folder, [row for number, row in enumerate(self.rows) if number not in self.seen])


CASES = [
    Case(
        "tatoeba", lambda folder, rows: write_tatoeba(folder, "deu", rows), PAIRS["deu"],
        ["ＭＡＲＩＡ wohnt - seit 1998 - in Berlin", "did you READ the book", "Tom lebt."], [0, 4],
    ),
    Case("sts", lambda folder, rows: write_sts(folder, rows).parent, SCORED, ["a dog RUNS in the snow!"], [1]),
    Case("alignment", write_sts, SCORED, ["THE plane takes off", "A man rides a horse"], [4, 5]),
    Case("bucc", write_bucc, NUMBERED, [NUMBERED[2][0], NUMBERED[5][1].upper()], [2, 5], {"oracle": True}, total=16),
    Case("language-bias", write_texts, NUMBERED, [NUMBERED[3][0], NUMBERED[9][1]], [3, 9], {"neighbours": 4}),
    Case("senteval", write_reviews, REVIEWS, [REVIEWS[5][0], REVIEWS[8][0]], [5, 8], {"sets": "CR", "folds": 2}),
    Case(
        "nli", lambda folder, rows: write(folder / "test-en.tsv", ["\t".join(row) for row in rows]).parent,
        nli_rows(10), [nli_rows(10)[4][1]], [4],
    ),
    Case("xsim", write_flores, NUMBERED, [NUMBERED[2][0], NUMBERED[5][1].upper()], [2, 5]),
    Case("scatter", write_texts, NUMBERED[:8], options={"sentences": 5, "plot": "out.png"}),
]  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("classifier")]
WITHOUT_INFLUENCE = set("data batch_tokens max_tokens cache list_sentences dimensions plot save_translations".split())
"""Options that change no figure, or name what the record has beside its settings: data by checksums."""
NO_TESTS = {"scatter"}
"""Evaluations of a user's own text, in which overlap with the training text means nothing."""
WITHOUT_TABLES = {*NO_TESTS, "language-bias"}
"""Evaluations whose values are not those of tables."""
KEYS = {"test", "values", "headline", "intervals", "model", "data", "settings", "version", "overlap"}


def options_of(case: Case, data: Path) -> dict[str, Any]:
    return {**case.options, "data": str(data)}


def check_record(case: Case, record: dict[str, Any]) -> None:
    """Every record has the same keys: tables, of which each has its overlap, averages, and all options on which figures
    depend."""
    assert record.keys() == KEYS and set(record["intervals"]) <= set(record["headline"])
    options = {option.name for option in fields(EVALUATIONS.load(case.name).Config)}
    assert options - WITHOUT_INFLUENCE <= set(record["settings"])
    assert (record["overlap"] is None) == (case.name in NO_TESTS)
    tables, averages = record["values"]["tables"], record["values"]["averages"]
    assert bool(tables) == (case.name not in WITHOUT_TABLES) and (tables or not averages)
    if tables:
        counts = {key: sum(own["overlap"][key] for own in tables.values()) for key in ("found", "total")}
        assert counts == {key: record["overlap"][key] for key in counts} and counts["found"] == len(case.seen)
        assert all(0 < own["examples"] <= own["overlap"]["total"] for own in tables.values())
    for label, own in averages.items():
        assert isinstance(own.pop("examples"), int) and all(isinstance(value, float) for value in own.values()), label


@pytest.mark.parametrize("name", EVALUATIONS.names())
def test_every_test_counts_the_overlap(name: str) -> None:
    kind = EVALUATIONS.load(name)
    options = {option.name for option in fields(kind.Config)}
    assert options & kind.unrecorded <= WITHOUT_INFLUENCE
    assert ("drop_overlap" in options) == (name not in NO_TESTS)


def numbers(values: Any, name: str = "") -> dict[str, float]:
    """Return all figures by their places; the overlap itself is none."""
    if isinstance(values, dict):
        parts = (numbers(own, f"{name}/{key}") for key, own in values.items() if key != "overlap")
        return {place: number for part in parts for place, number in part.items()}
    return {name: values} if isinstance(values, (int, float)) else {}


@pytest.mark.parametrize("case", [case for case in CASES if case.known], ids=lambda case: case.name)
def test_what_was_trained_on_is_counted_and_left_out(case: Case, tmp_path: Path) -> None:
    """An example counts once, whichever side was seen in whatever spelling; without it, the figures are those of data
    that never had it."""
    kind, given = EVALUATIONS.load(case.name), options_of(case, case.write(tmp_path / "all", case.rows))
    total = len(case.rows) if case.total is None else case.total
    unknown = measured(kind, NgramEncoder(), **given)
    assert unknown.overlap == Overlap(None, total)
    assert unknown.printed().endswith("\noverlap: unknown (no training hashes beside the encoder)")
    with pytest.raises(UserError, match="no training hashes.*without `drop_overlap`"):
        measured(kind, NgramEncoder(), **given, drop_overlap=True)

    encoder = NgramEncoder(training_hashes=save_hashes(tmp_path, ["!?", "Nobody knows.", *case.known]))
    counted = measured(kind, encoder, **given)
    assert counted.overlap == Overlap(len(case.seen), total) and f"{len(case.seen)} of {total}" in counted.printed()
    check_record(case, json.loads(json_text(counted.record(case.name, encoder))))
    dropped = measured(kind, encoder, **given, drop_overlap=True)
    without = options_of(case, case.write_without(tmp_path / "without"))
    expected = measured(kind, NgramEncoder(), **without)
    assert dropped.overlap == Overlap(len(case.seen), total, dropped=True)
    assert numbers(dropped.values) == pytest.approx(numbers(expected.values), rel=1e-6)
    assert numbers(dropped.values) != numbers(counted.values) == numbers(unknown.values)
    every = [text for row in case.rows for text in row if isinstance(text, str)]
    encoder = NgramEncoder(training_hashes=save_hashes(tmp_path, every))
    with pytest.raises(UserError, match="without `drop_overlap`|fewer than 2 sentences|training examples of class"):
        measured(kind, encoder, **given, drop_overlap=True)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "nli"], ids=lambda case: case.name)
def test_the_command_prints_and_writes_what_was_measured(case, cli, shared_encoder, tmp_path):
    """``--list-sentences`` names each sentence once, and their vectors give the figures of the encoder itself."""
    data, folder, kind = case.write(tmp_path / "data", case.rows), tmp_path / "vectors", EVALUATIONS.load(case.name)
    given, encoder = options_of(case, data), open_encoder(shared_encoder)
    expected = measured(kind, encoder, **given)
    line = [case.name, "--data", data]
    for name, value in case.options.items():
        line += [f"--{name}"] if value is True else [f"--{name}", value] if name != "plot" else []
    drawing = ["--plot", "out.png"] if "plot" in case.options else []
    result = cli("eval", *line, *drawing, "--path", shared_encoder, "--json", tmp_path / "out.json")
    assert result.code == 0 and result.out.startswith(expected.printed())
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    if case.name in NO_TESTS:
        check_record(case, record)
    assert record["test"] == case.name and record["values"] == json.loads(json.dumps(expected.values))
    assert record["headline"] == expected.headline
    assert record["model"] == {"path": str(shared_encoder), "fingerprint": encoder.fingerprint()}
    shared = {"layer": None, "precision": "float32"} | ({"drop_overlap": False} if case.known else {})
    assert record["settings"] == {**json.loads(json.dumps(expected.settings)), **shared}
    written = {str(file) for file in (tmp_path / "data").rglob("*.*")}
    assert set(record["data"]) == written
    assert (tmp_path / "out.png").exists() == (case.name == "scatter")

    folder.mkdir()
    listed = cli("eval", *line, "--list-sentences", folder / "sentences.tsv")
    rows = [line.split("\t") for line in (folder / "sentences.tsv").read_text("utf-8").splitlines()]
    assert listed.code == 0 and listed.out == f"{len(rows)} sentences: {folder / 'sentences.tsv'}\n"
    assert len(set(map(tuple, rows))) == len(rows)
    vectors = [encoder.encode([text], lang or None, normalize=False) for lang, text in rows]
    np.save(folder / "vectors.npy", np.concatenate(vectors))
    theirs = measured(kind, open_encoder(folder), **given)
    assert theirs.headline == pytest.approx(expected.headline, rel=1e-4)
    assert numbers(theirs.values) == pytest.approx(numbers(expected.values), rel=1e-3, abs=1e-5)
    assert theirs.settings == expected.settings and theirs.files == expected.files
