"""Forked processes that make items in the order in which they are asked for, and a thread that takes them ahead.

Worker k of n makes every n-th item and sends it through its own pipe. No state is shared, so a dying worker cannot
corrupt it. Workers end when the main process closes their pipes or dies.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from xrep.errors import UserError

PREFETCH = 4
"""Maximum number of items that each worker prepares in advance."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

T = TypeVar("T")
Make = Callable[[Any], Any]


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def in_workers(
    make: Make,
    items: Iterable[tuple[Any, T]],
    count: int,
    *,
    died: Callable[[str], Exception],
    begin: Callable[[], object] = lambda: None,
    pack: Callable[[Any], bytes | memoryview] = pickle.dumps,
) -> Generator[tuple[Any, T], None, None]:
    """Yield ``(make(what), which)`` for each ``(what, which)`` of ``items``, in their order.

    Args:
        make: Function that is called in the workers, which have everything that was there before the first item was
            asked for. Only ``what`` and the result are sent.
        items: Taken a little ahead: at most ``PREFETCH`` for each worker.
        count: Number of workers; 0 to call ``make`` in this process.
        died: Function that makes the exception to raise if a worker died, from a text that says which and how.
        begin: Called once in each worker.
        pack: Function that pickles a result.

    Raises:
        UserError: ``make`` raised it in a worker.
    """
    if not count:
        for what, which in items:
            yield make(what), which
        return
    items = iter(items)
    with _started(make, count, died, begin, pack) as workers:
        pending: deque[tuple[_Worker, T]] = deque()
        turn = 0
        while True:
            while len(pending) < count * PREFETCH and (item := next(items, None)) is not None:
                workers[turn % count].send(item[0])
                pending.append((workers[turn % count], item[1]))
                turn += 1
            if not pending:
                return
            worker, which = pending.popleft()
            yield worker.receive(), which


def ahead(items: Iterable[T], count: int = PREFETCH) -> Iterator[T]:
    """Yield ``items``, which a thread takes at most ``count`` ahead; an error in taking one is raised in its place.

    The thread begins when the first item is asked for, and ends with this generator.
    """
    taken: queue.SimpleQueue[tuple[list[T], BaseException | None]] = queue.SimpleQueue()
    room, closed = threading.Semaphore(count), threading.Event()

    def take() -> None:
        iterator = iter(items)
        while True:
            room.acquire()
            if closed.is_set():
                return
            try:
                taken.put(([next(iterator)], None))
            except BaseException as error:
                taken.put(([], error))
                return

    thread = threading.Thread(target=take, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = taken.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item[0]
            room.release()
    finally:
        closed.set()
        room.release()
        thread.join()


@contextmanager
def _started(make: Make, count: int, died: Callable[[str], Exception], *how: Any) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []

    def stop() -> None:
        for worker in workers:
            worker.stop()

    # At exit, this must run before multiprocessing waits for its children, because they ignore the signal it sends.
    atexit.register(stop)
    try:
        for number in range(count):
            inherited = [worker.connection for worker in workers]
            workers.append(_Worker(make, f"{number + 1} of {count}", inherited, died, *how))
        yield workers
    finally:
        atexit.unregister(stop)
        stop()


class _Worker:
    """A forked process, which inherits memory maps and functions, and the main process's end of its pipe."""

    def __init__(
        self, make: Make, name: str, others: list[Connection], died: Callable[[str], Exception], *how: Any
    ) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        self._name, self._died = name, died
        inherited = [*others, self.connection]
        arguments = (make, theirs, inherited, *how)
        self._process = context.Process(target=_work, args=arguments, name=f"worker {name}", daemon=True)
        # Signals to the process group are handled by the main process, which may need items until it has written a
        # checkpoint. They are blocked before the fork, so the worker never receives one; it keeps them blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
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

    def _death(self) -> Exception:
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return self._died(f"worker {self._name} (process {self._process.pid}) {how}")


def _work(
    make: Make,
    connection: Connection,
    inherited: list[Connection],
    begin: Callable[[], object],
    pack: Callable[[Any], bytes | memoryview],
) -> None:
    """Run a worker until the main process closes its end of the pipe or dies."""
    for end in inherited:  # while any worker holds one, the death of the main process goes unnoticed
        end.close()
    begin()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, inbox), daemon=True).start()
    while True:
        try:
            made = make(pickle.loads(inbox.get()))
        except UserError as error:
            made = error
        try:
            connection.send_bytes(pack(made))
        except OSError:  # the main process no longer reads from the pipe
            return


def _listen(connection: Connection, inbox: queue.SimpleQueue[bytes]) -> None:
    """Receive every item immediately, so that sending one never blocks while this process waits to send a result."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)
