"""xrep-mine negatives against a plain search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.inference.hard_negatives import NegativeOptions, mine_negatives
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interrupts import Interrupted
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.readers import parse_bitext
from xrep_cli.mine import main

PAIRS = sentence_pairs(80)
# The first source has two further translations, and two sources share a target.
TEXT = [*PAIRS[:60], (PAIRS[0][0], PAIRS[1][1]), (PAIRS[0][0], PAIRS[60][1]), (PAIRS[61][0], PAIRS[5][1])]
MORE = [PAIRS[n][1] for n in range(62, 80)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "best", seed=3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pairs, some of them again in other case, and lines without words."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{german}\t{english}" for german, english in TEXT]
    lines += ["", f"{TEXT[3][0].upper()}!\t{TEXT[3][1]}", "...\t???"]
    (tmp_path / "train.tsv").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "more.en").write_text("".join(line + "\n" for line in [*MORE, "", PAIRS[2][1]]), encoding="utf-8")
    return tmp_path


def run(encoder: Path, *arguments: object, output: object = "out.tsv") -> int:
    named = ["negatives", "--path", encoder, "--bitext", "de-en=train.tsv:1,2", "--output", output, "--device", "cpu"]
    return main([*map(str, named), *map(str, arguments)])


def rows_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def plain(encoder: Path, more: list[str], **options) -> list[list[str]]:
    """Search with loops. ``limit`` gives the highest score of a negative from that of the translation."""
    model = SentenceEncoder.load(encoder, device="cpu")
    candidates = list(dict.fromkeys([*(english for _, english in TEXT), *more]))
    sources = [german for german, _ in TEXT]
    x, y = (normalize_rows(model.encode(side).astype(np.float16).astype(np.float64)) for side in (sources, candidates))
    rows, first, last = [], options.get("first", 0), options.get("last", 50)
    for number, (german, english) in enumerate(TEXT):
        scores = dict(zip(candidates, (y @ x[number]).tolist(), strict=True))
        known = {other for source, other in TEXT if source == german}
        ranked = sorted((own for own in candidates if own not in known), key=lambda own: -scores[own])[first:last]
        limit = options["limit"](scores[english])
        kept = [own for own in ranked if options.get("least", -2) <= scores[own] <= limit]
        if kept:
            rows.append([german, english, *kept[: options.get("most", 3)]])
    return rows


def test_the_nearest_sentences_that_are_no_translations(
    encoder: Path, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(encoder, "--json", "out.json") == 0
    found = rows_of(folder / "out.tsv")
    assert found == plain(encoder, [], limit=lambda score: score - 0.05 * abs(score))
    for german, english, *negatives in found:
        assert english not in negatives and not {e for g, e in TEXT if g == german} & {*negatives}
    said, out = json.loads((folder / "out.json").read_text()), capsys.readouterr().out
    counts = {name: said[name] for name in ("pairs", "sources", "candidates", "empty", "duplicates")}
    assert counts == {"pairs": 63, "sources": 61, "candidates": 61, "empty": 2, "duplicates": 1}
    assert said["pairs_with_negatives"] == len(found) < 63 and said["dropped"]["relative_margin"] > 0
    assert said["negatives"] == sum(len(row) - 2 for row in found)
    assert out.startswith(f"{said['negatives']} negatives of {len(found)} of 63 pairs, from 61 candidates; left out: ")
    assert sorted(path.name for path in folder.iterdir()) == ["more.en", "out.json", "out.tsv", "train.tsv"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--absolute-margin 0.1 --relative-margin -9", {"limit": lambda score: score - 0.1}),
        ("--relative-margin 0.2 --num-negatives 1", {"limit": lambda score: score - 0.2 * abs(score), "most": 1}),
        ("--relative-margin -9 --range-min 2 --range-max 4", {"limit": lambda _: 9.0, "first": 2, "last": 4}),
        ("--relative-margin -9 --max-score 0.5 --min-score 0.2", {"limit": lambda _: 0.5, "least": 0.2}),
    ],
)
def test_margins_ranks_and_scores(encoder: Path, folder: Path, options: str, rule: dict) -> None:
    assert run(encoder, "--candidates", "more.en", *options.split()) == 0
    assert rows_of(folder / "out.tsv") == plain(encoder, MORE, **rule)


def test_percentiles_and_random_samples(encoder: Path, folder: Path) -> None:
    free = ["--candidates", "more.en", "--relative-margin", "-9", "--json", "out.json"]
    assert run(encoder, *free, "--max-percentile", 30) == 0
    model = SentenceEncoder.load(encoder, device="cpu")
    x, y = (
        normalize_rows(model.encode(side).astype(np.float16).astype(np.float64)) for side in zip(*TEXT, strict=True)
    )
    limit = float(np.percentile((x * y).sum(1), 30))
    assert rows_of(folder / "out.tsv") == plain(encoder, MORE, limit=lambda _: limit)
    drawn = []
    for seed in (1, 1, 2):
        assert run(encoder, *free, "--sampling-strategy", "random", "--seed", seed, "--num-negatives", 5) == 0
        drawn.append(rows_of(folder / "out.tsv"))
    assert drawn[0] == drawn[1] != drawn[2]
    every = plain(encoder, MORE, limit=lambda _: 9.0, most=50)
    for row, all_of_them in zip(drawn[0], every, strict=True):
        places = [all_of_them[2:].index(own) for own in row[2:]]
        assert row[:2] == all_of_them[:2] and len(row) == 7 and places == sorted(places)
    assert sum(row[2:] == own[2:7] for row, own in zip(drawn[0], every, strict=True)) < 3


def test_standard_output_and_an_interrupted_search(
    encoder: Path, folder: Path, capfdbinary: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(encoder) == 0
    whole = (folder / "out.tsv").read_bytes()
    capfdbinary.readouterr()
    assert run(encoder, output="-") == 0
    captured = capfdbinary.readouterr()
    assert captured.out == whole and b"negatives of" in captured.err

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    options, bitext = NegativeOptions(), parse_bitext("de-en=train.tsv:1,2")
    model = SentenceEncoder.load(encoder, device="cpu")
    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="the same command goes on from there"):
        patch.setattr("xrep.inference.hard_negatives._write", stop)
        mine_negatives(bitext, folder / "again.tsv", options, encoder=model)
    assert (folder / "again.tsv.work").is_dir() and not (folder / "again.tsv").exists()
    with monkeypatch.context() as patch:  # nothing is encoded again
        patch.setattr(SentenceEncoder, "encode", stop)
        mine_negatives(bitext, folder / "again.tsv", options, encoder=model)
    assert (folder / "again.tsv").read_bytes() == whole and not (folder / "again.tsv.work").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--output train.tsv", "--output is the same file as --bitext; choose another name"),
        ("--range-min 50", "--range-min 50 is not below --range-max 50"),
        ("--num-negatives 0", "--num-negatives must lie in [1, 2147483647], not 0"),
        ("--max-percentile 101", "--max-percentile must lie in [0, 100], not 101.0"),
        ("--max-score -3", "no negative is left ("),
        ("--candidates nowhere.en", "nowhere.en: no such file"),
        ("--bitext de-en=train.tsv@5", "train.tsv: pairs are not sampled here; leave out @5"),
        ("--json - --output -", "the pairs and --json both go to standard output"),
        ("--bitext de-en=more.en", "more.en:1: 1 column where two columns are needed"),
        ("--path nowhere", "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    encoder: Path, folder: Path, capsys: pytest.CaptureFixture, options: str, message: str
) -> None:
    before = (folder / "train.tsv").read_bytes()
    assert run(encoder, *options.split()) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1 and message in errors[0], errors
    assert (folder / "train.tsv").read_bytes() == before and not (folder / "out.tsv").exists()


def test_pairs_are_still_mined_without_a_command(capsys: pytest.CaptureFixture) -> None:
    assert main(["--path", "x", "--source", "a", "--target", "b"]) == 2
    assert "xrep-mine: error: no --output; name the file" in capsys.readouterr().err
