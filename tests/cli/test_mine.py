"""``xrep-mine`` against the definition of its scores, in shards, and after interruptions."""

from __future__ import annotations

import fcntl
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import write_lines
from tests.retrieval import plain_margins
from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import Manifest, Origin, Part, normalize_rows

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(300), strict=True))
VECTORS = "--source-vectors x.npy --target-vectors y.npy --output "
TEXTS = "--source de.txt --target en.txt --neighbours 3 --output "
Mine = Callable[..., Result]


@pytest.fixture
def mine(cli: Commands) -> Mine:
    return lambda options, *words: cli("mine", "--device", "cpu", *options.split(), *words)


def rows_of(path: Path) -> list[tuple[float, str, str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(float(score), source, target) for score, source, target in rows]


@pytest.fixture
def planted(tmp_path: Path) -> set[tuple[str, str]]:
    """Write shuffled vectors of 500 and 400 sentences, of which 150 are translations; return their rows."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((500, 32)), draw.standard_normal((400, 32))
    place = draw.permutation(400)[:150]
    y[place] = x[:150] + 0.3 * draw.standard_normal((150, 32))
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    np.save(tmp_path / "y.npy", y.astype(np.float16))
    return {(str(i + 1), str(j + 1)) for i, j in enumerate(place.tolist())}


def expected_rows(folder: Path, margin: str = "ratio") -> dict[tuple[str, str], float]:
    x, y = (normalize_rows(np.load(folder / name).astype(np.float64)) for name in ("x.npy", "y.npy"))
    return {(str(i + 1), str(j + 1)): score for (i, j), score in plain_margins.pairs(x, y, 4, margin, "max").items()}


@pytest.mark.slow
def test_planted_pairs_are_found_with_the_scores_of_the_definition(
    planted: set[tuple[str, str]], mine: Mine, tmp_path: Path
) -> None:
    done = mine(f"{VECTORS} mined.tsv --json summary.json")
    assert done.out.endswith(": 500 x 400 sentences, 0 empty and 0 repeated lines left out: mined.tsv\n")
    assert done.wrote == {"mined.tsv", "summary.json"}
    found, expected = rows_of(tmp_path / "mined.tsv"), expected_rows(tmp_path)
    assert [row[0] for row in found] == sorted((row[0] for row in found), reverse=True)
    assert {row[1:] for row in found} == set(expected)
    assert all(abs(score - expected[source, target]) < 2e-6 for score, source, target in found)
    assert {row[1:] for row in found[:150]} == planted
    said = json.loads((tmp_path / "summary.json").read_text())
    assert said["pairs"] == len(found) and said["search"]["source"]["vectors"] != said["search"]["target"]["vectors"]
    assert mine(f"{VECTORS} mined.tsv --threshold {found[149][0] - 1e-5} --one-to-one --margin ratio").code == 0
    assert rows_of(tmp_path / "mined.tsv") == found[:150]
    for name, index in (
        ("ivf", "ivf"),
        ("pq", "IVF4,PQ16x4fs"),
    ):  # missing neighbours lower the means, so that scores can only rise
        assert mine(f"{VECTORS} {name}.tsv --index {index} --probes 8 --one-to-one").code == 0
        assert {row[1:] for row in rows_of(tmp_path / f"{name}.tsv")[:150]} == planted


@pytest.mark.slow
def test_texts_are_encoded_and_empty_and_repeated_lines_take_no_part(
    shared_encoder: Path, mine: Mine, tmp_path: Path
) -> None:
    """Such lines still count, because text and vectors of a side have the same rows."""
    english = random.Random(0).sample(ENGLISH, len(ENGLISH))
    lines = {"de": [GERMAN[0], "", *GERMAN, "  ", GERMAN[5]], "en": [*english, english[2] + " "]}
    encoder = SentenceEncoder.load(shared_encoder, device="cpu")
    for name, text in lines.items():
        write_lines(tmp_path / f"{name}.txt", text)
        np.save(tmp_path / f"{name}.npy", encoder.encode(text).astype(np.float16))
    x, y = (normalize_rows(encoder.encode(side).astype(np.float16).astype(np.float64)) for side in (GERMAN, english))
    expected = {(GERMAN[i], english[j]) for i, j in plain_margins.pairs(x, y, 3, "ratio", "max")}
    for words in (["--path", shared_encoder], ["--source-vectors", "de.npy", "--target-vectors", "en.npy"]):
        said = json.loads(mine(f"{TEXTS} mined.tsv --json -", *words).out)
        assert (said["sources"], said["targets"], said["empty"], said["duplicates"]) == (300, 300, [2, 0], [2, 1])
        assert {row[1:] for row in rows_of(tmp_path / "mined.tsv")} == expected


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
def test_shards_of_many_machines_are_merged(mine: Mine, tmp_path: Path) -> None:
    line = f"{VECTORS} mined.tsv"
    searched = [mine(f"{line} --shard {part}/3").out for part in (3, 1, 2)]
    assert searched[0].startswith("searched: 167 x 400 sentences")
    other = mine(f"{line} --merge 3 --neighbours 3")
    assert "shard-1-of-3: a shard that differs in neighbours; search it again" in other.err
    assert mine(f"{line} --merge 3").code == mine(f"{VECTORS} whole.tsv").code == 0
    assert (tmp_path / "mined.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("planted")
def test_shards_that_are_incomplete_or_exchanged_are_refused(
    mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, one, other = f"{VECTORS} mined.tsv", *(tmp_path / f"mined.tsv.shard-{part}-of-2" for part in (1, 2))
    assert mine(f"{line} --shard 1/2").code == mine(f"{line} --shard 2/2").code == 0
    assert "which differs in neighbours; remove it" in mine(f"{line} --shard 1/2 --neighbours 3").err
    for name, message in (
        ("x-00000000.00000000.npy", "1-of-2: neighbours of 0 sentences in x-*.npy, not of 250; copy the whole folder"),
        ("y-00000000.00000000.npy", "1-of-2: neighbours of 0 sentences in y-*.npy, not of 400; copy the whole folder"),
        ("facts.json", "1-of-2: no such shard; search that part first"),
    ):
        (one / name).rename(tmp_path / name)
        assert message in mine(f"{line} --merge 2").err
        (tmp_path / name).rename(one / name)
    complete = (one / "facts.json").read_text()
    for content, message in (
        (complete[:50], "facts.json: a damaged file; remove the folder to begin anew"),
        (complete.replace("true", "false"), "the search of this shard has not ended"),
    ):
        (one / "facts.json").write_text(content)
        assert message in mine(f"{line} --merge 2").err
    (one / "facts.json").write_text(complete)
    for source, target in ((one, tmp_path / "aside"), (other, one), (tmp_path / "aside", other)):
        source.rename(target)
    assert "1-of-2: this is shard 2 of 2; give it its own name again" in mine(f"{line} --merge 2").err
    for source, target in ((one, tmp_path / "aside"), (other, one), (tmp_path / "aside", other)):
        source.rename(target)
    interrupted(monkeypatch, "_write", mine, f"{line} --merge 2")
    assert mine(line).code == mine(f"{VECTORS} merged.tsv").code == 0  # which do not go on from a merge
    assert (tmp_path / "mined.tsv").read_bytes() == (tmp_path / "merged.tsv").read_bytes()
    assert mine(f"{line} --merge 2").code == 0
    assert (tmp_path / "mined.tsv").read_bytes() == (tmp_path / "merged.tsv").read_bytes()


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("encoder", "value", "message"),
    [
        ("one", np.nan, "x/part-00000-0.npy:3: the vector of this row is not finite; encode that sentence again"),
        ("one", 0, "x/part-00000-0.npy:3: the vector of this row is zero; encode that sentence again"),
        ("other", 1, "x: vectors of another encoder or precision than those of y; encode both sides with one encoder"),
    ],
)
def test_folders_of_vectors_are_checked(encoder: str, value: float, message: str, mine: Mine, tmp_path: Path) -> None:
    for name, made_by in (("x", encoder), ("y", "one")):
        array, folder = np.load(tmp_path / f"{name}.npy"), tmp_path / name
        array[2] = value if name == "x" else array[2]
        folder.mkdir()
        np.save(folder / "part-00000-0.npy", array)
        how: dict[str, Any] = {"language": None, "prompt": None, "normalize": True, "batch_tokens": 1, "size": 32}
        part = Part(file="part-00000-0.npy", rows=len(array), text="")
        Manifest(origin=Origin(encoder=made_by, dtype="float16", **how), parts=[part]).write(folder)
    assert message in mine("--source-vectors x --target-vectors y --output mined.tsv").err
    assert not list(tmp_path.glob("mined*"))


def interrupted(monkeypatch: pytest.MonkeyPatch, function: str, mine: Mine, *line: object) -> None:
    """Run a command that Ctrl-C stops when it calls a function of ``xrep.inference.mining``."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"xrep.inference.mining.{function}", stop)
        assert mine(*line).code == 130


@pytest.mark.slow
def test_vectors_of_an_interrupted_run_are_those_of_its_encoder_and_its_text(
    shared_encoder: Path, mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("de", GERMAN), ("en", ENGLISH), ("other", ENGLISH[::-1])):
        write_lines(tmp_path / f"{name}.txt", text)
    other = write_encoder(tmp_path / "other", seed=1)
    for number, changed in enumerate((["--path", other], ["--path", shared_encoder, "--target", "other.txt"])):
        # Only the encoding of both sides is done.
        interrupted(monkeypatch, "check_neighbours", mine, f"{TEXTS} {number}.tsv --path", shared_encoder)
        assert mine(f"{TEXTS} {number}.tsv", *changed).code == mine(f"{TEXTS} {number}-anew.tsv", *changed).code == 0
        assert (tmp_path / f"{number}.tsv").read_bytes() == (tmp_path / f"{number}-anew.tsv").read_bytes()


def test_what_is_unfinished_is_not_mixed_with_something_else(
    planted: set[tuple[str, str]], mine: Mine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, "_write", mine, f"{VECTORS} mined.tsv")
    before = contents(tmp_path / "mined.tsv.work")
    error = "an unfinished search is there, which differs in neighbours; remove it to begin anew, or write elsewhere"
    said = mine(f"{VECTORS} mined.tsv --neighbours 5")
    assert (said.code, said.err.splitlines()[-1]) == (2, f"xrep-mine: error: mined.tsv.work: {error}")
    assert contents(tmp_path / "mined.tsv.work") == before
    assert mine(f"{VECTORS} mined.tsv --margin distance").code == 0  # the share of neighbours that were found
    assert {row[1:] for row in rows_of(tmp_path / "mined.tsv")} == set(expected_rows(tmp_path, "distance"))


def test_one_process_at_a_time(planted: set[tuple[str, str]], mine: Mine, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "m.tsv.work")
    with (tmp_path / "m.tsv.work" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = mine(f"{VECTORS} m.tsv")
    assert "another process is mining into this file; wait for it, or write elsewhere" in done.err
    assert mine(f"{VECTORS} m.tsv").code == 0
