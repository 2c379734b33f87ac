"""Encoding and mining in an object store, a real server of S3's protocol on this machine: the same bytes as on this
machine, whatever fails and whoever shares the work."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.object_store import FAULTS, ObjectStore
from tests.support.programs import ROOT
from xrep.jobs.plan import Advance, Job, Stage
from xrep.store import addresses
from xrep.store.addresses import join
from xrep.store.vectors import Vectors
from xrep.text.examples import read_text

pytestmark = pytest.mark.slow
BUCKET = "s3://bucket"


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch, ObjectStore().running() as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def store(server: ObjectStore) -> Iterator[ObjectStore]:
    """An empty bucket."""
    files = addresses.store_of(BUCKET)
    if not files.exists("bucket"):
        files.mkdir("bucket")
    server.requests.clear()
    yield server
    addresses.remove(BUCKET)


class Numbers(Stage):
    """Units that write their numbers; a later stage adds them."""

    name = "numbers"

    def __init__(self, units: int) -> None:
        self.units, self.ran = range(units), list[int]()

    def run(self, unit: int, folder: Path, advance: Advance) -> dict[str, Any]:
        self.ran.append(unit)
        np.save(folder / "number.npy", np.full(1000, unit))
        return {"number": unit}


def lines_of(folder: Path, name: str, lines: list[str]) -> str:
    addresses.publish(write_lines(folder / name, lines), join(BUCKET, name))
    return join(BUCKET, name)


def words(encoder: Path, source: str, output: str) -> list[str]:
    return ["--path", str(encoder), "--lang", "de", "--input", source, "--output", output]


def test_of_several_that_create_a_file_one_succeeds_and_listings_are_never_old(store: ObjectStore) -> None:
    place, created = join(BUCKET, "folder", "a"), list[int]()

    def create(number: int) -> None:
        if addresses.create(place, str(number).encode()):
            created.append(number)

    assert addresses.names_in(join(BUCKET, "folder")) == [] and not addresses.exists(place)
    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for step in ("start", "join"):
        for thread in threads:
            getattr(thread, step)()
    assert [addresses.read(place)] == [str(number).encode() for number in created]
    other = "import sys; from xrep.store import addresses; addresses.create(sys.argv[1], b'x')"
    assert addresses.names_in(join(BUCKET, "folder")) == ["a"]
    subprocess.run([sys.executable, "-c", other, join(BUCKET, "folder", "b")], check=True, cwd=ROOT)
    assert addresses.names_in(join(BUCKET, "folder")) == ["a", "b"] and addresses.exists(join(BUCKET, "folder", "b"))
    store.fault = lambda method, path: "unanswered" if method == "PUT" and not store.faults else ""
    assert not addresses.create(join(BUCKET, "folder", "c"), b"x")  # it is there, but nobody knows who has made it
    assert addresses.read(join(BUCKET, "folder", "c")) == b"x"
    store.fault = lambda method, path: ""


def test_a_unit_costs_few_requests(store: ObjectStore) -> None:
    totals = []
    for units in (20, 60):
        stage = Numbers(units)
        job = Job(join(BUCKET, f"{units}.job"), "numbers", {}, [stage])
        store.requests.clear()
        job.begin()
        for number in range(job.notes(stage).begin(units)):
            assert job.notes(stage).claim(number, "0 of 2") and job.do(stage, number, lambda done: None)
        assert job.notes(stage).numbers("done") == set(range(units))
        assert [result.facts["number"] for result in stage.results] == list(range(units))
        totals.append(store.requests.total())
        job.finish(keep=False)
    # Each unit is claimed, its file and its marker are written, and its marker is read when all are done.
    assert totals[1] - totals[0] == 40 * 4
    assert addresses.names_in(BUCKET) == []


def test_vectors_are_the_same_bytes_although_requests_fail_in_every_way(
    cli: Commands, shared_encoder: Path, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xrep.store.lines.CHUNK_LINES", 16)
    sleep = asyncio.sleep  # the packages of the store wait before they ask again
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *more: sleep(min(seconds, 0.01), *more))
    source = lines_of(tmp_path, "a.txt", [german for german, _ in sentence_pairs(100)])
    assert cli("encode", *words(shared_encoder, str(tmp_path / "a.txt"), str(tmp_path / "x.npy"))).code == 0
    with store.failing(0.15) as faults:
        result = cli("encode", *words(shared_encoder, source, join(BUCKET, "x.npy")))
        assert (result.code, result.err) == (0, result.err), result.err
        mine = ["mine", "--source-vectors", join(BUCKET, "x.npy"), "--target-vectors", join(BUCKET, "x.npy")]
        result = cli(*mine, "--output", join(BUCKET, "mined"))
        assert result.code == 0, result.err
    assert len(faults) == len(FAULTS) and faults.total() > 20
    assert addresses.read(join(BUCKET, "x.npy")) == (tmp_path / "x.npy").read_bytes()
    mine = ["mine", "--source-vectors", tmp_path / "x.npy", "--target-vectors", tmp_path / "x.npy"]
    assert cli(*mine, "--output", tmp_path / "mined").code == 0
    assert addresses.read(join(BUCKET, "mined")) == (tmp_path / "mined").read_bytes()
    assert addresses.names_in(BUCKET) == ["a.txt", "mined", "x.npy"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "unaware"])
def test_two_processes_at_one_job_write_the_bytes_of_one(shared, cli, shared_encoder, store, tmp_path):
    source = lines_of(tmp_path, "a.txt", [german for german, _ in sentence_pairs(400)] * 40)
    assert cli("encode", *words(shared_encoder, str(tmp_path / "a.txt"), str(tmp_path / "x.npy"))).code == 0
    command = [sys.executable, "-m", "xrep_cli.encode", *words(shared_encoder, source, join(BUCKET, "x.npy"))]
    both = list[subprocess.Popen[str]]()
    for number in range(2):
        own = {"RANK": str(number), "WORLD_SIZE": "2"} if shared else {}
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both.append(subprocess.Popen(command, env={**os.environ, **own}, cwd=ROOT, **pipes))
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert any("16,000 lines" in out for out, _ in ends)
    assert addresses.read(join(BUCKET, "x.npy")) == (tmp_path / "x.npy").read_bytes()
    left = addresses.names_in(join(BUCKET, "x.npy.job"))
    assert not shared or left == ["finished.json"]


@pytest.mark.parametrize(("source", "output", "problem"), [
    ("s3://bucket/none.txt", "x.npy", "s3://bucket/none.txt: no such file; check the name"),
    ("s3://nothing/none.txt", "x.npy", "s3://nothing/none.txt: no such file; check the name"),
    ("s3://bucket/none/*", "x.npy", "s3://bucket/none/*: no file matches; check the name"),
    ("a.txt", "s3://nothing/x.npy", "s3://nothing/x.npy.job"),
])  # fmt: skip
def test_what_is_missing_is_named_in_one_line(source, output, problem, cli, shared_encoder, store, tmp_path):
    lines_of(tmp_path, "a.txt", ["ein Satz"])
    result = cli("encode", *words(shared_encoder, source, output))
    assert result.code == 2 and f"error: {problem}" in result.err and result.err.count("\n") == 1
    assert addresses.names_in(BUCKET) == ["a.txt"]


def test_keys_that_are_refused_or_missing_are_named_in_one_line(cli, shared_encoder, store, tmp_path):
    source = lines_of(tmp_path, "a.txt", ["ein Satz"])
    store.fault = lambda method, path: "forbidden" if method in ("PUT", "GET") else ""
    for words_ in (words(shared_encoder, source, "x.npy"), words(shared_encoder, "a.txt", join(BUCKET, "x.npy"))):
        result = cli("encode", *words_)
        assert result.code == 2 and "check your keys, and what they may do in this bucket" in result.err
        assert result.err.count("\n") == 1
    store.fault = lambda method, path: ""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.delenv(name)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        without_keys = fsspec.filesystem("s3", skip_instance_cache=True)
        patch.setattr(addresses, "store_of", lambda address: without_keys)
        with pytest.raises(OSError, match="store fails: Unable to locate credentials; check its address and your keys"):
            addresses.read(source)


def test_compressed_text_and_a_large_array_are_read_in_parts(store: ObjectStore, tmp_path: Path) -> None:
    lines = [german for german, _ in sentence_pairs(200)]
    (tmp_path / "a.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    addresses.publish(tmp_path / "a.gz", join(BUCKET, "a.gz"))
    assert [line for _, line in read_text(join(BUCKET, "a.gz"))] == lines
    rows = np.arange(400_000, dtype=np.float32).reshape(-1, 4)
    np.save(tmp_path / "x.npy", rows)
    addresses.publish(tmp_path / "x.npy", join(BUCKET, "x.npy"))
    vectors, wanted = Vectors(join(BUCKET, "x.npy")), np.array([99_999, 3, 5, 7, 50_000])
    store.requests.clear()
    assert (vectors.stored(wanted) == rows[wanted]).all()
    assert dict(store.requests) == {"GET /bucket/x.npy": 3}
