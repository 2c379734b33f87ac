"""What a folder of a job notes of the units of a stage: which of them are done, started or failed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from typing import Any

from xrep.errors import UserError
from xrep.store import addresses
from xrep.store.addresses import join

KINDS = DONE, STARTED, FAILED = "done", "started", "failed"
COUNTS = "stages"
_NOTE = re.compile(r"\d{7,}\.json")


class Notes:
    """The notes of a stage: a JSON file for each unit and kind of note, and one with the number of units."""

    def __init__(self, job: str, stage: str) -> None:
        self.job, self.stage, self._count = job, stage, join(job, COUNTS, f"{stage}.json")

    def begin(self, count: int) -> int:
        """Note the number of units, and return it."""
        for kind in KINDS:
            addresses.make_folder(join(self.job, kind, self.stage))
        addresses.create(self._count, json_bytes({"count": count}))
        return count

    def count(self) -> int:
        """Return the number of units; a FileNotFoundError says that the stage has not begun, or the job is removed."""
        return read_json(self._count)["count"]

    def place(self, kind: str, number: int) -> str:
        """Return the address of a note of a unit."""
        return join(self.job, kind, self.stage, f"{number:07d}.json")

    def numbers(self, kind: str) -> set[int]:
        """Return the units that have a note of this kind."""
        names = addresses.names_in(join(self.job, kind, self.stage))
        return {int(name.removesuffix(".json")) for name in names if _NOTE.fullmatch(name)}

    def read(self, kind: str, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return the notes of some units, all of which have one of this kind, by their numbers."""
        numbers = list(numbers)
        contents = addresses.read_all([self.place(kind, number) for number in numbers])
        return dict(zip(numbers, map(json.loads, contents), strict=True))

    def claim(self, number: int, worker: str, patience: float) -> bool:
        """Return whether this worker shall do a unit: nobody else has started it, or more than ``patience`` seconds
        ago."""
        place, claim = self.place(STARTED, number), json_bytes({"worker": worker, "time": time.time()})
        if addresses.create(place, claim):
            return True
        try:
            started = read_json(place)
        except FileNotFoundError:
            return False
        if started["worker"] != worker and time.time() - started["time"] < patience:
            return False
        if any(addresses.exists(self.place(kind, number)) for kind in (DONE, FAILED)):
            return False  # since this worker has looked which units are left
        addresses.write(place, claim)
        return True

    def begun(self, worker: str | None = None) -> list[int]:
        """Return the units that a worker, or any one, has started and not ended."""
        numbers = sorted(self.numbers(STARTED) - self.numbers(DONE) - self.numbers(FAILED))
        if worker is None:
            return numbers
        return [number for number, claim in self.read(STARTED, numbers).items() if claim["worker"] == worker]

    def fail(self, number: int, error: str, log: str) -> None:
        """Note why a unit could not be done: an error on one line, and a traceback or what an engine says."""
        addresses.write(self.place(FAILED, number), json_bytes({"error": error, "log": log}))

    def forget(self, number: int) -> None:
        """Let anybody start a unit at once that failed, or whose worker has ended."""
        for kind in (STARTED, FAILED):
            addresses.remove(self.place(kind, number))


def json_bytes(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def read_json(address: str) -> Any:
    """Read a file of a job; a UserError says that it is damaged."""
    try:
        return json.loads(addresses.read(address))
    except ValueError:
        raise UserError("a damaged file", path=address, cure="remove the folder to begin anew") from None
