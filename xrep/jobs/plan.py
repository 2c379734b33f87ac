"""A job: stages of units of work, and the folder that tells which of them are done.

Layout of the folder, which may be in an object store::

    plan.json                     what is to be done: inputs, options and stages. It is written once
    stages/STAGE.json             the number of units of a stage that has begun
    started/STAGE/0000000         the worker that does unit 0 (where several share the work)
    data/STAGE-0000000-{sha256}.NAME   what it wrote, before there is a marker
    done/STAGE/0000000.json       the marker: checksums of these files, and what else is known
    done/STAGE.json               the content of all markers of a stage that is complete
    failed/STAGE-0000000.json     why a unit could not be done, three times
    finished.json                 the result of a job that several have done, in place of all else but the plan

What units there are, and what they write, depends on the inputs and the options alone. So any number of processes of
any engine may do them, one may go on where another one was stopped, and two that do the same unit write the same.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xrep
from xrep.errors import UserError
from xrep.files import flush_to_disk, sha256_of
from xrep.store import addresses
from xrep.store.addresses import is_local, join

PLAN, FINISHED, LOCK = "plan.json", "finished.json", "lock"
COPY = "input-"
"""Beginning of the names of inputs that could be read once only, in the folder of the job."""
_BESIDE = COPY, f"{PLAN}.", f"{FINISHED}."
"""Beginnings of the names of such copies, and of files that a process was writing when it was killed."""
_FOLDERS = "done", "started", "stages", "failed", "data"
"""What is removed in this order, so that there is never a marker whose data is gone."""
_TRIES, _PAUSE = 3, 2.0
"""How often a unit is tried, and the seconds after the first time."""
_FEW = 16
"""Most markers that are not copied into one file when a stage is complete."""
_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.ENOENT}
"""Errors of the file system that will not have gone after a pause."""
Advance = Callable[[int], object]


class Result(NamedTuple):
    """What a unit has left: the addresses of its files, by their names, and facts."""

    files: dict[str, str]
    facts: dict[str, Any]

    def digest(self, name: str) -> str:
        """Return the beginning of the sha256 of a file, which is in its name."""
        return self.files[name].removesuffix(f".{name}").rpartition("-")[2]


class Stage(ABC):
    """A kind of units. Each depends on the results of earlier stages only.

    Attributes:
        name: Name in the folder of the job, of letters and hyphens.
        unit: What the progress line counts, in the plural.
    """

    name: str
    unit: str = "units"

    @abstractmethod
    def count(self, job: Job) -> int:
        """Return the number of units."""

    def weight(self, job: Job, number: int) -> int:
        """Return how much of what the progress line counts a unit is."""
        return 1

    @abstractmethod
    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        """Write the files of a unit to an empty folder and return facts, of JSON types. ``advance`` is told how much is
        done, if it is only a part of the unit."""


@dataclass(frozen=True)
class Status:
    """How far a stage is. ``count`` is None before it has begun; ``seconds`` is what one unit took on average."""

    stage: str
    count: int | None
    done: int
    running: int
    failed: list[int]
    seconds: float


class Job:
    """The folder of a job.

    Args:
        address: The folder, of which nothing is kept when the job is done.
        command: What the job does: "mine".
        facts: Everything that the results depend on, by a name that messages use.
        stages: Its stages, in their order.
    """

    def __init__(self, address: str, command: str, facts: dict[str, Any], stages: Sequence[Stage]) -> None:
        self.address, self.stages = address, stages
        self.plan = {"xrep": xrep.__version__, "command": command, **facts, "stages": [stage.name for stage in stages]}
        self.plan = json.loads(json.dumps(self.plan))
        self._results = dict[str, list[Result]]()
        self.before = dict[str, set[int]]()
        """The units of each stage that were done before this process came to it."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_results": {}, "before": {}}

    def begin(self, output: str | None = None) -> bool:
        """Write the plan, and return whether there is something to do.

        Args:
            output: What several processes make together: if it is there and the same job was finished, nothing is to
                do. None: a job that was finished is done again.

        Raises:
            UserError: An unfinished job with another plan is there.
        """
        if addresses.exists(join(self.address, FINISHED)):
            if output and addresses.exists(output) and read_json(join(self.address, PLAN)) == self.plan:
                return False
            self.clear()
        addresses.make_folder(self.address)
        if not addresses.create(join(self.address, PLAN), _json(self.plan)):
            known = read_json(join(self.address, PLAN))
            if known != self.plan:
                names = sorted(name for name in {*known, *self.plan} if known.get(name) != self.plan.get(name))
                problem = f"an unfinished command is there, which differs in {', '.join(names)}"
                raise UserError(problem, path=self.address, cure="remove it to begin anew, or write elsewhere")
        for folder in _FOLDERS:
            addresses.make_folder(join(self.address, folder))
        return True

    def check_place(self) -> None:
        """Raise a UserError if something else than a job is there."""
        names = addresses.names_in(self.address)
        is_file = is_local(self.address) and os.path.exists(self.address) and not os.path.isdir(self.address)
        if is_file or not (PLAN in names or all(name == LOCK or name.startswith(_BESIDE) for name in names)):
            cure = "rename it, or write elsewhere"
            raise UserError("not the folder of an unfinished command", path=self.address, cure=cure)

    def numbers_done(self, stage: Stage) -> set[int]:
        """Return the units of a stage that have markers."""
        return _numbers(join(self.address, "done", stage.name))

    def numbers_failed(self, stage: str) -> set[int]:
        return _numbers(self._failed(), f"{stage}-")

    def _failed(self, *names: str) -> str:
        return join(self.address, "failed", *names)

    def begin_stage(self, stage: Stage) -> int:
        """Note the number of units of a stage, and return it."""
        count = stage.count(self)
        for folder in ("done", "started"):
            addresses.make_folder(join(self.address, folder, stage.name))
        addresses.create(join(self.address, "stages", f"{stage.name}.json"), _json({"count": count}))
        return count

    def claim(self, stage: Stage, number: int, worker: str, patience: float) -> bool:
        """Return whether this worker shall do a unit: nobody else has started it, or more than ``patience`` seconds
        ago."""
        place = join(self.address, "started", stage.name, f"{number:07d}")
        if addresses.create(place, _json({"worker": worker, "time": time.time()})):
            return True
        try:
            started = read_json(place)
        except FileNotFoundError:
            return False
        if started["worker"] != worker and time.time() - started["time"] < patience:
            return False
        addresses.write(place, _json({"worker": worker, "time": time.time()}))
        return True

    def do(self, stage: Stage, number: int, advance: Advance) -> bool:
        """Do a unit and return whether this succeeded. Unexpected errors are tried three times, and then written down.

        Raises:
            UserError, OSError, MemoryError: Something is wrong that will be as wrong the next time.
        """
        for attempt in range(_TRIES):
            began = time.monotonic()
            try:
                with self._own_folder() as folder:
                    facts = stage.run(self, number, folder, advance)
                    files = {path.name: self._keep(stage, number, path) for path in sorted(folder.iterdir())}
                marker = {"files": files, "facts": facts, "seconds": round(time.monotonic() - began, 3)}
                addresses.create(self._marker(stage, number), _json(marker))
                return True
            except (UserError, MemoryError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _HOPELESS:
                    raise
                if attempt + 1 < _TRIES:
                    time.sleep(_PAUSE * 2**attempt)
                else:
                    failure = {"error": f"{type(error).__name__}: {error}", "log": traceback.format_exc()}
                    addresses.write(self._failed(f"{stage.name}-{number:07d}.json"), _json(failure))
        return False

    @contextmanager
    def _own_folder(self) -> Iterator[Path]:
        """Context manager that yields an empty folder for the files of a unit, on the file system of the job."""
        place = join(self.address, "data") if is_local(self.address) else None
        with tempfile.TemporaryDirectory(prefix=".", dir=place, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def _keep(self, stage: Stage, number: int, file: Path) -> str:
        """Move a file of a unit to the data, under a name that its content gives it, and return the checksum."""
        checksum = sha256_of(file)
        if is_local(self.address):
            flush_to_disk(file)
        addresses.put(file, self._data(stage.name, number, file.name, checksum))
        return checksum

    def _data(self, stage: str, number: int, name: str, checksum: str) -> str:
        return join(self.address, "data", f"{stage}-{number:07d}-{checksum[:16]}.{name}")

    def _marker(self, stage: Stage, number: int) -> str:
        return join(self.address, "done", stage.name, f"{number:07d}.json")

    def results(self, stage: Stage) -> list[Result]:
        """Return the results of all units of a stage that is complete."""
        if stage.name not in self._results:
            whole = join(self.address, "done", f"{stage.name}.json")
            try:
                markers = json.loads(addresses.read(whole))
            except FileNotFoundError:
                count = read_json(join(self.address, "stages", f"{stage.name}.json"))["count"]
                contents = addresses.read_all([self._marker(stage, number) for number in range(count)])
                markers = [[marker["files"], marker["facts"]] for marker in map(json.loads, contents)]
                if count > _FEW:
                    addresses.create(whole, json.dumps(markers).encode())
            self._results[stage.name] = [
                Result({name: self._data(stage.name, number, name, digest) for name, digest in files.items()}, facts)
                for number, (files, facts) in enumerate(markers)
            ]
        return self._results[stage.name]

    def check_failures(self, stage: Stage) -> None:
        """Raise a UserError if units of a stage could not be done."""
        if failed := sorted(self.numbers_failed(stage.name)):
            first = read_json(self._failed(f"{stage.name}-{failed[0]:07d}.json"))
            problem = f"{len(failed):,} units of {stage.name} failed, the first one with {first['error']}"
            cure = f"xrep-jobs status {self.address} shows more; xrep-jobs retry, and the same command, try them again"
            raise UserError(problem, path=self.address, cure=cure)

    def retry(self, stage: str) -> int:
        """Forget which units of a stage failed, so that they are tried again, and return their number."""
        failed = self.numbers_failed(stage)
        for number in failed:
            addresses.remove(join(self.address, "started", stage, f"{number:07d}"))
            addresses.remove(self._failed(f"{stage}-{number:07d}.json"))
        return len(failed)

    def is_finished(self) -> bool:
        return addresses.exists(join(self.address, FINISHED))

    def finish(self, result: dict[str, Any], *, keep: bool) -> None:
        """Remove what the job has left. If several processes do it, ``keep`` a record, by which the others see it."""
        if keep:
            addresses.write(join(self.address, FINISHED), _json(result))
        self.clear(keep)

    def clear(self, keep: bool = False) -> None:
        """Remove the files of the job, and its folder unless somebody else has put something there."""
        beside = [name for name in addresses.names_in(self.address) if name.startswith(_BESIDE)]
        for name in (*_FOLDERS, *beside, *(() if keep else (FINISHED, PLAN, LOCK))):
            addresses.remove(join(self.address, name))
        if is_local(self.address) and os.path.isdir(self.address) and not os.listdir(self.address):
            os.rmdir(self.address)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def read_json(address: str) -> Any:
    """Read a file of a job; a UserError says that it is damaged."""
    try:
        return json.loads(addresses.read(address))
    except ValueError:
        raise UserError("a damaged file", path=address, cure="remove the folder to begin anew") from None


def statuses(address: str) -> list[Status]:
    """Return how far each stage of a job is; a UserError says that there is no job at the address."""
    try:
        plan = read_json(join(address, PLAN))
    except FileNotFoundError:
        raise UserError(f"no job: it has no {PLAN}", path=address, cure="name the folder that ends in .job") from None
    return [_status(address, stage) for stage in plan["stages"]]


def _status(address: str, stage: str) -> Status:
    begun = join(address, "stages", f"{stage}.json")
    count = read_json(begun)["count"] if addresses.exists(begun) else None
    done, started = (_numbers(join(address, kind, stage)) for kind in ("done", "started"))
    failed = _numbers(join(address, "failed"), f"{stage}-")
    last = [join(address, "done", stage, f"{number:07d}.json") for number in sorted(done)[-_FEW:]]
    seconds = [json.loads(content)["seconds"] for content in addresses.read_all(last)]
    running = len(started - done - failed)
    return Status(stage, count, len(done), running, sorted(failed), sum(seconds) / max(1, len(seconds)))


def _numbers(folder: str, prefix: str = "") -> set[int]:
    """Return the units whose files are in a folder, as the end of their names."""
    pattern = re.compile(re.escape(prefix) + r"(\d{7,})(\.json)?")
    return {int(match[1]) for name in addresses.names_in(folder) if (match := pattern.fullmatch(name))}
