"""The share of each worker of a job, and what it does, with whatever engine."""

from __future__ import annotations

import importlib.util
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

from xrep.config.fields import Count, NotNegative, check_options
from xrep.errors import UserError
from xrep.interrupts import StopRequest
from xrep.jobs.notes import DONE, FAILED, Notes
from xrep.jobs.plan import Job
from xrep.progress import Counter

_PAUSE = 0.2, 5.0
"""Seconds between two looks at what the others have done, at first and at most."""


@dataclass(frozen=True)
class WorkerShare:
    """The number of a worker, from 0, and the number of workers."""

    number: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number} of {self.count}"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the units of a job are done."""

    engine: Literal["local", "slurm", "ray"] = "local"
    """local: this process, or those that torchrun starts. slurm: the tasks of an array, each of which runs this
    command. ray: the cluster that RAY_ADDRESS names or, without it, the processors and GPUs of this machine."""
    workers: Count | None = None
    """Number of processes that Ray starts. none: one for each GPU or, without GPUs, for each cpus_per_worker
    processors."""
    cpus_per_worker: Count = 1
    """Number of processors for each process of Ray."""
    gpus_per_worker: NotNegative = 0
    """Number of GPUs for each process of Ray, such as 0.5 for two processes on each."""

    def __post_init__(self) -> None:
        check_options(self)

    def problems(self) -> list[str]:
        of_ray = ("workers", "cpus_per_worker", "gpus_per_worker") if self.engine != "ray" else ()
        changed = [name for name in of_ray if getattr(self, name) != getattr(Engine, name)]
        return [f"{name} is an option of Ray; add `engine` ray, or leave it out" for name in changed]


def share_of(engine: Engine, environment: Mapping[str, str] | None = None) -> WorkerShare:
    """Return this process's share, which Slurm or torchrun tell in the environment. A UserError says if they do not, or
    that there is no Ray."""
    environment = os.environ if environment is None else environment
    if engine.engine == "ray":
        if importlib.util.find_spec("ray") is None:
            raise UserError("Ray is not installed", cure="pip install 'xrep[ray]'")
        return WorkerShare()
    number, count, first = "RANK", "WORLD_SIZE", 0
    if engine.engine == "slurm":
        number, count = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"
        if number not in environment or count not in environment:
            cure = 'start it as a Slurm array: sbatch --array=0-63 --wrap "xrep-... --engine slurm"'
            raise UserError(f"the environment has no {number} and {count}", cure=cure)
        first = number_from(environment, "SLURM_ARRAY_TASK_MIN", 0)
    share = WorkerShare(number_from(environment, number, 0) - first, number_from(environment, count, 1))
    if not 0 <= share.number < share.count:
        cure = f"the environment variable {number} must count from {first}, without gaps, to {first + share.count - 1}"
        raise UserError(f"this is process {share.number} of {share.count}", cure=cure)
    return share


def number_from(environment: Mapping[str, str], variable: str, default: int) -> int:
    """Return the value of a variable of the environment; a UserError says that it is not a number."""
    text = environment.get(variable, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"the environment variable {variable} is {text!r}, not a number", cure="unset it")
    return int(text)


def work(job: Job, share: WorkerShare, show_progress: bool) -> bool:
    """Do the units of one worker, stage by stage, and return whether all units are done then; they are not if another
    process has finished the job. A worker begins with its own part of each stage, because neighbouring units read the
    same data, and helps the others when it has nothing to do."""
    for stage in job.stages:
        notes = job.notes(stage)
        count = notes.begin(len(stage.units))
        weights = [stage.weight(unit) for unit in stage.units] if show_progress else []
        done = sum(weights[number] for number in job.before[stage.name]) if weights else 0
        with Counter(stage.unit, stage.name, done=done, total=sum(weights) or None, shown=show_progress) as counter:
            for number in _units(job, notes, count, share):
                stop = StopRequest()
                watching = stop.watching() if stage.is_finished_first else nullcontext()
                with watching, notes.kept(number) if share.count > 1 else nullcontext():
                    job.do(stage, number, counter.update)
                if stop.signal:
                    raise KeyboardInterrupt
        if job.has_ended():
            return False
        job.check_failures(stage)
    return True


def _units(job: Job, notes: Notes, count: int, share: WorkerShare) -> Iterator[int]:
    """Yield the units of a stage that this worker shall do, until all are done or have failed."""
    first, stop = (count * number // share.count for number in (share.number, share.number + 1))
    others, pause = [*range(first), *range(stop, count)], _PAUSE[0]
    random.Random(share.number).shuffle(others)  # those who help at a time choose different ones
    while True:
        over = notes.numbers(DONE, FAILED)
        left = [number for number in (*range(first, stop), *others) if number not in over]
        if not left or job.has_ended():
            return
        worked = False
        for number in left:
            if notes.claim(number, str(share)):
                worked = True
                yield number
            elif worked:
                break  # others have done much in the meantime, perhaps
        pause = _PAUSE[0] if worked else min(2 * pause, _PAUSE[1])
        if not worked:
            time.sleep(pause)
