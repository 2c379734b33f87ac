"""The store of a run: where the ranks find each other, meet, and notice that one of them is gone."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from xrep.errors import TrainingError

GO_ON = "the same command goes on from the last checkpoint, torchrun --max-restarts N does so by itself"


def connect(limit: timedelta, is_main: bool = False) -> dist.TCPStore:
    """Return a connection to the store of the run, which is in a process of torchrun, or else in that of rank 0."""
    serves = is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", ""))
    return dist.TCPStore(address, port, is_master=serves, timeout=limit, wait_for_workers=False)


def name_of_attempt(store: dist.Store, rank: int, size: int, limit: timedelta) -> str:
    """Return a name for the part of the store that this attempt uses, the same on all ranks.

    torchrun keeps one store across restarts, which still has the addresses of processes that have died, and hosts do
    not count restarts alike. So each rank asks with a word of its own, and rank 0 answers until all have the name.
    """
    word, deadline = uuid.uuid4().hex, time.monotonic() + limit.total_seconds()
    if rank:
        store.set(f"asks/{rank}", word)
        name = store.get(word).decode()
        store.add(name, 1)
        return name
    while store.add(word, 0) < size - 1:
        for other in (f"asks/{rank}" for rank in range(1, size)):
            if store.check([other]):
                store.set(store.get(other).decode(), word)
        if time.monotonic() > deadline:
            raise RuntimeError("some ranks did not come in time")
        time.sleep(0.01)
    return word


class Pulse:
    """Tells a rank which of the others are gone, and lets all of them meet.

    A thread counts up a number of this rank in torch's store and reads those of the others. When one of them has not
    changed for as long as the limit, another thread raises TrainingError in the main thread, wherever that is; a rank
    whose host has lost the store sees no number change. What a rank computes meanwhile makes no difference.

    Args:
        name: a part of the store that this run has for itself.
        limit: seconds.
    """

    def __init__(self, name: str, rank: int, size: int, limit: float) -> None:
        self._rank, self._size, self._limit, self._every = rank, size, limit, min(limit / 20, 10.0)
        # Each of the two has a connection of its own, because one that waits answers no other call.
        self._pulses, self._places = (dist.PrefixStore(name, connect(timedelta(seconds=limit))) for _ in range(2))
        self._places.set_timeout(timedelta(days=7))  # without an end, but torch wants one
        self._counts, self._met, self._lost, self._over = [0] * size, 0, "", threading.Event()
        signal.signal(signal.SIGUSR2, self._end)
        for work in (self._beat, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def meet(self) -> None:
        """Wait until all ranks have come here."""
        done = Future[None]()
        self._met += 1
        # In another thread, because a signal does not interrupt torch, which waits without an end for a lost host.
        threading.Thread(target=self._arrive, args=(self._met, done), daemon=True).start()
        done.result()

    def stop(self) -> None:
        """Wait for all ranks, whose pulses stop then."""
        self.meet()
        self._over.set()

    def _arrive(self, number: int, done: Future[None]) -> None:
        try:
            if self._places.add("arrived", 1) == number * self._size:
                self._places.set(f"met/{number}", "")
            self._places.get(f"met/{number}")
            done.set_result(None)
        except RuntimeError as error:
            done.set_exception(error)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and no number changes any more
            while not self._over.is_set():
                self._pulses.add(f"pulse/{self._rank}", 1)
                self._counts = list(map(int, self._pulses.multi_get([f"pulse/{r}" for r in range(self._size)])))
                self._over.wait(self._every)

    def _watch(self) -> None:
        seen, silent = self._counts, [0] * self._size
        while not self._over.wait(self._every):  # a time in which this process is stopped does not count
            seen, before = self._counts, seen
            silent = [0 if new != old else count + 1 for new, old, count in zip(seen, before, silent, strict=True)]
            gone = [r for r, count in enumerate(silent) if count * self._every > self._limit and r != self._rank]
            if gone:
                self._lost = f"rank {self._rank}: nothing was heard of rank {gone[0]} for {self._limit / 60:g} minutes"
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)
                return

    def _end(self, *_: object) -> None:
        if self._lost:
            raise TrainingError(f"{self._lost}; {GO_ON}")
