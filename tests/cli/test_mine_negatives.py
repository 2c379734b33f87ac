"""``xrep-mine negatives`` against a plain search."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.once import made_once
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import normalize_rows

PAIRS = sentence_pairs(80)
# The first source has two further translations, and two sources share a target.
TEXT = [*PAIRS[:60], (PAIRS[0][0], PAIRS[1][1]), (PAIRS[0][0], PAIRS[60][1]), (PAIRS[61][0], PAIRS[5][1])]
MORE = [PAIRS[n][1] for n in range(62, 80)]
Negatives = Callable[..., Result]


@pytest.fixture(scope="module")
def path() -> Path:
    return made_once("negatives", lambda folder: write_encoder(folder / "best", seed=3)) / "best"


@pytest.fixture
def negatives(path: Path, cli: Commands) -> Negatives:
    """The command on the pairs, some of them again in other case, and lines without words."""
    lines = [f"{german}\t{english}" for german, english in TEXT]
    write_lines(cli.folder / "train.tsv", [*lines, "", f"{TEXT[3][0].upper()}!\t{TEXT[3][1]}", "...\t???"])
    write_lines(cli.folder / "more.en", [*MORE, "", PAIRS[2][1]])
    given = ["negatives", "--path", path, *"--bitext de-en=train.tsv:1,2 --device cpu --output".split()]
    return lambda options="", output="out.tsv": cli("mine", *given, output, *options.split())


def rows_of(cli: Commands) -> list[list[str]]:
    return [line.split("\t") for line in (cli.folder / "out.tsv").read_text(encoding="utf-8").splitlines()]


def vectors(path: Path, lines: list[str]) -> np.ndarray:
    encoder = SentenceEncoder.load(path, device="cpu")
    return normalize_rows(encoder.encode(lines).astype(np.float16).astype(np.float64))


def plain(path: Path, more: list[str], **options: Any) -> list[list[str]]:
    """Search with loops. ``limit`` gives the highest score of a negative from that of the translation."""
    candidates = list(dict.fromkeys([*(english for _, english in TEXT), *more]))
    x, y = vectors(path, [german for german, _ in TEXT]), vectors(path, candidates)
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


def test_the_nearest_sentences_that_are_no_translations(path: Path, negatives: Negatives, cli: Commands) -> None:
    done = negatives("--json out.json")
    found = rows_of(cli)
    assert found == plain(path, [], limit=lambda score: score - 0.05 * abs(score))
    for german, english, *several in found:
        assert english not in several and not {e for g, e in TEXT if g == german} & {*several}
    said = json.loads((cli.folder / "out.json").read_text())
    counts = {name: said[name] for name in ("pairs", "sources", "candidates", "empty", "duplicates")}
    assert counts == {"pairs": 63, "sources": 61, "candidates": 61, "empty": 2, "duplicates": 1}
    assert said["pairs_with_negatives"] == len(found) < 63 and said["dropped"]["relative_margin"] > 0
    assert said["negatives"] == sum(len(row) - 2 for row in found)
    begin = f"{said['negatives']} negatives of {len(found)} of 63 pairs, from 61 candidates; left out: "
    assert done.out.startswith(begin) and done.wrote == {"out.json", "out.tsv"}


def test_a_pair_is_written_as_it_is_spelled(negatives: Negatives, cli: Commands) -> None:
    """Also if an earlier pair has the same words."""
    spelled = f"{TEXT[0][0].upper()} ...", PAIRS[70][1]
    write_lines(cli.folder / "train.tsv", ["\t".join(pair) for pair in (*TEXT, spelled)])
    assert negatives("--relative-margin -9").code == 0
    row = next(row for row in rows_of(cli) if row[0] == spelled[0])
    assert row[1] == spelled[1] and not {e for g, e in TEXT if g == TEXT[0][0]} & {*row[2:]}


@pytest.mark.parametrize(("options", "rule"), [
    ("--absolute-margin 0.1 --relative-margin -9", {"limit": lambda score: score - 0.1}),
    ("--relative-margin 0.2 --num-negatives 1", {"limit": lambda score: score - 0.2 * abs(score), "most": 1}),
    ("--relative-margin -9 --range-min 2 --range-max 4", {"limit": lambda _: 9.0, "first": 2, "last": 4}),
    ("--relative-margin -9 --max-score 0.5 --min-score 0.2", {"limit": lambda _: 0.5, "least": 0.2}),
])  # fmt: skip
def test_margins_ranks_and_scores(path, negatives, cli, options, rule):
    assert negatives(f"--candidates more.en {options}").code == 0
    assert rows_of(cli) == plain(path, MORE, **rule)


@pytest.mark.slow
def test_random_samples(path: Path, negatives: Negatives, cli: Commands) -> None:
    free = "--candidates more.en --relative-margin -9 --json out.json"
    drawn = []
    for seed in (1, 1, 2):
        assert negatives(f"{free} --sampling-strategy random --seed {seed} --num-negatives 5").code == 0
        drawn.append(rows_of(cli))
    assert drawn[0] == drawn[1] != drawn[2]
    every = plain(path, MORE, limit=lambda _: 9.0, most=50)
    for row, all_of_them in zip(drawn[0], every, strict=True):
        places = [all_of_them[2:].index(own) for own in row[2:]]
        assert row[:2] == all_of_them[:2] and len(row) == 7 and places == sorted(places)
    assert sum(row[2:] == own[2:7] for row, own in zip(drawn[0], every, strict=True)) < 3


def test_a_single_pair_has_no_negatives(negatives: Negatives, cli: Commands) -> None:
    write_lines(cli.folder / "train.tsv", ["das Haus\tthe house"] * 3)
    done = negatives()
    assert (done.code, done.wrote) == (2, set())
    assert "no negative is left (1 by translation); add --candidates, or choose weaker margins" in done.err
