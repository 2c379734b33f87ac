"""The engines that do the units of a job: this process, the tasks of a Slurm array or of torchrun, or a Ray cluster.

An engine only chooses who does which unit. All of them end in ``work``, the loop of one worker, and the markers of the
job are all that workers know of each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.interrupts import Interrupted, StopRequest
from xrep.jobs.outputs import prepare
from xrep.jobs.plan import LOCK, Job, Stage
from xrep.progress import Counter
from xrep.store.addresses import is_local, join

_PATIENCE = 60.0
"""Seconds, beside three times what the longest unit took, after which a unit that another worker has begun is done
anew."""
_PAUSE = 0.2, 5.0
"""Seconds between two looks at what the others have done, at first and at most."""
Finish = Callable[[], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the units of a job are done."""

    engine: Literal["local", "slurm", "ray"] = "local"
    """local: this process, or those that torchrun starts. slurm: the tasks of an array, each of which runs this
    command. ray: the cluster that RAY_ADDRESS names or, without it, the processors and GPUs of this machine."""
    workers: int | None = None
    """Number of processes that Ray starts; none: one for each GPU, or else for each cpus_per_worker processors."""
    cpus_per_worker: int = 1
    """Number of processors for each process of Ray."""
    gpus_per_worker: float = 0
    """Number of GPUs for each process of Ray, such as 0.5 for two processes on each."""

    @property
    def is_shared(self) -> bool:
        """Whether several processes do the job, of which this is one."""
        return share_of(self).count > 1


LOCAL = Engine()


@dataclass(frozen=True)
class Share:
    """The number of a worker, from 0, and the number of workers."""

    number: int = 0
    count: int = 1


def share_of(engine: Engine, environment: Mapping[str, str] | None = None) -> Share:
    """Return this process's share, which Slurm or torchrun tell in the environment. A UserError says if they do not."""
    environment = os.environ if environment is None else environment
    number, count, first = "RANK", "WORLD_SIZE", 0
    if engine.engine == "slurm":
        number, count = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"
        if number not in environment or count not in environment:
            cure = 'start it as a Slurm array: sbatch --array=0-63 --wrap "xrep-... --engine slurm"'
            raise UserError(f"the environment has no {number} and {count}", cure=cure)
        first = number_from(environment, "SLURM_ARRAY_TASK_MIN", 0)
    share = Share(number_from(environment, number, 0) - first, number_from(environment, count, 1))
    if not 0 <= share.number < share.count:
        cure = f"{number} must count from {first}, without gaps, to {count} - 1"
        raise UserError(f"this is process {share.number} of {share.count}", cure=cure)
    return share


def number_from(environment: Mapping[str, str], variable: str, default: int) -> int:
    """Return the value of a variable of the environment; a UserError says that it is not a number."""
    text = environment.get(variable, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"the environment variable {variable} is {text!r}, not a number", cure="unset it")
    return int(text)


def run(job: Job, engine: Engine, finish: Finish, output: str, *, show_progress: bool) -> dict[str, Any] | None:
    """Do what is left of a job, and return what ``finish`` returns, which makes the output of the results. None: other
    processes had finished it, or this one has done its share.

    Args:
        output: The address of what ``finish`` writes. It may be called by several processes.

    Raises:
        UserError: Of a unit, or as ``Job.begin``; another process is at work there; or some units failed.
        Interrupted: Ctrl-C was pressed, and the unit that was being worked on is done.
    """
    share = share_of(engine)
    job.check_place()
    prepare(job.address, output)
    if share.count > 1:
        return _share(job, share, finish, output, show_progress)
    with _locked(job, output):
        job.begin()
        for stage in job.stages:
            job.retry(stage.name)
        try:
            if engine.engine == "ray":
                from xrep.jobs.ray_engine import run_on_ray

                run_on_ray(job, engine, show_progress)
            else:
                work(job, share, show_progress)
            result = finish()
        except UserError:  # what is wrong will be changed, and then nothing of this fits
            if not any(job.numbers_failed(stage.name) for stage in job.stages):
                job.clear()
            raise
        except KeyboardInterrupt:
            if not any(map(job.numbers_done, job.stages)):
                job.clear()
                raise Interrupted("nothing is saved yet") from None
            done = f"what is done is in {job.address}, and the same command goes on from there"
            raise Interrupted(done) from None
        job.finish(result, keep=False)
    return result


def _share(job: Job, share: Share, finish: Finish, output: str, show_progress: bool) -> dict[str, Any] | None:
    """Do the share of one of several processes, as ``run`` does; whoever sees that all is done makes the output."""
    if not job.begin(output):
        return None
    try:
        result = finish() if work(job, share, show_progress and not share.number) else None
    except (FileNotFoundError, UserError):  # which name what is no longer there if another process has finished
        if not job.is_finished():
            raise
        return None
    if result is not None:
        job.finish(result, keep=True)
    return result


@contextmanager
def _locked(job: Job, output: str) -> Iterator[None]:
    """Context manager that keeps a second process from doing the same job, where files can be locked."""
    if not is_local(job.address):
        yield
        return
    place = join(job.address, LOCK)
    with naming(place), open(place, "a") as file:
        with suppress(OSError):  # some network file systems do not support locks
            if not try_lock(file):
                raise UserError("another process is writing it", path=output, cure="wait for it, or write elsewhere")
        yield


def work(job: Job, share: Share, show_progress: bool) -> bool:
    """Do the units of one worker, stage by stage, and return whether all units are done then; they are not if another
    process has finished the job. A worker begins with its own part of each stage, because neighbouring units read the
    same data, and helps the others when it has nothing to do."""
    for stage in job.stages:
        count = job.begin_stage(stage)
        done = job.numbers_done(stage)
        job.before[stage.name] = done
        weights = [stage.weight(job, number) for number in range(count)] if show_progress else []
        with Counter(stage.unit, stage.name, total=sum(weights) or None, shown=show_progress) as counter:
            counter.skip(sum(weights[number] for number in done) if weights else 0)
            units = range(count) if share.count == 1 else _shared_units(job, stage, count, share)
            for number in units:
                if number in done:
                    continue
                with StopRequest().watching() as stop:
                    job.do(stage, number, counter.update)
                if stop.signal:
                    raise KeyboardInterrupt
        if share.count > 1 and job.is_finished():
            return False
        job.check_failures(stage)
    return True


def _shared_units(job: Job, stage: Stage, count: int, share: Share) -> Iterator[int]:
    """Yield the units of a stage that this worker shall do, until all are done or have failed."""
    worker, longest, pause = f"{share.number} of {share.count}", 0.0, _PAUSE[0]
    first = count * share.number // share.count
    order = [*range(first, count), *range(first)]
    while True:
        over = job.numbers_done(stage) | job.numbers_failed(stage.name)
        left = [number for number in order if number not in over]
        if not left or job.is_finished():
            return
        worked = False
        for number in left:
            if job.claim(stage, number, worker, _PATIENCE + 3 * longest):
                began, worked = time.monotonic(), True
                yield number
                longest = max(longest, time.monotonic() - began)
        pause = _PAUSE[0] if worked else min(2 * pause, _PAUSE[1])
        if not worked:
            time.sleep(pause)
