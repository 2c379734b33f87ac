"""xrep-train as several processes: ranks that start, stop, die and disagree."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.support.corpus import write_corpus
from tests.support.programs import PATIENCE, Finished, Program, free_port, rank_environment, run_program
from tests.support.runs import environment, options, refusal, xrep_train
from xrep.models.directory import CRITERION, open_checkpoint

STEADY = {"lr_scheduler": "constant", "save_every": 5, "validate_every": 10, "batch_size": 15}


def start_ranks(*lines: list[str], address: str = "127.0.0.1") -> list[Program]:
    """Start one process for each command line, as torchrun does."""
    port, found = free_port(), []
    for rank, line in enumerate(lines):
        given = {**environment(threads=1), **rank_environment(rank, len(lines), port, address)}
        found.append(Program("xrep_cli.train", line, given))
    return found


def finish(processes: Sequence[Program], seconds: float = PATIENCE) -> list[Finished]:
    done = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=seconds)
            done.append(Finished(process.args, process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return done


def arguments(data: Path, save_dir: Path, **given: object) -> list[str]:
    return [str(data), *options(save_dir=save_dir, **{**STEADY, **given})]


def torchrun(data: Path, save_dir: Path, restarts: int = 0, **given: object) -> Program:
    """Return a launcher of two ranks, which start as new processes."""
    line = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "-m", "xrep_cli.train"]
    line += arguments(data, save_dir, **given)
    return Program("torch.distributed.run", line, environment(threads=1))


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


def wait_for(path: Path, process: Program, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def weights(run: Path) -> dict[str, bytes]:
    return {name: (run / "last" / name).read_bytes() for name in ("model.safetensors", CRITERION)}


@pytest.fixture(scope="module")
def two_ranks(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train an undisturbed run of two ranks, with 20 steps of 2 x 15 pairs."""
    run = tmp_path_factory.mktemp("ranks") / "run"
    (done,) = finish([torchrun(data_directory, run, max_steps=20)])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("20 steps in") == 1 and "2 ranks" in done.stderr
    return run


@pytest.mark.slow
def test_two_ranks_train_and_one_goes_on(two_ranks: Path, data_directory: Path, tmp_path: Path) -> None:
    assert open_checkpoint(two_ranks / "last").training_state()["examples"] == 600
    lines = [json.loads(line) for line in (two_ranks / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [5, 10, 15, 20]
    run = shutil.copytree(two_ranks, tmp_path / "run", symlinks=True)
    done = xrep_train(*arguments(data_directory, run, max_steps=22, batch_size=20))
    assert done.returncode == 0 and f"going on from {run / 'checkpoint-00000020'}" in done.stderr, done.stderr
    assert open_checkpoint(run / "last").training_state()["examples"] == 640


@pytest.mark.slow
def test_a_killed_rank_is_named_and_torchrun_restarts_the_run(
    two_ranks: Path, data_directory: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = torchrun(data_directory, run, restarts=1, max_steps=20)
    wait_for(run / "checkpoint-00000005", process)
    os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
    (done,) = finish([process])
    assert done.returncode == 0, done.stderr
    assert re.search(r"exitcode: -9\) local_rank: 1 ", done.stderr), done.stderr
    assert "going on from" in done.stderr
    # The result equals that of an undisturbed run to the last bit.
    assert weights(run) == weights(two_ranks)


@pytest.mark.slow
def test_a_sharded_optimizer_goes_on_after_a_kill_and_on_other_ranks(
    two_ranks: Path, data_directory: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = torchrun(data_directory, run, restarts=1, max_steps=20, shard="optimizer")
    wait_for(run / "checkpoint-00000005", process)
    os.kill(rank_processes(process.pid)[1], signal.SIGKILL)
    (done,) = finish([process])
    assert done.returncode == 0 and "going on from" in done.stderr, done.stderr
    # Weights and checkpoints are those of a run that was neither sharded nor killed, to the last bit.
    assert weights(run) == weights(two_ranks)
    states = [open_checkpoint(folder / "last").training_state()["optimizer"] for folder in (run, two_ranks)]
    assert [[*state["state"]] for state in states] == 2 * [[*range(len(states[1]["state"]))]]
    for number, state in states[1]["state"].items():
        assert all(torch.equal(tensor, states[0]["state"][number][name]) for name, tensor in state.items())
    # Three ranks go on, with shards and without, from the run that had them.
    found = []
    for name, shard in (("sharded", "optimizer"), ("whole", "none")):
        copy = shutil.copytree(run, tmp_path / name, symlinks=True)
        line = arguments(data_directory, copy, max_steps=24, batch_size=10, shard=shard)
        done = finish(start_ranks(line, line, line))
        assert [each.returncode for each in done] == [0, 0, 0], done[0].stderr
        assert f"going on from {copy / 'checkpoint-00000020'}" in done[0].stderr
        found.append(weights(copy))
    assert found[0] == found[1] != weights(run)
    # One process has the whole state.
    done = xrep_train(*arguments(data_directory, tmp_path / "sharded", max_steps=26, shard="optimizer"))
    assert done.returncode == 0 and "checkpoint-00000024" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_killed_rank_without_restarts_ends_the_job(data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = torchrun(data_directory, run, max_steps=100_000)
    wait_for(run / "checkpoint-00000005", process)
    ranks = rank_processes(process.pid)
    os.kill(ranks[0], signal.SIGKILL)
    (done,) = finish([process])
    assert done.returncode != 0 and "exitcode: -9) local_rank: 0 " in done.stderr, done.stderr
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)


@pytest.mark.slow
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
    again = finish(start_ranks(line, line))
    assert [done.returncode for done in again] == [0, 0]
    assert weights(run) == weights(two_ranks)


@pytest.mark.slow
def test_a_master_that_is_nowhere(data_directory: Path, tmp_path: Path) -> None:
    line = arguments(data_directory, tmp_path / "run", max_steps=1)
    first, second = finish(start_ranks(line, line, address="nowhere.invalid"))
    assert refusal(first).startswith("MASTER_ADDR 'nowhere.invalid' is not the name of a host; set MASTER_ADDR")
    assert (second.returncode, second.stderr) == (2, "")
    # Nothing listens at the address: rank 1 is alone and gives up after its time.
    late = arguments(data_directory, tmp_path / "run", max_steps=1, timeout_minutes=0.05)
    given = {**environment(threads=1), **rank_environment(1, 2, free_port()), "LOCAL_RANK": "0"}
    done = run_program("xrep_cli.train", *late, environment=given)
    errors = [text for text in done.stderr.splitlines() if "error: " in text]
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "not all 2 ranks met at 127.0.0.1:" in errors[-1]


@pytest.mark.slow
def test_what_no_rank_can_do_is_told_once(data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for given, message in (
        ({"batch_size": 400}, "do not fill a batch of 400 on each of 2 ranks"),
        ({"precision": "fp16"}, "precision fp16 is for GPUs; set --precision to bf16 on a CPU"),
        ({"batch_sizes": 4}, "unknown option --batch-sizes"),
        ({"freeze": "encoders"}, "freeze"),
    ):
        line = arguments(data_directory, run, max_steps=1, **given)
        first, second = finish(start_ranks(line, line))
        assert message in refusal(first)
        assert second.returncode == 2 and "error" not in second.stderr
    assert not run.exists()


@pytest.mark.slow
def test_ranks_with_other_data_or_options_are_refused(data_directory: Path, tmp_path: Path) -> None:
    raw = write_corpus(tmp_path / "raw")
    run = tmp_path / "run"
    mine = arguments(data_directory, run, max_steps=1)
    first, second = finish(start_ranks(mine, arguments(raw, run, max_steps=1, vocab_size=100)))
    assert "rank 1 has another " in refusal(first) and "; start every rank with the same command" in refusal(first)
    assert second.returncode == 2 and "error" not in second.stderr
    # A failure of one rank ends both.
    first, second = finish(start_ranks(mine, [str(tmp_path / "nothing"), *mine[1:]]))
    assert "rank 1: " in refusal(first) and "nothing" in refusal(first)
    assert second.returncode == 2 and not run.exists()
