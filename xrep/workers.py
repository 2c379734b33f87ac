"""Forked processes that make items in the order in which they are asked for, and a thread that takes them ahead."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, TypeVar

PREFETCH = 4
"""Maximum number of tasks, of one or more items, that each worker has in advance."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")
Make = Callable[[Any], Any]
_call_in_worker: Callable[[Sequence[Any]], bytes]


class _Worker(ForkProcess):
    terminate = ForkProcess.kill  # how the executor ends the others when one has died: they block SIGTERM


class _Context(ForkContext):
    Process = _Worker


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def in_workers(
    make: Make,
    items: Iterable[tuple[Any, T]],
    count: int,
    *,
    died: Exception,
    begin: Callable[[], object] = lambda: None,
    pack: Callable[[Any], bytes] = pickle.dumps,
    together: int = 1,
) -> Generator[tuple[Any, T], None, None]:
    """Yield ``(make(item), label)`` for each ``(item, label)`` of ``items``, in their order.

    Args:
        make: Function that is called in the workers, which have everything that was there before the first item was
            asked for. Only ``item`` and the result are sent. What it raises is raised here.
        items: Taken a little ahead: at most ``PREFETCH`` tasks for each worker.
        count: Number of workers; 0 to call ``make`` in this process.
        died: Raised if a worker was killed.
        begin: Called once in each worker.
        pack: Function that pickles the list of a task's results.
        together: Number of items in a task. Each task costs this process about as much time as making a small batch.
            An error that ``make`` raises for an item is raised in place of the first item of its task.
    """
    if not count:
        yield from ((make(item), label) for item, label in items)
        return
    iterator, pending = iter(items), deque[tuple[Future[bytes], Sequence[T]]]()
    tasks = iter(lambda: list(islice(iterator, together)), [])

    def work(task: Sequence[Any]) -> bytes:
        return pack([make(item) for item in task])

    pool = ProcessPoolExecutor(count, _Context(), _begin, (os.getpid(), work, begin))
    try:
        while True:
            for task in islice(tasks, count * PREFETCH - len(pending)):
                given, labels = zip(*task, strict=True)
                # Signals to the process group are for this process, which may need items until it has written a
                # checkpoint. They are blocked while workers are forked, so a worker never receives one.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                try:
                    pending.append((pool.submit(_call, given), labels))
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if not pending:
                return
            made, labels = pending.popleft()
            yield from zip(pickle.loads(made.result()), labels, strict=True)
    except BrokenProcessPool:
        raise died from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, work: Callable[[Sequence[Any]], bytes], begin: Callable[[], object]) -> None:
    """Prepare a worker, which ends with its parent."""
    global _call_in_worker
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)
    _call_in_worker = work
    begin()


def _call(task: Sequence[Any]) -> bytes:
    return _call_in_worker(task)


def ahead(items: Iterable[T], count: int = PREFETCH) -> Iterator[T]:
    """Yield ``items``, which a thread takes at most ``count`` ahead; an error in taking one is raised in its place.

    The thread begins when the first item is asked for, and ends with this generator.
    """
    iterator, end = iter(items), object()
    pool = ThreadPoolExecutor(1)
    try:
        pending = deque(pool.submit(next, iterator, end) for _ in range(count))
        while (item := pending.popleft().result()) is not end:
            yield item  # pyright: ignore[reportReturnType]
            pending.append(pool.submit(next, iterator, end))
    finally:
        pool.shutdown(cancel_futures=True)
