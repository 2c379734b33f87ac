"""``xrep-train`` as several processes: ranks that start, stop, die and disagree."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.corpus import write_corpus
from tests.support.once import made_once
from tests.support.programs import PATIENCE, Finished, Program, free_port, rank_environment, run_program
from tests.support.runs import environment, figures, options, refusal
from xrep.models.directory import CRITERION, open_checkpoint

pytestmark = pytest.mark.slow
STEADY = {"lr_scheduler": "constant", "save_every": 5, "validate_every": 10, "batch_size": 15}


def start_ranks(*lines: list[str]) -> list[Program]:
    """Start one process for each command line, as torchrun does."""
    port, found = free_port(), []
    for rank, line in enumerate(lines):
        given = {**environment(threads=1), **rank_environment(rank, len(lines), port)}
        found.append(Program("xrep_cli.train", line, given))
    return found


def finish(processes: Sequence[Program]) -> list[Finished]:
    done = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE)
            done.append(Finished(process.args, process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return done


def arguments(data: Path, save_dir: Path, **given: object) -> list[str]:
    return [str(data), *options(save_dir=save_dir, **{**STEADY, **given})]


def rank_processes(launcher: int) -> list[int]:
    """Return the processes that torchrun started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            variables = dict(item.partition("=")[::2] for item in (entry / "environ").read_text().split("\0"))
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher and "RANK" in variables:
            found[int(variables["RANK"])] = int(entry.name)
    return [found[rank] for rank in sorted(found)]


def wait_for(path: Path, process: Program) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def weights(run: Path) -> dict[str, bytes]:
    return {name: (run / "last" / name).read_bytes() for name in ("model.safetensors", CRITERION)}


@pytest.fixture(scope="module")
def two_ranks(data_directory: Path) -> Path:
    """An undisturbed run of two ranks, with 20 steps of 2 x 15 pairs."""

    def make(folder: Path) -> None:
        line = arguments(data_directory, folder / "run", max_steps=20)
        first, second = finish(start_ranks(line, line))
        assert first.returncode == second.returncode == 0, first.stderr
        assert first.stderr.count("20 steps in") == 1 and "2 ranks" in first.stderr and not second.stderr
        assert open_checkpoint(folder / "run" / "last").training_state()["examples"] == 600
        assert [x["step"] for x in figures(folder / "run") if x["kind"] == "train"] == [5, 10, 15, 20]

    return made_once("two-ranks", make) / "run"


def test_a_sharded_optimizer_goes_on_after_a_kill_and_on_other_ranks(two_ranks, data_directory, cli):
    """torchrun names the killed rank and starts the ranks again."""
    run = cli.folder / "run"
    line = "--standalone --nproc-per-node=2 --max-restarts=1 -m xrep_cli.train".split()
    line += arguments(data_directory, run, max_steps=20, shard="optimizer")
    process = Program("torch.distributed.run", line, environment(threads=1))
    wait_for(run / "checkpoint-00000005", process)
    os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
    (done,) = finish([process])
    assert done.returncode == 0 and "going on from" in done.stderr, done.stderr
    assert re.search(r"exitcode: -9\) local_rank: 1 ", done.stderr), done.stderr
    # Weights and checkpoints are those of a run that was neither sharded nor killed, to the last bit.
    assert weights(run) == weights(two_ranks)
    # Three ranks go on, with shards and without, from the run that had them; then one process, which has all of it.
    found = []
    for shard in ("none", "optimizer"):
        copy = shutil.copytree(run, cli.folder / shard, symlinks=True)
        line = arguments(data_directory, copy, max_steps=24, batch_size=10, shard=shard)
        ranks = finish(start_ranks(line, line, line))
        assert [each.returncode for each in ranks] == [0, 0, 0], ranks[0].stderr
        assert f"going on from {copy / 'checkpoint-00000020'}" in ranks[0].stderr
        found.append(weights(copy))
    assert found[0] == found[1] != weights(run)
    alone = cli("train", *arguments(data_directory, copy, max_steps=26, shard="optimizer"))
    assert alone.code == 0 and "checkpoint-00000024" in alone.err, alone.err


def test_preempted_ranks_save_and_go_on(two_ranks: Path, data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    line = arguments(data_directory, run, max_steps=20)
    processes = start_ranks(line, line)
    wait_for(run / "checkpoint-00000005", processes[0])
    processes[1].send_signal(signal.SIGUSR1)  # one killed rank is enough
    first, second = finish(processes)
    assert (first.returncode, second.returncode) == (128 + signal.SIGUSR1,) * 2, first.stderr
    assert re.search(r"stopped by SIGUSR1 after step \d+; the same command goes on from ", first.stderr)
    assert open_checkpoint(run / "last").step < 20
    assert [done.returncode for done in finish(start_ranks(line, line))] == [0, 0]
    assert weights(run) == weights(two_ranks)


def test_ranks_refuse_together_and_once(data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    mine = arguments(data_directory, run, max_steps=1)
    large = arguments(data_directory, run, max_steps=1, batch_size=400)
    other = arguments(write_corpus(tmp_path / "raw"), run, max_steps=1, vocab_size=100)
    absent = [str(tmp_path / "nothing"), *mine[1:]]
    for lines, message in (
        ((large, large), r"do not fill a batch of 400 on each of 2 ranks"),
        ((mine, other), r"rank 1: another task.data than on rank 0: .*; start every rank with the same command"),
        ((mine, absent), r"rank 1: .*nothing"),
    ):
        first, second = finish(start_ranks(*lines))
        assert re.search(message, refusal(first)) and second.returncode == 2 and "error" not in second.stderr
    # Nothing listens at the address: rank 1 is alone and gives up after its time.
    given = {**environment(threads=1), **rank_environment(1, 2, free_port()), "LOCAL_RANK": "0"}
    done = run_program("xrep_cli.train", *mine, "--timeout-minutes", "0.05", environment=given)
    assert done.returncode == 2 and "not all 2 ranks met at 127.0.0.1:" in done.stderr.splitlines()[-1]
    assert not run.exists()
