"""xrep-mine in processes of its own."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.retrieval import plain_margins
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import contents, environment
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.retrieval import neighbours, search
from xrep.retrieval.neighbours import normalize_rows
from xrep_cli.mine import main

PAIRS = sentence_pairs(300)


def arguments(**given: object) -> list[str]:
    named = {"device": "cpu", **given}
    line: list[str] = []
    for name, value in named.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return line


def mine(**given: object) -> int:
    return main(arguments(**given))


def rows_of(path: Path) -> list[tuple[float, str, str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(float(score), source, target) for score, source, target in rows]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "best")


@pytest.fixture
def planted(tmp_path: Path) -> dict[str, Path]:
    """Return shuffled vectors of 500 and 400 sentences; the first 150 sources translate as many targets."""
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((500, 32)), draw.standard_normal((400, 32))
    place = draw.permutation(400)[:150]
    y[place] = x[:150] + 0.3 * draw.standard_normal((150, 32))
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    np.save(tmp_path / "y.npy", y.astype(np.float16))
    np.save(tmp_path / "place.npy", place)
    return {"source_vectors": tmp_path / "x.npy", "target_vectors": tmp_path / "y.npy"}


def expected_rows(planted: dict[str, Path], margin: str = "ratio", k: int = 4) -> dict[tuple[str, str], float]:
    x, y = (normalize_rows(np.load(path).astype(np.float64)) for path in planted.values())
    return {(str(i + 1), str(j + 1)): s for (i, j), s in plain_margins.pairs(x, y, k, margin, "max").items()}


def test_planted_pairs_are_found_with_the_scores_of_the_definition(
    planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output, summary = tmp_path / "mined.tsv", tmp_path / "summary.json"
    assert mine(**planted, output=output, json=summary) == 0
    assert capsys.readouterr().out.endswith(f": 500 x 400 sentences, 0 empty and 0 repeated lines left out: {output}\n")
    found, expected = rows_of(output), expected_rows(planted)
    assert [row[0] for row in found] == sorted((row[0] for row in found), reverse=True)
    assert {row[1:] for row in found} == set(expected)
    assert all(abs(score - expected[source, target]) < 2e-6 for score, source, target in found)
    place = np.load(tmp_path / "place.npy")
    assert {row[1:] for row in found[:150]} == {(str(i + 1), str(j + 1)) for i, j in enumerate(place.tolist())}
    said = json.loads(summary.read_text())
    assert said["pairs"] == len(found) and said["search"]["source"]["vectors"] != said["search"]["target"]["vectors"]
    assert mine(**planted, output=output, threshold=found[149][0] - 1e-5, one_to_one=True, margin="ratio") == 0
    assert rows_of(output) == found[:150]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mined.tsv", "place.npy", "summary.json", "x.npy", "y.npy"
    ]  # fmt: skip


def test_inverted_files_find_the_planted_pairs(planted: dict[str, Path], tmp_path: Path) -> None:
    exact = rows_of_index(planted, tmp_path, "flat")
    for index in ("ivf", "ivf-pq"):
        found = rows_of_index(planted, tmp_path, index)
        # Missing neighbours lower the means, so that scores can only rise.
        assert {row[1:] for row in found[:150]} == {row[1:] for row in exact[:150]}


def rows_of_index(planted: dict[str, Path], folder: Path, index: str) -> list[tuple[float, str, str]]:
    output = folder / f"{index}.tsv"
    assert mine(**planted, output=output, index=index, probes=8, one_to_one=True) == 0
    return rows_of(output)


def test_texts_are_encoded_and_empty_and_repeated_lines_take_no_part(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Such lines still count, because text and vectors of a side have the same rows."""
    german = [pair[0] for pair in PAIRS]
    english = [pair[1] for pair in PAIRS]
    random.Random(0).shuffle(english)
    lines = {"de": [german[0], "", *german, "  ", german[5]], "en": [*english, english[2] + " "]}
    for name, text in lines.items():
        (tmp_path / f"{name}.txt").write_text("".join(line + "\n" for line in text), encoding="utf-8")
    given = {"source": tmp_path / "de.txt", "target": tmp_path / "en.txt", "neighbours": 3}
    output = tmp_path / "mined.tsv"
    assert mine(path=checkpoint, **given, output=output, json="-") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["sources"], said["targets"], said["empty"], said["duplicates"]) == (300, 300, [2, 0], [2, 1])
    encoder = SentenceEncoder.load(checkpoint, device="cpu")
    x, y = (normalize_rows(encoder.encode(side).astype(np.float16).astype(np.float64)) for side in (german, english))
    expected = plain_margins.pairs(x, y, 3, "ratio", "max")
    found = rows_of(output)
    assert {row[1:] for row in found} == {(german[i], english[j]) for i, j in expected}
    for name, text in lines.items():
        np.save(tmp_path / f"{name}.npy", encoder.encode(text).astype(np.float16))
    vectors = {"source_vectors": tmp_path / "de.npy", "target_vectors": tmp_path / "en.npy"}
    assert mine(**given, **vectors, output=tmp_path / "again.tsv") == 0
    again = {row[1:]: row[0] for row in rows_of(tmp_path / "again.tsv")}
    assert again.keys() == {row[1:] for row in found}
    assert all(abs(again[source, target] - score) < 1e-3 for score, source, target in found)


def test_shards_of_many_machines_are_merged(
    planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert mine(**planted, output=tmp_path / "whole.tsv") == 0
    output = tmp_path / "mined.tsv"
    assert mine(**planted, output=output, merge=3) == 2
    assert "mined.tsv.shard-1-of-3: no such shard; search that part first, with --shard" in capsys.readouterr().err
    for part in (3, 1, 2):
        assert mine(**planted, output=output, shard=f"{part}/3") == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("searched: 167 x 400 sentences")
    assert mine(**planted, output=output, merge=3, neighbours=3) == 2
    assert "shard-1-of-3: a shard with another neighbours; search it again" in capsys.readouterr().err
    assert mine(**planted, output=output, merge=3) == 0
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """There are 25 blocks of 20 sources, and each is saved."""
    for module, name, value in (
        (neighbours, "TILE", 20),
        (search, "TILE", 20),
        (search, "_UNIT_BYTES", 20 * 4 * 32),
        (search, "_PANEL_BYTES", 100 * 4 * 32),
        (search, "SAVE_SECONDS", 0),
    ):
        patch.setattr(module, name, value)


KILLED = """\
import pytest, sys
from tests.cli.test_mine import main, small_blocks
small_blocks(pytest.MonkeyPatch())
sys.exit(main(sys.argv[1:]))
"""


def test_vectors_of_an_interrupted_run_are_those_of_its_encoder_and_its_text(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    sides = [[pair[place] for pair in PAIRS] for place in (0, 1)]
    for name, text in (("de", sides[0]), ("en", sides[1]), ("reversed", sides[1][::-1])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    other = write_encoder(tmp_path / "other", seed=1)
    source, target = tmp_path / "de.txt", tmp_path / "en.txt"
    for number, changed in enumerate(({"path": other}, {"target": tmp_path / "reversed.txt"})):
        given = {"path": checkpoint, "source": source, "target": target, "neighbours": 3}
        monkeypatch.setattr("xrep.inference.mining._check", stop)  # only the encoding of both sides is done
        assert mine(**given, output=tmp_path / f"{number}.tsv") == 130
        monkeypatch.undo()
        assert mine(**{**given, **changed}, output=tmp_path / f"{number}.tsv") == 0
        assert mine(**{**given, **changed}, output=tmp_path / f"{number}-anew.tsv") == 0
        assert (tmp_path / f"{number}.tsv").read_bytes() == (tmp_path / f"{number}-anew.tsv").read_bytes()


@pytest.mark.slow
def test_a_killed_run_ends_in_the_same_file(
    planted: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "mined.tsv"
    line = [sys.executable, "-c", KILLED, *arguments(**planted, output=output)]
    process = subprocess.Popen(line, env=environment(threads=torch.get_num_threads()), stdout=subprocess.DEVNULL)
    found = tmp_path / "mined.tsv.work" / "neighbours.npz"
    while process.poll() is None and done_in(found) < 2:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL and not output.exists()
    before, looked_at = done_in(found), []
    small_blocks(monkeypatch)
    original = search.Side.read
    monkeypatch.setattr(search.Side, "read", lambda side, *rows: (looked_at.append(rows), original(side, *rows))[1])
    assert 2 <= before < 25 and mine(**planted, output=output) == 0
    assert looked_at[0] == (20 * before, 20 * before + 20)  # the search was resumed, not started again
    assert mine(**planted, output=tmp_path / "whole.tsv") == 0
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert not (tmp_path / "mined.tsv.work").exists()


def done_in(found: Path) -> int:
    try:
        with np.load(found) as file:
            return int(file["done"][0])
    except FileNotFoundError:
        return 0


def test_what_is_unfinished_is_not_mixed_with_something_else(
    planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "mined.tsv"
    monkeypatch.setattr("xrep.inference.mining._write", stop)
    assert mine(**planted, output=output) == 130
    monkeypatch.undo()
    before = contents(tmp_path / "mined.tsv.work")
    assert mine(**planted, output=output, neighbours=5) == 2
    error = "an unfinished search is there, with another neighbours; remove it to begin anew, or write elsewhere"
    assert capsys.readouterr().err.splitlines()[-1] == f"xrep-mine: error: {output}.work: {error}"
    assert contents(tmp_path / "mined.tsv.work") == before
    assert mine(**planted, output=output, margin="distance") == 0  # the share of neighbours that were found
    assert {row[1:] for row in rows_of(output)} == set(expected_rows(planted, "distance"))


def test_bad_input_is_one_line_and_exit_code_2(
    planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("de.txt").write_text("ein\nzwei\n\n")
    Path("latin.txt").write_bytes("ein\nf\xfcnf\n".encode("latin1"))
    np.save("three.npy", np.eye(3, 32, dtype=np.float32))
    np.save("wide.npy", np.ones((400, 33), np.float32))
    broken = np.load("y.npy")
    broken[17, 3] = np.nan
    np.save("nan.npy", broken)
    cases = {
        "no source; give --source FILE with --path, or --source-vectors FILE.npy": {"source_vectors": None},
        "no encoder for de.txt; give --path or --source-vectors": {"source_vectors": None, "source": "de.txt"},
        "each shard would encode the texts anew": {"source_vectors": None, "source": "de.txt", "path": ".",
                                                   "shard": "1/2"},
        "--shard 0/2; write --shard 1/8": {"shard": "0/2"},
        "--shard and --merge": {"shard": "1/2", "merge": 2},
        "--neighbours 0; give at least 1": {"neighbours": 0},
        "absent.npy: no such file; check the name": {"target_vectors": "absent.npy"},
        "cuda:99 is not a device of this machine; choose another --device, such as cpu": {"device": "cuda:99"},
        "absent: no such folder": {"output": "absent/mined.tsv"},
        "nan.npy:18: the vector of this row is not finite": {"target_vectors": "nan.npy"},
        "x.npy: vectors of 32 numbers, but wide.npy has 33": {"target_vectors": "wide.npy", "source_vectors": "x.npy"},
        "4 neighbours, but there are 500 sentences and 3; lower --neighbours to 3": {"target_vectors": "three.npy"},
        "4 neighbours, but there are 500 sentences and 2; lower --neighbours to 2": {"target_vectors": "three.npy",
                                                                           "target": "de.txt"},
        "de.txt:4: 3 lines, but x.npy has 500 vectors; row i must be the vector of line i": {
            "source": "de.txt", "source_vectors": "x.npy"},
        "latin.txt:2: invalid UTF-8": {"target": "latin.txt"},
    }  # fmt: skip
    for message, given in cases.items():
        options = {name: value for name, value in {**planted, "output": "m.tsv", **given}.items() if value is not None}
        assert mine(**options) == 2, message
        printed = capsys.readouterr()
        assert message in printed.err and printed.err.count("\n") == 1, printed.err
        assert not Path("m.tsv").exists() and not Path("m.tsv.work").exists(), message


def test_one_process_at_a_time(planted: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    import fcntl

    work = tmp_path / "m.tsv.work"
    work.mkdir()
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert mine(**planted, output=tmp_path / "m.tsv") == 2
    assert "another process is mining into this file; wait for it, or write elsewhere" in capsys.readouterr().err
    assert mine(**planted, output=tmp_path / "m.tsv") == 0
