"""Checkpoints are written beside training: the files at each moment, after failures, and of several processes."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.runs import contents
from xrep.data.batch import TextSpec
from xrep.errors import UserError
from xrep.models.directory import CRITERION, open_checkpoint
from xrep.training.checkpoint import Checkpoints, check_same_run, lock

TEXT = TextSpec(vocabularies={}, max_length=8)


class Model(nn.Linear):
    def architecture(self) -> dict:
        return {"layers": 1}


class Run:
    """A run whose training only writes the number of the step into the weights; test_crashes has it, too."""

    def __init__(self, directory: Path, keep_last: int = 2) -> None:
        self.directory, self.said = directory, list[str]()
        self.checkpoints = Checkpoints(Checkpoints.Config(keep_last=keep_last), directory, self.said.append)
        self.model, self.criterion, self.moment = Model(200, 200), nn.Linear(200, 1), torch.zeros(3)

    def save(
        self, step: int, best: bool = False, final: bool = False, during: Callable[[], None] = lambda: None
    ) -> None:
        """Call ``during`` in the middle of writing."""

        def save_tokenizers(folder: Path) -> None:
            folder.mkdir()
            during()

        for tensor in (*self.model.parameters(), *self.criterion.parameters(), self.moment):
            nn.init.constant_(tensor, step)
        state = {"step": step, "optimizer": {"state": {0: {"moment": self.moment}}}}
        facts = {"config_yaml": "{}", "text": TEXT, "model": self.model, "criterion": self.criterion}
        facts |= {"step": step, "save_tokenizers": save_tokenizers, "training_state": state}
        self.checkpoints.save(best, final, **facts)

    def steps(self) -> list[int]:
        self.checkpoints.wait()
        return [int(path.name.split("-")[1]) for path in sorted(self.directory.glob("checkpoint-*"))]

    def pointers(self) -> list[str]:
        return [(self.directory / name).resolve().name[-1] for name in ("last", "best")]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run")
    with run.checkpoints:
        yield run


def disk_is_full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_training_goes_on_while_a_checkpoint_is_written(run: Run) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        assert go_on.wait(60)

    run.save(1, best=True)
    run.save(2)
    run.save(3, best=True, during=slow)
    assert started.wait(60)
    for tensor in (run.model.weight, run.criterion.weight, run.moment):
        nn.init.constant_(tensor, 99)
    # Nothing has changed for others until it is whole.
    partial, *whole = sorted(path.name for path in run.directory.iterdir())
    assert partial.startswith(".checkpoint-00000003.")
    assert whole == ["best", "checkpoint-00000001", "checkpoint-00000002", "last"]
    assert run.pointers() == ["2", "1"]
    go_on.set()
    assert run.steps() == [2, 3] and run.pointers() == ["3", "3"]
    last = open_checkpoint(run.directory / "last")
    saved = last.tensors()["weight"], last.tensors(CRITERION)["weight"]
    assert [*map(torch.Tensor.unique, saved)] == [3, 3]
    assert last.training_state()["optimizer"]["state"][0]["moment"].tolist() == [3, 3, 3]
    assert run.said == []


def test_one_is_written_at_a_time_and_has_its_own_weights(run: Run) -> None:
    """Each save waits for the one before, whose memory it uses again."""
    before, writers = set(threading.enumerate()), set[threading.Thread]()
    for step in range(1, 9):
        run.save(step, during=lambda: writers.update(set(threading.enumerate()) - before))
    assert run.steps() == [1, 7, 8]  # no other checkpoint was the best, so it is still the first
    assert [thread.name for thread in writers] == ["checkpoint_0"]
    for step in (7, 8):
        tensors = open_checkpoint(run.directory / f"checkpoint-{step:08d}").tensors()
        assert tensors["weight"].unique().tolist() == [step]


def test_the_time_training_stood_still_is_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("xrep.training.checkpoint.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    run.save(1)  # every call is one second
    run.save(2, final=True)
    assert run.checkpoints.stalled_seconds == 2


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(run: Run) -> None:
    run.save(1)
    run.save(2, best=True)
    run.checkpoints.wait()
    before = contents(run.directory)
    run.save(3, best=True, during=disk_is_full)
    run.checkpoints.wait()
    assert contents(run.directory) == before
    (warning,) = run.said
    path = run.directory / "checkpoint-00000003"
    assert warning.startswith(f"warning: {path}: No space left on device: no checkpoint of step 3")
    assert "make room" in warning
    # The next checkpoint replaces the best one that failed.
    run.save(4, during=disk_is_full)
    run.save(5)
    run.save(6)
    assert run.steps() == [5, 6] and run.pointers() == ["6", "5"]
    with pytest.raises(OSError, match="No space left") as error:
        run.save(7, final=True, during=disk_is_full)
    assert error.value.filename == str(run.directory / "checkpoint-00000007") and len(run.said) == 2
    run.save(7, final=True)
    assert run.steps() == [5, 6, 7]


def test_a_pointer_that_cannot_be_moved(run: Run) -> None:
    run.save(1)
    run.save(2, best=True)
    run.checkpoints.wait()
    (run.directory / ".last.new").mkdir()  # in its way
    run.save(3, best=True)
    assert run.steps() == [1, 2, 3] and run.pointers() == ["2", "2"]
    (warning,) = run.said
    assert "the one of step 3 is complete, but links" in warning and "no checkpoint" not in warning
    (run.directory / ".last.new").rmdir()
    run.save(4)
    assert run.steps() == [3, 4] and run.pointers() == ["4", "4"]


def test_a_bug_in_the_thread_ends_the_run(run: Run) -> None:
    def bug() -> None:
        raise ValueError("a bug")

    run.save(1)
    run.save(2, during=bug)
    with pytest.raises(ValueError, match="a bug"):
        run.save(3)
    assert run.steps() == [1] and not list(run.directory.glob(".checkpoint-*"))
    with pytest.raises(ValueError, match="a bug"), run.checkpoints:
        run.save(4, during=bug)


def test_a_run_that_fails_waits_for_its_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), run.checkpoints:
        run.save(1)
        raise KeyboardInterrupt
    assert open_checkpoint(run.directory / "last").step == 1
    run.save(2)
    assert run.checkpoints.last_good() == str(run.directory / "checkpoint-00000002")


def test_a_whole_checkpoint_is_not_written_anew(run: Run) -> None:
    """A run that must stop right after saving or resuming has its checkpoint at every moment."""
    run.save(1)
    run.save(2)
    run.checkpoints.wait()
    before = contents(run.directory / "last")
    again = Run(run.directory)
    assert again.checkpoints.latest().step == 2
    for other in (run, again):
        other.save(2, best=True, final=True, during=disk_is_full)
        assert contents(run.directory / "last") == before and run.pointers() == ["2", "2"]


def test_a_directory_has_one_run_at_a_time(tmp_path: Path) -> None:
    """Another process holds the lock until it ends, even though a process that it forked is alive."""
    directory, (ready, told) = tmp_path / "runs" / "run", os.pipe()
    holder = os.fork()
    if not holder:
        held = lock(directory)
        held.__enter__()
        if child := os.fork():
            os.write(told, b"%d" % child)
        time.sleep(60)
        os._exit(0)
    child = int(os.read(ready, 20))
    try:
        with pytest.raises(UserError) as error, lock(directory):
            pass
        cure = "wait for it, or choose another `save_dir`"
        assert str(error.value) == f"{directory}: another process is training here; {cure}"
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with lock(directory):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        os.close(told)


ONE = {
    "task.name": "bitext", "task.data": "a", "task.batch_size": 8, "task.max_length": 20,
    "criterion.name": "dual_moco", "criterion.temperature": 0.1,
    "trainer.max_steps": 5, "trainer.precision": "float32", "trainer.freeze": [], "distributed.backend": "auto",
    "seed": 1,
}  # fmt: skip
PART = {key: value for key, value in ONE.items() if key.startswith(("task.", "criterion."))} | {"weight": 1.0}
SEVERAL = {"parts": ["a", "c"], "seed": 1, **{f"parts.{name}.{key}": PART[key] for name in "ac" for key in PART}}
FIRST = {key: value for key, value in SEVERAL.items() if not key.startswith("parts.c.")} | {"parts": ["a"]}


@pytest.mark.parametrize(("saved", "current", "differences"), [
    (ONE, ONE | {"task.data": "b", "task.batch_size": 9, "trainer.max_steps": 7, "trainer.precision": "bf16",
                 "distributed.backend": "gloo", "distributed.timeout_minutes": 3}, ""),
    (ONE, ONE | {"task.max_length": 30, "trainer.freeze": ["x"], "seed": 2, "new": None},
     "seed 1 -> 2, task.max_length 20 -> 30, trainer.freeze [] -> ['x']"),
    # Options of another criterion are not compared.
    (ONE, ONE | {"criterion.name": "simcse", "criterion.temperature": 0.2, "criterion.margin": 0},
     "criterion.name 'dual_moco' -> 'simcse'"),
    (SEVERAL, SEVERAL | {"parts.a.task.data": "b", "parts.a.task.batch_size": 3, "parts.c.task.batch_size": 3}, ""),
    (SEVERAL, SEVERAL | {"parts": ["c", "a"]}, ""),
    (SEVERAL, SEVERAL | {"parts.c.task.max_length": 9, "parts.c.weight": 2.0},
     "parts.c.task.max_length 20 -> 9, parts.c.weight 1.0 -> 2.0"),
    (SEVERAL, FIRST, "parts.c.criterion.name 'dual_moco' -> None, parts.c.task.name 'bitext' -> None"),
])  # fmt: skip
def test_what_may_change_and_what_may_not(saved: dict[str, Any], current: dict[str, Any], differences: str) -> None:
    if not differences:
        return check_same_run(saved, current, Path("run"))
    with pytest.raises(UserError) as error:
        check_same_run(saved, current, Path("run"))
    assert f"another configuration: {differences}" in str(error.value)
