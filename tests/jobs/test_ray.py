"""Jobs on a real Ray cluster of two nodes, both on this machine. Needs Ray, which is not among the tests' packages."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.stages import expected, make_job, run_here, runs
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.programs import Program
from tests.support.runs import environment
from xrep.errors import UserError
from xrep.jobs.engines import Engine
from xrep.jobs.notes import DONE
from xrep.jobs.plan import MachineError
from xrep.jobs.ray_engine import fit_workers

RAY = Engine(engine="ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with one processor each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else any other test comes first
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        try:
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture
def address(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster.address


def wait_for(job: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(runs(job)) < count and time.monotonic() < deadline:
        time.sleep(0.02)


def test_the_workers_fit_the_nodes() -> None:
    one, two = {"CPU": 8.0, "GPU": 2.0}, {"CPU": 5.0}
    assert fit_workers(replace(RAY, cpus_per_worker=2), [two, two]) == (4, 0)
    assert fit_workers(RAY, [one, two]) == (2, 1), "one for each GPU"
    assert fit_workers(replace(RAY, gpus_per_worker=0.5), [one]) == (4, 0.5)
    assert fit_workers(replace(RAY, workers=7), [one]) == (7, 0)
    with pytest.raises(MachineError, match="no machine of the Ray cluster has 9 processors"):
        fit_workers(replace(RAY, cpus_per_worker=9), [two, two])


@pytest.mark.parametrize(("place", "reason"), {"127.0.0.1:9": "refused", "nonsense": "nonsense"}.items())
def test_there_is_no_cluster(place: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", place)
    with pytest.raises(UserError, match=f"no Ray cluster can be used at {place}: .*{reason}; start one"):
        run_here(make_job(tmp_path), RAY)


@pytest.mark.slow
def test_two_nodes_encode_to_the_bytes_of_one_process(address, cli, shared_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.inference.encoding.IMPORTED", [])  # plugins of other tests, which the nodes do not have
    (tmp_path / "lines.txt").write_text("".join(f"Satz {number % 97} von {number}\n" for number in range(9_000)))
    words = ["encode", "--path", shared_encoder, "--lang", "de", "--input", tmp_path / "lines.txt"]
    assert cli(*words, "--output", tmp_path / "one.npy").code == 0
    done = cli(*words, "--output", tmp_path / "two.npy", "--engine", "ray")
    assert done.code == 0, done.err
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "two.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt", "one.npy", "two.npy"]


@pytest.mark.slow
@pytest.mark.parametrize("index", ["flat", "IVF4,SQ8"])
def test_two_nodes_mine_the_bytes_of_one_process(index, address, cli, shared_encoder, tmp_path, monkeypatch):
    """Texts and vectors, and negatives, so that each kind of stage is sent to another process."""
    monkeypatch.setattr("xrep.inference.encoding.IMPORTED", [])
    for name, texts in zip(("de", "en"), zip(*sentence_pairs(200), strict=True), strict=True):
        write_lines(tmp_path / f"{name}.txt", texts)
    given = ["--path", shared_encoder, "--index", index, "--source", tmp_path / "de.txt", "--target"]
    whole = ["--path", shared_encoder, "--index", index, "--bitext", f"de-en={tmp_path}/de.txt,{tmp_path}/en.txt"]
    for command in (["mine", *given, tmp_path / "en.txt"], ["mine", "negatives", *whole], ["score", *whole]):
        assert cli(*command, "--output", tmp_path / "one.tsv").code == 0
        done = cli(*command, "--output", tmp_path / "two.tsv", "--engine", "ray")
        assert done.code == 0, done.err
        assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "two.tsv").read_bytes()


@pytest.mark.slow
def test_a_node_is_removed_during_the_work(cluster: Any, address: str, tmp_path: Path) -> None:
    job, node = make_job(tmp_path, 30, seconds=0.2), cluster.add_node(num_cpus=1)

    def remove() -> None:
        wait_for(job.address, 8)
        cluster.remove_node(node)

    remover = threading.Thread(target=remove)
    remover.start()
    assert run_here(job, RAY) == {"total": expected(30)}, "or it waits for ever for the worker that is lost"
    remover.join()
    assert len(runs(job.address)) <= 31


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_nodes_die_again_and_again_while_texts_are_mined(cluster, address, cli, shared_encoder, tmp_path, monkeypatch):
    """Twenty times, one of three nodes is killed and another one joins. The seed chooses the moments."""
    monkeypatch.setattr("xrep.inference.encoding.IMPORTED", [])
    draw, known = random.Random(1), [word for pair in sentence_pairs(400) for side in pair for word in side.split()]
    for name in ("de", "en"):
        write_lines(tmp_path / f"{name}.txt", [" ".join(draw.choices(known, k=6)) for _ in range(200_000)])
    given = ["mine", "--path", shared_encoder, "--source", tmp_path / "de.txt", "--target", tmp_path / "en.txt"]
    assert cli(*given, "--output", tmp_path / "one.tsv").code == 0
    words = [*map(str, given[1:]), "--output", str(tmp_path / "two.tsv"), "--engine", "ray"]
    program, killed = Program("xrep_cli.mine", words, {**environment(), "RAY_ADDRESS": address}), 0
    while killed < 20 and program.poll() is None:
        node = cluster.add_node(num_cpus=1)
        time.sleep(draw.uniform(0.5, 4.0))
        cluster.remove_node(node, allow_graceful=False)
        killed += 1
    printed, error = program.communicate()
    assert program.returncode == 0, (printed, error)
    assert killed == 20, "the command ended before"
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "two.tsv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["de.txt", "en.txt", "one.tsv", "two.tsv"]


@pytest.mark.slow
def test_the_driver_is_killed_and_the_local_engine_goes_on(address: str, tmp_path: Path) -> None:
    program = Program("tests.jobs.stages", [tmp_path, 0.5, "ray"], {**environment(), "RAY_ADDRESS": address})
    job = make_job(tmp_path)
    wait_for(job.address, 5)  # one of four workers has begun its second unit
    program.send_signal(signal.SIGKILL)
    program.communicate()
    time.sleep(1.0)  # until Ray has ended its actors
    done = job.notes(job.stages[0]).numbers(DONE)
    before = runs(job.address)
    assert run_here(job) == {"total": expected(12)} and done
    assert not done & set(runs(job.address)[len(before) :])


@pytest.mark.nightly
def test_ctrl_c_ends_the_actors(address: str, tmp_path: Path) -> None:
    program = Program("tests.jobs.stages", [tmp_path, 0.5, "ray"], {**environment(), "RAY_ADDRESS": address})
    wait_for(str(tmp_path / "out.job"), 4)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate()
    assert "what is done is in" in err
    count = len(runs(str(tmp_path / "out.job")))
    time.sleep(1.5)
    assert len(runs(str(tmp_path / "out.job"))) == count < 12


@pytest.mark.nightly
def test_a_unit_that_kills_its_worker_is_listed_and_the_rest_is_done(address: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, 6, faults={3: "die"})
    with pytest.raises(UserError, match="1 units of squares failed, the first one with the end of its worker"):
        run_here(job, RAY)
    assert job.notes(job.stages[0]).numbers("failed") == {3} and runs(job.address).count(3) == 3
    assert run_here(make_job(tmp_path, 6), RAY) == {"total": expected(6)}


@pytest.mark.nightly
def test_an_error_of_a_worker_is_the_same_here(address: str, cli: Commands, shared_encoder: Path) -> None:
    (cli.folder / "lines.txt").write_bytes(b"Satz\n" * 10 + b"\xff\n")
    words = ["--path", shared_encoder, "--lang", "de", "--input", "lines.txt", "--output"]
    one = cli("encode", *words, "one.npy")
    two = cli("encode", *words, "two.npy", "--engine", "ray")
    assert one.code == two.code == 2 and one.err == two.err and one.err.count("\n") == 1


@pytest.mark.nightly
def test_a_machine_that_does_not_see_the_folder(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors are told another folder, as if the driver's were on a disk of its own."""
    job = make_job(tmp_path)
    monkeypatch.setattr(type(job), "__getstate__", lambda job: {**vars(job), "_results": {}, "address": "/nowhere.job"})
    with pytest.raises(MachineError, match="/nowhere.job: the machine .* does not see this folder; write to a folder"):
        run_here(job, RAY)


BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "xrep" and any("default_worker" in word for word in sys.argv):
            raise ModuleNotFoundError("No module named 'xrep'")
sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.nightly
def test_a_machine_without_xrep(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    given = {name: value for name, value in environment(tmp_path).items() if name != "RAY_ADDRESS"}
    program = Program("tests.jobs.stages", [tmp_path, 0.0, "ray"], given)
    _, err = program.communicate()
    assert "before it could begin: " in err and "No module named 'xrep'; install xrep" in err
