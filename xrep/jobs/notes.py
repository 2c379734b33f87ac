"""What the folder of a job notes of its units: which of them are started, done or failed, and so how far it is."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from socket import gethostname
from typing import Any

from xrep.errors import UserError
from xrep.store import addresses
from xrep.store.addresses import join

PLAN, FINISHED = "plan.json", "finished.json"
NOTE_KINDS = DONE, STARTED, FAILED = "done", "started", "failed"
_NOTE = re.compile(r"\d{7,}\.json")
TRIES = 3
"""How often a unit is tried, whether it ends in an error or its worker ends."""
_PATIENCE = 60.0
"""Seconds after which a unit is taken over whose worker was not heard of."""
_LAST = 16
"""Number of units whose mean time tells the rate."""


class Notes:
    """The notes of a stage: a JSON file for each unit and kind of note, and one with the number of units.

    Where a unit is started, its worker leaves a claim, and writes it anew from time to time. Another worker takes the
    unit over when it has seen the same claim for long, by its own clock, because the clocks of machines differ.
    """

    def __init__(self, job: str, stage: str) -> None:
        self.job, self.stage, self._count = job, stage, join(job, STARTED, f"{stage}.json")
        self._seen = dict[tuple[Any, ...], float]()

    def begin(self, count: int) -> int:
        """Note the number of units, and return it."""
        addresses.create(self._count, json_bytes({"count": count}))
        return count

    def place(self, kind: str, number: int) -> str:
        """Return the address of a note of a unit."""
        return join(self.job, kind, self.stage, f"{number:07d}.json")

    def numbers(self, *kinds: str) -> set[int]:
        """Return the units that have a note of one of these kinds."""
        names = [name for kind in kinds for name in addresses.names_in(join(self.job, kind, self.stage))]
        return {int(name.removesuffix(".json")) for name in names if _NOTE.fullmatch(name)}

    def read(self, kind: str, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Return the notes of some units, all of which have one of this kind."""
        return [json.loads(note) for note in addresses.read_all([self.place(kind, number) for number in numbers])]

    def claim(self, number: int, worker: str) -> bool:
        """Return whether a worker shall do a unit: nobody has started it, or a worker that has ended or was not heard
        of for too long, or this one before it was started again. After three workers that ended the unit has failed."""
        place = self.place(STARTED, number)
        content = {"worker": worker, "machine": gethostname(), "beat": 0, "ended": ""}
        if addresses.create(place, json_bytes({**content, "tries": 1})):
            return True
        try:
            claim = read_job_file(place)
        except FileNotFoundError:
            return False
        since = self._seen.setdefault((number, *claim.values()), time.monotonic())
        if claim["worker"] != worker and not claim["ended"] and time.monotonic() - since < _PATIENCE:
            return False
        if number in self.numbers(DONE, FAILED):
            return False  # since this worker has looked which units are left
        if claim["tries"] < TRIES:
            addresses.write(place, json_bytes({**content, "tries": claim["tries"] + 1}))
            return True
        last = f"The last one was worker {claim['worker']} on {claim['machine']}: {claim['ended'] or 'see its log'}"
        self.fail(number, f"the end of its worker, {TRIES} times", last)
        return False

    def release(self, worker: str, reason: str) -> int:
        """Let others start at once what a worker had begun that has ended, and return the number of these units."""
        begun = sorted(self.numbers(STARTED) - self.numbers(DONE, FAILED))
        claims = dict(zip(begun, self.read(STARTED, begun), strict=True))
        claimed = [number for number, claim in claims.items() if claim["worker"] == worker]
        for number in claimed:
            addresses.write(self.place(STARTED, number), json_bytes({**claims[number], "ended": reason}))
        return len(claimed)

    @contextmanager
    def kept(self, number: int) -> Iterator[None]:
        """Context manager that tells the others from time to time that somebody is still at a unit."""
        place, ended = self.place(STARTED, number), threading.Event()

        def tell() -> None:
            while not ended.wait(_PATIENCE / 3):
                with suppress(OSError, UserError):
                    claim = read_job_file(place)
                    addresses.write(place, json_bytes({**claim, "beat": claim["beat"] + 1}))

        threading.Thread(target=tell, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def fail(self, number: int, error: str, log: str) -> None:
        """Note why a unit could not be done: an error on one line, and a traceback or what else is known."""
        addresses.write(self.place(FAILED, number), json_bytes({"error": error, "log": log}))

    def failures(self) -> list[dict[str, Any]]:
        """Return for each unit that failed the stage, its number (``unit``), the ``error`` and the ``log``."""
        failed = sorted(self.numbers(FAILED) - self.numbers(DONE))  # some were done by workers thought to have ended
        notes = zip(failed, self.read(FAILED, failed), strict=True)
        return [{"stage": self.stage, "unit": number, **note} for number, note in notes]

    def status(self) -> dict[str, Any]:
        """Return how far the stage is: the numbers of units that are ``done`` and ``running``, and of all (``count``;
        None before it has begun); the list of those that ``failed``; the ``seconds`` that one took on average; and the
        ``rate``, in units a second, and the seconds that are ``left`` at this rate, or None if these are unknown."""
        try:
            count = read_job_file(self._count)["count"]
        except FileNotFoundError:
            count = None
        done = self.numbers(DONE)
        failed = self.numbers(FAILED) - done
        running = len(self.numbers(STARTED) - done - failed)
        times = [marker["seconds"] for marker in self.read(DONE, sorted(done)[-_LAST:])]
        seconds = sum(times) / max(1, len(times))
        rate = running / seconds if running and seconds else None
        left = ((count or 0) - len(done) - len(failed)) / rate if rate else None
        units = {"count": count, "done": len(done), "running": running, "failed": sorted(failed)}
        return {"stage": self.stage, **units, "seconds": seconds, "rate": rate, "left": left}


def notes_of(job: str) -> list[Notes]:
    """Return the notes of each stage of a job; a UserError says that there is no job at this address."""
    try:
        return [Notes(job, stage) for stage in read_job_file(join(job, PLAN))["stages"]]
    except FileNotFoundError:
        cure = "name an output or its folder .job; without this folder, the command is finished or was not started"
        raise UserError("there is no such job", path=job, cure=cure) from None


def retry(job: str) -> int:
    """Forget which units of a job failed, so that they are tried again, and return their number; as ``notes_of``."""
    failed = [(notes, number) for notes in notes_of(job) for number in notes.numbers(FAILED)]
    for notes, number in failed:
        for kind in (STARTED, FAILED):
            addresses.remove(notes.place(kind, number))
    return len(failed)


def json_bytes(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def read_job_file(address: str) -> Any:
    """Read a file of a job; a UserError says that it is damaged."""
    try:
        return json.loads(addresses.read(address))
    except ValueError:
        raise UserError("a damaged file", path=address, cure="remove the folder to begin anew") from None
