"""How far a job is, and which of its units failed, from the files in its folder."""

from __future__ import annotations

from dataclasses import dataclass

from xrep.errors import UserError
from xrep.jobs.notes import DONE, FAILED, STARTED, Notes, read_json
from xrep.jobs.plan import FINISHED, PLAN
from xrep.progress import duration
from xrep.store import addresses
from xrep.store.addresses import join

_LAST = 16
"""Number of units whose mean time tells the rate."""


@dataclass(frozen=True)
class Status:
    """How far a stage is. ``count`` is None before it has begun; ``seconds`` is what one unit took on average."""

    stage: str
    count: int | None
    done: int
    running: int
    failed: list[int]
    seconds: float

    @property
    def rate(self) -> float | None:
        """Units per second of the workers that are at work."""
        return self.running / self.seconds if self.running and self.seconds else None

    @property
    def left(self) -> float | None:
        """Seconds until the stage is done at this rate."""
        still_open = (self.count or 0) - self.done - len(self.failed)
        return still_open / self.rate if self.rate else None

    def __str__(self) -> str:
        left = "" if self.left is None else f", {duration(self.left)} left"
        failed = f", {len(self.failed):,} failed" if self.failed else ""
        return f"{self.stage}: {self.done:,} of {self.count:,} units, {self.running:,} running{failed}{left}"


@dataclass(frozen=True)
class Failure:
    """A unit that could not be done: the error on one line, and a traceback or what an engine says."""

    stage: str
    unit: int
    error: str
    log: str


def is_finished(address: str) -> bool:
    """Return whether several processes have finished a job, whose plan is kept for those that come late."""
    return addresses.exists(join(address, FINISHED))


def statuses(address: str) -> list[Status]:
    """Return how far each stage of a job is, which is not known of one that is finished. A UserError says that there is
    no job at the address."""
    return [_status(notes) for notes in _stages(address)]


def _stages(address: str) -> list[Notes]:
    try:
        return [Notes(address, stage) for stage in read_json(join(address, PLAN))["stages"]]
    except FileNotFoundError:
        cure = "name an output or its folder .job; without this folder, the command is finished or was not started"
        raise UserError("there is no such job", path=address, cure=cure) from None


def _status(notes: Notes) -> Status:
    done, started, failed = (notes.numbers(kind) for kind in (DONE, STARTED, FAILED))
    seconds = [marker["seconds"] for marker in notes.read(DONE, sorted(done)[-_LAST:]).values()]
    try:
        count = notes.count()
    except FileNotFoundError:
        count = None
    running = len(started - done - failed)
    return Status(notes.stage, count, len(done), running, sorted(failed), sum(seconds) / max(1, len(seconds)))


def failures(address: str) -> list[Failure]:
    """Return the units of a job that failed, as ``statuses``."""
    return [
        Failure(notes.stage, number, **note)
        for notes in _stages(address)
        for number, note in notes.read(FAILED, sorted(notes.numbers(FAILED))).items()
    ]


def retry(address: str, *, begun: bool = False) -> int:
    """Forget which units of a job failed, so that they are tried again, and return their number; as ``statuses``. With
    ``begun`` nobody is at work, and the units that were begun start at once, too."""
    count = 0
    for notes in _stages(address):
        failed = notes.numbers(FAILED)
        for number in failed.union(notes.begun() if begun else ()):
            notes.forget(number)
        count += len(failed)
    return count
