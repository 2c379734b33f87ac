"""Forked processes that make items in the order in which they are asked for, and a thread that takes them ahead."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, TypeVar

PREFETCH = 4
"""Maximum number of items that each worker prepares in advance."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")
Make = Callable[[Any], Any]
_call_in_worker: Callable[[Any], bytes]


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
) -> Generator[tuple[Any, T], None, None]:
    """Yield ``(make(what), label)`` for each ``(what, label)`` of ``items``, in their order.

    Args:
        make: Function that is called in the workers, which have everything that was there before the first item was
            asked for. Only ``what`` and the result are sent. What it raises is raised here.
        items: Taken a little ahead: at most ``PREFETCH`` for each worker.
        count: Number of workers; 0 to call ``make`` in this process.
        died: Raised if a worker was killed.
        begin: Called once in each worker.
        pack: Function that pickles a result.
    """
    if not count:
        yield from ((make(what), label) for what, label in items)
        return
    items, pending = iter(items), deque[tuple[Future[bytes], T]]()
    pool = ProcessPoolExecutor(count, _Context(), _begin, (os.getpid(), lambda what: pack(make(what)), begin))
    try:
        while True:
            for what, label in islice(items, count * PREFETCH - len(pending)):
                # Signals to the process group are for this process, which may need items until it has written a
                # checkpoint. They are blocked while workers are forked, so a worker never receives one.
                before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
                try:
                    pending.append((pool.submit(_call, what), label))
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if not pending:
                return
            made, label = pending.popleft()
            yield pickle.loads(made.result()), label
    except BrokenProcessPool:
        raise died from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int, work: Callable[[Any], bytes], begin: Callable[[], object]) -> None:
    """Prepare a worker, which ends with its parent."""
    global _call_in_worker
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before
        os._exit(1)
    _call_in_worker = work
    begin()


def _call(what: Any) -> bytes:
    return _call_in_worker(what)


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
