"""How far a job is, and which of its units failed, from the files in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass

from xrep.errors import UserError
from xrep.jobs.plan import PLAN, note_of, numbers_of, read_json
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
    def open(self) -> int:
        """The number of units that are neither done nor failed, as far as it is known."""
        return (self.count or 0) - self.done - len(self.failed)

    @property
    def rate(self) -> float | None:
        """Units per second of the workers that are at work."""
        return self.running / self.seconds if self.running and self.seconds else None

    @property
    def left(self) -> float | None:
        """Seconds until the stage is done at this rate."""
        return self.open / self.rate if self.rate else None

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


def statuses(address: str) -> list[Status]:
    """Return how far each stage of a job is, which is not known of one that is finished. A UserError says that there is
    no job at the address."""
    return [_status(address, stage) for stage in _stages(address)]


def _stages(address: str) -> list[str]:
    try:
        return read_json(join(address, PLAN))["stages"]
    except FileNotFoundError:
        cure = "name an output or its folder .job; without this folder, the command is finished or was not started"
        raise UserError("there is no such job", path=address, cure=cure) from None


def _status(address: str, stage: str) -> Status:
    begun = join(address, "stages", f"{stage}.json")
    count = read_json(begun)["count"] if addresses.exists(begun) else None
    done, started, failed = (numbers_of(address, kind, stage) for kind in ("done", "started", "failed"))
    last = [note_of(address, "done", stage, number) for number in sorted(done)[-_LAST:]]
    seconds = [json.loads(content)["seconds"] for content in addresses.read_all(last)]
    running = len(started - done - failed)
    return Status(stage, count, len(done), running, sorted(failed), sum(seconds) / max(1, len(seconds)))


def failures(address: str) -> list[Failure]:
    """Return the units of a job that failed, as ``statuses``."""
    units = [(stage, number) for stage in _stages(address) for number in sorted(numbers_of(address, "failed", stage))]
    notes = addresses.read_all([note_of(address, "failed", stage, number) for stage, number in units])
    return [Failure(*unit, **json.loads(note)) for unit, note in zip(units, notes, strict=True)]


def retry(address: str) -> int:
    """Forget which units of a job failed, so that they are tried again, and return their number; as ``statuses``."""
    failed = failures(address)
    for failure in failed:
        for kind in ("started", "failed"):
            addresses.remove(note_of(address, kind, failure.stage, failure.unit))
    return len(failed)
