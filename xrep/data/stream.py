"""Build batches from their plans, optionally in worker processes.

The batches and their order are the same with and without workers. The main process plans the order, and a worker only
builds the batches it is asked for. Worker k of n builds every n-th batch and sends it through its own pipe. No state is
shared, so a dying worker cannot corrupt it.
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
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from xrep.errors import TrainingError, UserError

PREFETCH = 4
"""Maximum number of batches that each worker prepares in advance."""
_TRAINER_S = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True)
class Plan:
    """The next batch of one rank, before it is built.

    Attributes:
        what: The examples of the batch, for ``task.make``; it is small and consists of plain data or numpy arrays.
        cursor: Plain data from which ``task.plan`` continues after this batch; it is equal on all ranks.
        examples: Training examples consumed by all ranks since the start of training, including this batch.
    """

    what: Any
    cursor: Any
    examples: int


class Task(Protocol):
    """The methods of a task that ``stream`` calls."""

    def plan(
        self, cursor: Any = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]: ...

    def make(self, what: Any) -> Any:
        """Build the batch of ``Plan.what``, which alone determines it (no global random numbers, no call counters)."""
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
) -> Generator[tuple[Any, Plan], None, None]:
    """Yield the training batches of one rank with their plans, without end or up to example ``stop`` of the run.

    Args:
        cursor: ``Plan.cursor`` of the last batch that was used; None to start at the beginning.
        workers: Number of processes that build batches, each at most ``PREFETCH`` ahead; 0 to use this process.
        pin_memory: Whether to call ``pin_memory()`` on each batch (page-locked memory), for copies to a GPU.

    Raises:
        UserError: This process or a worker found damaged data.
        TrainingError: A worker died.
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

    # At exit, this must run before multiprocessing waits for its children, because they ignore the signal it sends.
    atexit.register(stop)
    try:
        for number in range(count):
            workers.append(_Worker(task, f"{number + 1} of {count}", [worker.connection for worker in workers]))
        yield workers
    finally:
        atexit.unregister(stop)
        stop()


class _Worker:
    """A forked process, which inherits the memory maps of the data, and the main process's end of its pipe."""

    def __init__(self, task: Task, name: str, others: list[Connection]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._name = name
        inherited = [*others, self.connection]
        self._process = context.Process(target=_work, args=(task, theirs, inherited), name=f"data {name}", daemon=True)
        # Signals to the process group are handled by the trainer, which may need batches until it has written its
        # checkpoint. They are blocked before the fork, so the worker never receives one; it keeps them blocked.
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
            "lower `data_workers` (0: batches are made by the trainer itself); the same command goes on from the "
            "last checkpoint"
        )


def _work(task: Task, connection: Connection, inherited: list[Connection]) -> None:
    """Run a worker until the main process closes its end of the pipe or dies."""
    for end in inherited:  # while any worker holds one, the death of the main process goes unnoticed
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
        except OSError:  # the main process no longer reads from the pipe
            return


def _listen(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    """Receive every plan immediately, so that sending a plan never blocks while this process waits to send a batch."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


class _Pickler(pickle.Pickler):
    """Pickler that sends tensors as bytes; torch's own method needs a shared file and a descriptor for each tensor."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, torch.Tensor) else NotImplemented
