"""``xrep-mine`` against the definition of its scores, by several processes, and after interruptions."""

import bz2
import fcntl
import gzip
import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrieval import plain_margins
from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.programs import run_on_ranks
from tests.support.runs import contents, environment
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import Manifest, Origin, VectorPart, normalize_rows

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(300), strict=True))
ALL = "--threshold -100"
VECTORS = "--source-vectors x.npy --target-vectors y.npy --output "
TEXTS = f"--source de.txt --target en.txt --neighbours 3 {ALL} --output "
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


def test_a_text_that_is_missing_is_named_before_an_encoder_is_read(mine, tmp_path):
    write_lines(tmp_path / "de.txt", GERMAN)
    refused = mine("--path no-encoder --source de.txt --target nowhere.txt --output mined.tsv")
    assert refused.code == 2 and "nowhere.txt: no such file" in refused.err


@pytest.mark.slow
def test_planted_pairs_are_found_with_the_scores_of_the_definition(planted, mine, tmp_path):
    done = mine(f"{VECTORS} mined.tsv {ALL} --json summary.json")
    assert done.out.endswith(": 500 x 400 sentences, 0 empty and 0 repeated lines left out: mined.tsv\n")
    assert done.wrote == {"mined.tsv", "summary.json"}
    found, expected = rows_of(tmp_path / "mined.tsv"), expected_rows(tmp_path)
    assert [row[0] for row in found] == sorted((row[0] for row in found), reverse=True)
    assert {row[1:] for row in found} == set(expected)
    assert all(abs(score - expected[source, target]) < 2e-6 for score, source, target in found)
    assert {row[1:] for row in found[:150]} == planted
    said = json.loads((tmp_path / "summary.json").read_text())
    assert said["pairs"] == len(found) and said["inputs"]["source"]["vectors"][0][0] == str(tmp_path / "x.npy")
    assert mine(f"{VECTORS} mined.tsv --threshold {found[149][0] - 1e-5} --one-to-one --margin ratio").code == 0
    assert rows_of(tmp_path / "mined.tsv") == found[:150]
    for name, index in (
        ("ivf", "ivf"),
        ("pq", "IVF4,PQ16x4fs"),
    ):  # missing neighbours lower the means, so that scores can only rise
        assert mine(f"{VECTORS} {name}.tsv --index {index} --probes 8 --one-to-one {ALL}").code == 0
        assert {row[1:] for row in rows_of(tmp_path / f"{name}.tsv")[:150]} == planted


@pytest.mark.slow
def test_texts_are_encoded_and_empty_and_repeated_lines_take_no_part(shared_encoder, mine, tmp_path):
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
@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_processes_share_the_work(index: str, mine: Mine, tmp_path: Path) -> None:
    given = "--source-vectors x.npy --target-vectors y.npy --device cpu --index".split()
    assert mine(f"{VECTORS} whole.tsv --index {index}").code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = run_on_ranks(3, "xrep_cli.mine", *given, index, "--output", "mined.tsv", environment=environment())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mined.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert sorted(os.listdir(tmp_path / "mined.tsv.job")) == ["finished.json", "lock"]


@pytest.fixture
def similar(tmp_path: Path) -> set[tuple[str, str]]:
    """Write two texts, of which half of the sentences are there with another end, and trusted pairs of that kind, of
    which 4 have a sentence in the texts; return the pairs that are right."""
    sentences = [source for source, _ in sentence_pairs(600)]
    pairs = [(sentence, f"{sentence} vielleicht") for sentence in sentences]
    write_lines(tmp_path / "de.txt", [source for source, _ in pairs[:200]])
    write_lines(tmp_path / "en.txt", random.Random(1).sample([target for _, target in pairs[100:300]], 200))
    write_lines(tmp_path / "trusted.tsv", ["\t".join(pair) for pair in (*pairs[300:], *pairs[98:102])])
    return set(pairs[100:200])


@pytest.mark.slow
def test_trusted_pairs_choose_a_threshold_and_judge_the_output(shared_encoder, similar, mine, tmp_path):
    """They change nothing else, and several processes do the same."""
    given = ["--path", str(shared_encoder), *"--source de.txt --target en.txt".split()]
    trusted = [*given, "--trusted", "de-en=trusted.tsv"]
    done = mine("--output mined.tsv --json summary.json", *trusted)
    said = json.loads((tmp_path / "summary.json").read_text())
    judged, found = said["judged"], rows_of(tmp_path / "mined.tsv")
    assert (judged["trusted"], judged["trusted_in_text"]) == (300, 4) and said["inputs"]["trusted"]["files"]
    precision = 100 * np.mean([row[1:] in similar for row in found])
    assert judged["precision"] == pytest.approx(precision, abs=10)
    assert judged["recall"] == pytest.approx(len(found) * precision / len(similar), abs=15)
    assert f"about {judged['precision']:.0f}% of the pairs are right" in done.out and "(4 more are not used" in done.out
    assert mine(f"--output plain.tsv --threshold {said['threshold']}", *given).code == 0
    assert rows_of(tmp_path / "plain.tsv") == found
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        words = [*trusted, "--device", "cpu", "--output", "ranks.tsv"]
        assert run_on_ranks(2, "xrep_cli.mine", *words, environment=environment()).returncode == 0
    assert (tmp_path / "ranks.tsv").read_bytes() == (tmp_path / "mined.tsv").read_bytes()
    refused = mine("--output no.tsv --least-precision 1", *trusted).err
    assert "lower --least-precision, to 0." in refused and "no.tsv.job, and the command goes on from there" in refused
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xrep.inference.encoding.Encode.run", None)  # all vectors are there
        assert mine(f"--output no.tsv --threshold {said['threshold']}", *trusted).code == 0
    assert rows_of(tmp_path / "no.tsv") == found and not (tmp_path / "no.tsv.job").exists()


@pytest.mark.slow
def test_without_trusted_pairs_the_scores_leave_out_what_is_probably_noise(shared_encoder, similar, mine, tmp_path):
    given = ["--path", shared_encoder, *"--source de.txt --target en.txt --json -".split()]
    said = json.loads(mine("--output mined.tsv", *given).out)
    found = rows_of(tmp_path / "mined.tsv")
    assert said["threshold"] <= found[-1][0] and 20 < len(found) < 150
    assert said["judged"].keys() == {"precision", "recall", "translated"}
    all_pairs = json.loads(mine("--output all.tsv", *given, "--threshold", "-100").out)
    assert all_pairs["pairs"] == 200 and all_pairs["judged"]["precision"] < said["judged"]["precision"]
    write_lines(tmp_path / "de.txt", (tmp_path / "de.txt").read_text(encoding="utf-8").splitlines()[-20:])
    few = json.loads(mine("--output few.tsv", *given).out)
    assert (few["pairs"], few["threshold"], few["judged"]) == (20, None, None)


@pytest.mark.usefixtures("planted")
def test_a_wanted_precision_may_be_low(mine: Mine) -> None:
    """Only a threshold that nobody has asked for is not one from which on most pairs are wrong."""
    said = json.loads(mine(f"{VECTORS} mined.tsv --least-precision 0.45 --json -").out)
    assert said["judged"]["precision"] == pytest.approx(45, abs=1)


@pytest.mark.usefixtures("planted")
def test_vectors_of_two_encoders_are_refused(mine: Mine, tmp_path: Path) -> None:
    for name, made_by in (("x", "other"), ("y", "one")):
        array, folder = np.load(tmp_path / f"{name}.npy"), tmp_path / name
        folder.mkdir()
        np.save(folder / "part-00000-0.npy", array)
        how: dict[str, Any] = {"language": None, "prompt": None, "normalize": True, "batch_tokens": 1, "size": 32}
        part = VectorPart(file="part-00000-0.npy", rows=len(array), text="")
        Manifest(origin=Origin(encoder=made_by, dtype="float16", **how), parts=[part]).write(folder)
    done = mine("--source-vectors x --target-vectors y --output mined.tsv")
    assert "x: vectors of another encoder, precision or prompt than those of y; encode both sides in" in done.err
    assert not list(tmp_path.glob("mined*"))


def interrupted(mine: Mine, *line: object) -> None:
    """Run a command that Ctrl-C stops when it chooses the pairs, so that all else is done."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xrep.inference.choosing.choose_in_blocks", stop)
        assert mine(*line).code == 130


@pytest.mark.slow
def test_what_is_unfinished_is_not_mixed_with_something_else(shared_encoder: Path, mine: Mine, tmp_path: Path) -> None:
    for name, text in (("de", GERMAN), ("en", ENGLISH), ("other", ENGLISH[::-1])):
        write_lines(tmp_path / f"{name}.txt", text)
    other, path = write_encoder(tmp_path / "other", seed=1), ["--path", shared_encoder]
    assert mine(f"{TEXTS} whole.tsv", *path).code == 0
    interrupted(mine, f"{TEXTS} mined.tsv", *path)
    before, job = contents(tmp_path / "mined.tsv.job"), f"{tmp_path}/mined.tsv.job"
    for changed, names in (
        (["--path", other], "encoder"),
        (path, "target"),
        ([*path, "--source-lang", "de"], "source"),
        ([*path, "--margin", "distance"], "margin"),
        ([*path, "--index", "ivf"], "index, stages"),
    ):
        texts = TEXTS.replace("en.txt", "other.txt") if names == "target" else TEXTS
        said = mine(f"{texts} mined.tsv", *changed)
        error = f"an unfinished command is there, which differs in {names}; remove it to begin anew, or write elsewhere"
        assert (said.code, said.err) == (2, f"xrep-mine: error: {job}: {error}\n")
        assert contents(tmp_path / "mined.tsv.job") == before
    assert mine(f"{TEXTS} mined.tsv", *path).code == 0 and not Path(job).exists()
    assert (tmp_path / "mined.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.usefixtures("planted")
def test_one_process_at_a_time(mine: Mine, tmp_path: Path) -> None:
    os.mkdir(tmp_path / "m.tsv.job")
    with (tmp_path / "m.tsv.job" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = mine(f"{VECTORS} m.tsv")
    assert done.err.endswith("m.tsv: another process is writing it; wait for it, or write elsewhere\n")
    assert mine(f"{VECTORS} m.tsv").code == 0 and not (tmp_path / "m.tsv.job").exists()


def test_trusted_pairs_are_counted_before_anything_is_encoded(shared_encoder, similar, mine, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.inference.encoding.Encode.run", None)
    write_lines(tmp_path / "known.tsv", ["\t".join(pair) for pair in similar])
    (tmp_path / "few.tsv").write_text("".join((tmp_path / "trusted.tsv").read_text().splitlines(True)[:29]))
    given = f"--path {shared_encoder} --source de.txt --target en.txt --output mined.tsv --trusted"
    for file, problem in (("few", "29 trusted pairs"), ("known", "0 trusted pairs, beside 100 of which a sentence is")):
        done = mine(f"{given} de-en={file}.tsv")
        assert f"{file}.tsv: {problem}" in done.err and "give 30 or more that are not in that text" in done.err
        assert (done.code, done.wrote) == (2, set())


@pytest.mark.usefixtures("planted")
def test_the_name_of_the_output_says_how_it_is_compressed(mine: Mine, tmp_path: Path) -> None:
    assert mine(f"{VECTORS} mined.tsv {ALL}").code == 0
    for ending, unpacked in (("gz", gzip.decompress), ("bz2", bz2.decompress), ("xz", lzma.decompress)):
        assert mine(f"{VECTORS} mined.tsv.{ending} {ALL}").code == 0
        packed = (tmp_path / f"mined.tsv.{ending}").read_bytes()
        assert unpacked(packed) == (tmp_path / "mined.tsv").read_bytes() != packed
        assert mine(f"{VECTORS} again.tsv.{ending} {ALL}").code == 0
        assert (tmp_path / f"again.tsv.{ending}").read_bytes() == packed


def test_records_need_two_languages(shared_encoder: Path, mine: Mine, tmp_path: Path) -> None:
    """The texts of a record are named by their languages, so one of two German ones would be lost."""
    write_lines(tmp_path / "de.txt", GERMAN[:9])
    same = f"--path {shared_encoder} --source de.txt --source-lang de --target de.txt --target-lang deu --output"
    for ending in ("jsonl", "csv", "tmx.gz"):
        done = mine(f"{same} m.{ending}")
        assert (done.code, done.wrote) == (2, set())
        assert "names texts by their languages, and both are de; write an output FILE.tsv" in done.err
