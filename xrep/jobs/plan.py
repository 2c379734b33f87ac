"""A job: stages of units of work, and the folder that tells which of them are done.

Layout of the folder, which may be in an object store::

    plan.json                     what is to be done: inputs, options and stages. Only choices of the last stage change
    started/STAGE.json            the number of units of a stage that has begun
    started/STAGE/0000000.json    the worker that does unit 0, the number of its tries, and that it is still at it
    data/STAGE-0000000-{sha256}.NAME   what it wrote, before there is a marker
    done/STAGE/0000000.json       the marker: checksums of these files, and what else is known
    done/STAGE.json               the content of all markers of a stage that is complete
    failed/STAGE/0000000.json     why a unit could not be done, three times
    finished.json                 the plan of a job that several have done, in place of all else

What units there are, and what they write, depends on the inputs and the options alone. So any number of processes of
any engine may do them, one may go on where another one was stopped, and two that do the same unit write the same.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.jobs.notes import DONE, FAILED, FINISHED, NOTE_KINDS, PLAN, STARTED, TRIES, Notes, json_bytes, read_job_file
from xrep.progress import Advance
from xrep.store import addresses
from xrep.store.addresses import is_local, join
from xrep.store.arrays import ArrayFile
from xrep.version import __version__

LOCK_FILE = "lock"
COPY = "input-"
"""Beginning of the names of inputs that could be read once only, in the folder of the job."""
BESIDE = COPY, f"{PLAN}.", f"{FINISHED}."
"""Beginnings of the names of such copies, and of files that a process was writing when it was killed."""
_FOLDERS = *NOTE_KINDS, "data"
"""What is removed in this order, so that there is never a marker whose data is gone."""
_PAUSE = 2.0
"""Seconds before a unit is tried the second time."""
_FEW = 16
"""Most markers that are not copied into one file when a stage is complete."""
_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.ENOENT}
"""Errors of the file system that will not have gone after a pause."""


class MachineError(UserError):
    """Something is wrong with a machine of several. What is done of the job is kept, because the command is right."""


class ChoiceError(UserError):
    """Another value of the last stage's ``choices`` is needed. What is done of the job is kept, because it fits."""


class UnitResult(NamedTuple):
    """What a unit has left: the addresses of its files, by their names, and facts."""

    files: dict[str, str]
    facts: dict[str, Any]

    def digest(self, name: str) -> str:
        """Return the beginning of the sha256 of a file, which is in its name."""
        return self.files[name].removesuffix(f".{name}").rpartition("-")[2]

    def array(self, name: str) -> ArrayFile:
        """Open a file that is an array."""
        return ArrayFile.open(self.files[name], "numbers", "remove the folder to begin anew")


class Remade:
    """A class whose cached properties are left out when it is pickled: another process computes them again."""

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self)
        return {name: it for name, it in vars(self).items() if not isinstance(getattr(kind, name, 0), cached_property)}


class Stage(Remade, ABC):
    """A kind of units. Each depends on the results of earlier stages only.

    Attributes:
        name: Name in the folder of the job, of letters and hyphens.
        unit: What the progress line counts, in the plural.
        is_finished_first: Whether Ctrl-C waits for the unit that is being done; else it ends at once, and is done anew.
        choices: Facts of the plan that this stage alone reads, if it is the last one. As long as it is not done, the
            same command may go on with other values.
        job: The job that has this stage.
    """

    name: str
    unit: str = "units"
    is_finished_first: bool = True
    choices: Sequence[str] = ()
    job: Job

    @cached_property
    def units(self) -> Sequence[Any]:
        """What each unit is, which ``run`` is told. It is asked when the earlier stages are complete. Unless a stage
        says something else, there is one unit."""
        return [None]

    def weight(self, unit: Any) -> int:
        """Return how much of what the progress line counts a unit is."""
        return 1

    @abstractmethod
    def run(self, unit: Any, folder: Path, advance: Advance) -> dict[str, Any]:
        """Write the files of a unit to an empty folder and return facts, of JSON types. ``advance`` is told how much is
        done, if it is only a part of the unit."""

    @cached_property
    def results(self) -> list[UnitResult]:
        """The results of all units, which must be done."""
        whole = join(self.job.address, DONE, f"{self.name}.json")
        try:
            markers = json.loads(addresses.read(whole))
        except FileNotFoundError:
            found = self.job.notes(self).read(DONE, range(len(self.units)))
            markers = [[marker["files"], marker["facts"]] for marker in found]
            if len(markers) > _FEW:
                addresses.create(whole, json.dumps(markers).encode())
        return [
            UnitResult({name: self.data(number, name, digest) for name, digest in files.items()}, facts)
            for number, (files, facts) in enumerate(markers)
        ]

    def data(self, number: int, name: str, checksum: str) -> str:
        """Return the address of a file of a unit, whose name comes from its content."""
        return join(self.job.address, "data", f"{self.name}-{number:07d}-{checksum[:16]}.{name}")


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
        for stage in stages:
            stage.job = self
        self.plan = {"xrep": __version__, "command": command, **facts, "stages": [stage.name for stage in stages]}
        self.plan = json.loads(json.dumps(self.plan))
        self.before = dict[str, set[int]]()
        """The units of each stage that were done before this process came to it."""

    def begin(self, output: str | None = None) -> bool:
        """Write the plan, and return whether there is something to do.

        Args:
            output: What several processes make together: if it is there and the same job was finished, nothing is to
                do. None: a job that was finished is done again.

        Raises:
            UserError: An unfinished job with another plan is there.
        """
        addresses.make_folder(self.address)
        plan, finished = join(self.address, PLAN), join(self.address, FINISHED)
        created = addresses.create(plan, json_bytes(self.plan))
        if not created and (known := read_job_file(plan)) != self.plan:
            names, last = {*known, *self.plan}, self.stages[-1]
            names = {name for name in names if known.get(name) != self.plan.get(name)}
            if not names <= {*last.choices} or self.notes(last).numbers(DONE):
                problem = f"an unfinished command is there, which differs in {', '.join(sorted(names))}"
                raise UserError(problem, path=self.address, cure="remove it to begin anew, or write elsewhere")
            addresses.write(plan, json_bytes(self.plan))
        if addresses.exists(finished):
            if output and self.has_made(output):
                if created:
                    addresses.remove(plan)
                return False
            addresses.remove(finished)
        for kind in (STARTED, FAILED) if output is None else ():  # nobody else is at work, and all is tried again
            addresses.remove(join(self.address, kind))
        for folder in ("data", *[join(kind, stage.name) for kind in NOTE_KINDS for stage in self.stages]):
            addresses.make_folder(join(self.address, folder))
        self.before = {stage.name: self.notes(stage).numbers(DONE) for stage in self.stages}
        return True

    def has_made(self, output: str) -> bool:
        """Return whether several processes have finished the same job, and its output is there."""
        finished = join(self.address, FINISHED)
        return addresses.exists(finished) and addresses.exists(output) and read_job_file(finished) == self.plan

    def has_ended(self) -> bool:
        """Return whether another process has finished the job since this one began it. In an object store, which has no
        locks, it may be one that knew nothing of this process, and has left no record."""
        if addresses.exists(join(self.address, FINISHED)):
            return True
        return not is_local(self.address) and not addresses.exists(join(self.address, PLAN))

    def notes(self, stage: Stage) -> Notes:
        """Return what is noted of the units of a stage."""
        return Notes(self.address, stage.name)

    def do(self, stage: Stage, number: int, advance: Advance) -> bool:
        """Do a unit and return whether this succeeded. Unexpected errors are tried three times, and then written down.

        Raises:
            UserError, OSError, MemoryError: Something is wrong that will be as wrong the next time.
        """
        place = join(self.address, "data") if is_local(self.address) else None  # on the file system of the job
        for attempt in range(TRIES):
            began = time.monotonic()
            try:
                with tempfile.TemporaryDirectory(prefix=".", dir=place, ignore_cleanup_errors=True) as folder:
                    facts = stage.run(stage.units[number], Path(folder), advance)
                    written = sorted(Path(folder).iterdir())
                    files = {path.name: sha256_of(path) for path in written}
                    for path in written:
                        addresses.publish(path, stage.data(number, path.name, files[path.name]))
                marker = {"files": files, "facts": facts, "seconds": round(time.monotonic() - began, 3)}
                addresses.create(self.notes(stage).place(DONE, number), json_bytes(marker))
                return True
            except (UserError, MemoryError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _HOPELESS:
                    raise
                if attempt + 1 < TRIES:
                    time.sleep(_PAUSE * 2**attempt)
                else:
                    self.notes(stage).fail(number, f"{type(error).__name__}: {error}", traceback.format_exc())
        return False

    def check_failures(self, stage: Stage) -> None:
        """Raise a UserError if units of a stage could not be done."""
        if failed := self.notes(stage).failures():
            problem = f"{len(failed):,} units of {stage.name} failed, the first one with {failed[0]['error']}"
            cure = f"xrep-jobs status {self.address} shows more; xrep-jobs retry, and the same command, try them again"
            raise UserError(problem, path=self.address, cure=cure)

    def finish(self, *, keep: bool) -> None:
        """Remove what the job has left. If several processes do it, ``keep`` a record, by which the others see it. In
        an object store others may see it while the rest is removed."""
        if keep or not is_local(self.address):
            addresses.write(join(self.address, FINISHED), json_bytes(self.plan))
        self.clear(keep=keep)

    def clear(self, *, keep: bool = False) -> None:
        """Remove the files of the job but the record that it is finished if that is to ``keep``, and its folder unless
        somebody else has put something there. What no marker may outlive goes last."""
        beside = [name for name in addresses.names_in(self.address) if name.startswith(BESIDE)]
        for name in (*_FOLDERS, PLAN, *beside, *(() if keep else (FINISHED, LOCK_FILE))):
            addresses.remove(join(self.address, name))
        if not os.path.isfile(self.address) and not addresses.names_in(self.address):
            addresses.remove(self.address)
