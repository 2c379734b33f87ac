"""Batches from worker processes equal those of the trainer, and workers neither die unnoticed nor outlive it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.planning import streamed
from xrep.data.stream import BATCHES_TOGETHER, Plan, stream
from xrep.errors import TrainingError, UserError
from xrep.workers import PREFETCH, ahead

ROOT = Path(__file__).parents[2]


class Squares:
    """A task whose batch ``n`` holds ``n`` squared ``size`` times; ``make`` may do something before."""

    def __init__(self, size: int = 1, first: Callable[[int], object] = lambda number: None) -> None:
        self.size, self.first, self.planned = size, first, 0

    def plan(self, stop: int | None = None) -> Iterator[Plan]:
        for number in itertools.islice(itertools.count(), stop):
            self.planned += 1
            yield Plan(np.full(self.size, number), number + 1, number + 1)

    def make(self, what: np.ndarray) -> torch.Tensor:
        self.first(int(what[0]))
        return torch.from_numpy(what**2)


def worker_ids() -> list[int]:
    return [process.pid or 0 for process in multiprocessing.active_children()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Pinnable:
    pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_pinned_when_that_is_asked(workers: int) -> None:
    for wanted in (False, True):
        batches = stream(Squares().plan(stop=3), lambda plan: Pinnable(), workers=workers, pin_memory=wanted)
        assert [batch.pinned for batch, _ in batches] == [wanted] * 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_plan_a_little_ahead_in_a_thread(workers: int) -> None:
    """And one process no more than its workers may hold."""
    task, before = Squares(), threading.active_count()
    alone = streamed(task, workers=2)
    assert [next(alone)[0].tolist() for _ in range(2)] == [[0], [1]] and task.planned == 2 * PREFETCH * BATCHES_TOGETHER
    alone.close()
    task.planned = 0
    batches = stream(ahead(task.plan()), lambda plan: task.make(plan.rows), workers=workers)
    assert [next(batches)[0].tolist() for _ in range(20)] == [[number**2] for number in range(20)]
    deadline = time.monotonic() + 60
    taken = 20 if workers == 0 else 20 - BATCHES_TOGETHER + workers * PREFETCH * BATCHES_TOGETHER
    most = taken + PREFETCH - 1
    while task.planned < most and time.monotonic() < deadline:
        time.sleep(0.001)
    assert task.planned == most
    batches.close()
    assert threading.active_count() == before and worker_ids() == []


def test_plans_and_batches_larger_than_a_pipe() -> None:
    totals = [int(batch.sum()) for batch, _ in streamed(Squares(500_000), stop=20, workers=2)]
    assert totals == [500_000 * number**2 for number in range(20)]


@pytest.mark.nightly
def test_thousands_of_batches_leave_nothing_open() -> None:
    opened: set[int] = set()
    gc.collect()  # files of other tests, which the workers would inherit
    with contextlib.closing(streamed(Squares(500), workers=2)) as batches:
        kept = []  # batches that are still in use hold nothing open either
        for number, (batch, _) in enumerate(itertools.islice(batches, 3001)):
            kept.append(batch)
            if number % 1000 == 0:
                gc.collect()  # files of other tests
                opened.add(sum(len(os.listdir(f"/proc/{process}/fd")) for process in (os.getpid(), *worker_ids())))
    assert len(opened) == 1


def test_a_killed_worker_ends_the_stream() -> None:
    def die(number: int) -> None:
        if number == 5:
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGBUS)  # reading a file that was cut meanwhile does this

    with pytest.raises(TrainingError, match="a data worker was killed; if memory ran out, lower `data_workers`"):
        list(streamed(Squares(first=die), workers=3))
    assert worker_ids() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_data_is_the_error_that_it_is(workers: int) -> None:
    """Whether it is found while a batch is made, or while batches are planned ahead."""

    def refuse(number: int) -> None:
        if number == 4:
            raise UserError("a damaged row", path="x.tokens", line=4, cure="copy it again")

    batches = streamed(Squares(first=refuse), workers=workers)
    assert [next(batches)[0].item() for _ in range(4)] == [0, 1, 4, 9]
    with pytest.raises(UserError, match="^x.tokens:4: a damaged row; copy it again$"):
        next(batches)
    assert worker_ids() == []

    def plans() -> Iterator[Plan]:
        yield Plan(1, 1, 1)
        raise UserError("damaged", path="train.de-en.de")

    batches = stream(ahead(plans()), lambda plan: plan.rows)
    assert next(batches)[0] == 1
    with pytest.raises(UserError, match="train.de-en.de: damaged"):
        next(batches)


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        next(streamed(Squares(first=lambda number: 1 // number), workers=1))
    assert "line" in str(error.value.__cause__) and "1 // number" in str(error.value.__cause__)


def test_signals_to_the_group_are_the_trainer_s_to_answer() -> None:
    batches = streamed(Squares(), workers=2)
    seen = [next(batches)[0].item()]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        for process in worker_ids():
            os.kill(process, number)
    seen += [next(batches)[0].item() for _ in range(40)]
    assert seen == [number**2 for number in range(41)]
    batches.close()


LEFT_RUNNING = """
import itertools, multiprocessing, os, sys, time
from tests.data.test_stream import Squares
from tests.support.planning import streamed

streams = [streamed(Squares(400_000), workers=2), streamed(Squares(), workers=2)]  # the former wait to be read
for batches in streams:
    next(batches)
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["wait", pytest.param("exit", marks=pytest.mark.nightly)])
def test_no_worker_outlives_the_main_process(end: str) -> None:
    command = [sys.executable, "-c", LEFT_RUNNING, end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as main:
        assert main.stdout is not None
        workers = list(map(int, main.stdout.readline().split()))
        assert len(workers) == 4
        if end == "wait":
            main.kill()
        assert main.wait(timeout=300) == (0 if end == "exit" else -signal.SIGKILL)
    deadline = time.monotonic() + 120
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, workers))
