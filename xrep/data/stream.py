"""Plans of batches into batches, in worker processes if wanted: the same batches, in the same order, either way.

The order is planned in the main process; a worker only makes what it is told to. Worker k makes every n-th batch, over
a pipe of its own, so nothing is shared that a worker could take into its grave.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from xrep.errors import TrainingError, UserError

PREFETCH = 4
"""Batches that each worker holds ready at most."""
_TRAINER_S = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Plan:
    """The next batch of one rank, before it is made.

    Attributes:
        what: which examples the batch holds, for ``task.make``; small, and plain data or numpy arrays.
        cursor: plain data from which ``task.plan`` goes on behind this batch; equal on all ranks.
        examples: training examples of all ranks consumed since the start of training, this batch included.
    """

    what: Any
    cursor: Any
    examples: int


class Task(Protocol):
    """What ``stream`` asks of a task."""

    def plan(
        self, cursor: Any = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]: ...

    def make(self, what: Any) -> Any:
        """The batch of ``Plan.what``: a function of it alone (no global random numbers, no count of calls)."""
        ...


def stream(
    task: Task,
    *,
    cursor: Any = None,
    rank: int = 0,
    world_size: int = 1,
    stop: int | None = None,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[tuple[Any, Plan]]:
    """Training batches of one rank with their plans, for ever or up to example ``stop`` of the run.

    Args:
        cursor: ``Plan.cursor`` of the last batch that was used; None starts at the beginning.
        workers: processes that make the batches, at most ``PREFETCH`` ahead each; 0 makes them in this process.
        pin_memory: put the batches into page-locked memory (their ``pin_memory()``), for copies to a GPU.

    Raises:
        UserError: damaged data, found here or by a worker.
        TrainingError: a worker died.
    """
    plans = task.plan(cursor, rank, world_size, stop)
    made = _made_by_workers(task, plans, workers) if workers else ((task.make(plan.what), plan) for plan in plans)
    for batch, plan in made:
        yield (batch.pin_memory() if pin_memory else batch), plan


def _made_by_workers(task: Task, plans: Iterator[Plan], count: int) -> Iterator[tuple[Any, Plan]]:
    with _started(task, count) as workers:
        pending: deque[tuple[_Worker, Plan]] = deque()
        turn = 0
        while True:
            while len(pending) < count * PREFETCH and (plan := next(plans, None)) is not None:
                workers[turn % count].send(plan.what)
                pending.append((workers[turn % count], plan))
                turn += 1
            if not pending:
                return
            worker, plan = pending.popleft()
            yield worker.receive(), plan


@contextmanager
def _started(task: Task, count: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []

    def stop() -> None:
        for worker in workers:
            worker.stop()

    # Before multiprocessing waits at exit for its children, which ignore the signal it sends them.
    atexit.register(stop)
    try:
        for number in range(count):
            workers.append(_Worker(task, f"{number + 1} of {count}", [worker.connection for worker in workers]))
        yield workers
    finally:
        atexit.unregister(stop)
        stop()


class _Worker:
    """A forked process (the maps of the data are inherited, not copied) and this process's end of its pipe."""

    def __init__(self, task: Task, name: str, others: list[Connection]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._name = name
        inherited = [*others, self.connection]
        self._process = context.Process(target=_work, args=(task, theirs, inherited), name=f"data {name}", daemon=True)
        # A signal to the whole group is the trainer's to answer: it may want batches until its checkpoint is written.
        # Blocked before the fork, none can hit the worker in between; it keeps them blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINER_S)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def send(self, what: Any) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(what, protocol=5))
        except OSError:
            raise self._death() from None

    def receive(self) -> Any:
        try:
            wait([self.connection, self._process.sentinel])
            made = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise self._death() from None
        if isinstance(made, UserError):
            raise made
        return made

    def stop(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.join()

    def _death(self) -> TrainingError:
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return TrainingError(
            f"data worker {self._name} (process {self._process.pid}) {how}; if memory ran out, "
            "lower --data-workers (0: batches are made by the trainer itself); the same command goes on from the "
            "last checkpoint"
        )


def _work(task: Task, connection: Connection, inherited: list[Connection]) -> None:
    """What a worker does until the main process closes its end of the pipe, or dies."""
    for end in inherited:  # as long as a worker holds one, nobody sees the main process go
        end.close()
    torch.set_num_threads(1)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    while True:
        try:
            made = task.make(pickle.loads(inbox.get()))
        except UserError as error:
            made = error
        packed = io.BytesIO()
        _Pickler(packed, protocol=5).dump(made)
        try:
            connection.send_bytes(packed.getbuffer())
        except OSError:  # nobody listens any more
            return


def _listen(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    """Take every plan at once, so that the main process never waits to send one while this one waits to answer."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


class _Pickler(pickle.Pickler):
    """Tensors as bytes in the pipe: torch's own way costs a shared file and a descriptor for each."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, torch.Tensor) else NotImplemented
