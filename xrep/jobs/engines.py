"""The engines that do the units of a job: this process, the tasks of a Slurm array or of torchrun, or a Ray cluster.

An engine only chooses who does which unit. All of them end in ``work``, the loop of one worker, and the markers of the
job are all that workers know of each other.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.interrupts import Interrupted
from xrep.jobs.outputs import prepare
from xrep.jobs.plan import KEPT, LOCK, Job, MachineError
from xrep.jobs.status import retry
from xrep.jobs.work import Share, work
from xrep.store.addresses import is_local, join

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


def share_of(engine: Engine, environment: Mapping[str, str] | None = None) -> Share:
    """Return this process's share, which Slurm or torchrun tell in the environment. A UserError says if they do not, or
    that there is no Ray."""
    environment = os.environ if environment is None else environment
    if engine.engine == "ray":
        if importlib.util.find_spec("ray") is None:
            raise UserError("Ray is not installed", cure="pip install 'xrep[ray]'")
        return Share()
    number, count, first = "RANK", "WORLD_SIZE", 0
    if engine.engine == "slurm":
        number, count = "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"
        if number not in environment or count not in environment:
            cure = 'start it as a Slurm array: sbatch --array=0-63 --wrap "xrep-... --engine slurm"'
            raise UserError(f"the environment has no {number} and {count}", cure=cure)
        first = number_from(environment, "SLURM_ARRAY_TASK_MIN", 0)
    share = Share(number_from(environment, number, 0) - first, number_from(environment, count, 1))
    if not 0 <= share.number < share.count:
        cure = f"the environment variable {number} must count from {first}, without gaps, to {count} - 1"
        raise UserError(f"this is process {share.number} of {share.count}", cure=cure)
    return share


def number_from(environment: Mapping[str, str], variable: str, default: int) -> int:
    """Return the value of a variable of the environment; a UserError says that it is not a number."""
    text = environment.get(variable, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"the environment variable {variable} is {text!r}, not a number", cure="unset it")
    return int(text)


def run(
    job: Job, engine: Engine, finish: Finish, output: str, *, show_progress: bool, share: Share | None = None
) -> dict[str, Any] | None:
    """Do what is left of a job, and return what ``finish`` returns, which makes the output of the results. None: other
    processes had finished it, or this one has done its share.

    Args:
        output: The address of what ``finish`` writes. It may be called by several processes.
        share: What this process does; None: what the environment says.

    Raises:
        UserError: Of a unit, or as ``Job.begin``; another process is at work there; or some units failed.
        Interrupted: Ctrl-C was pressed, and the unit that was being worked on is done; units on Ray are given up.
    """
    share = share or share_of(engine)
    prepare(output)
    if share.count > 1:
        return _share(job, share, finish, output, show_progress)
    with _locked(job, output):
        job.begin()
        retry(job.address)
        _forget_starts(job)
        try:
            if engine.engine == "ray":
                from xrep.jobs.ray_engine import Size, run_on_ray

                size = Size(engine.workers, engine.cpus_per_worker, engine.gpus_per_worker)
                run_on_ray(job, size, show_progress)
            elif not work(job, share, show_progress):
                return None
            result = finish()
        except MachineError:
            raise
        except UserError:
            if _ended(job):
                return None
            # What is wrong will be changed, and then nothing of this fits.
            if not any(job.numbers_failed(stage) for stage in job.stages):
                job.clear()
            raise
        except (KeyboardInterrupt, OSError) as error:
            if isinstance(error, FileNotFoundError) and _ended(job):
                return None
            saved = any(map(job.numbers_done, job.stages))
            if not saved:
                job.clear()
            if isinstance(error, OSError):
                raise
            done = f"what is done is in {job.address}, and the same command goes on from there"
            raise Interrupted(done if saved else "nothing is saved yet") from None
        job.finish(result, keep=False)
    return result


def _share(job: Job, share: Share, finish: Finish, output: str, show_progress: bool) -> dict[str, Any] | None:
    """Do the share of one of several processes, as ``run`` does; whoever sees that all is done makes the output."""
    with _locked(job, output, waiting=True):  # so that one process alone removes what another job has left
        begun = job.begin(output)
    if not begun:
        return None
    try:
        result = finish() if work(job, share, show_progress and not share.number) else None
    except (UserError, FileNotFoundError):
        if not job.is_finished():  # if it is, another process has removed what this one was about to read
            raise
        result = None
    if result is not None:
        job.finish(result, keep=True)
    elif job.is_finished():  # this process may have made folders anew while the other one removed them
        job.clear(leave=KEPT)
    return result


def _ended(job: Job) -> bool:
    """Return whether another process has finished a job in an object store, which has no locks. Then what this one has
    left is removed, too."""
    ended = not is_local(job.address) and job.is_over()
    if ended:
        job.clear()
    return ended


def _forget_starts(job: Job) -> None:
    """Let the units begin at once that other processes had begun, none of which is at work."""
    for stage in job.stages:
        for number in job.begun(stage):
            job.release(stage, number)


@contextmanager
def _locked(job: Job, output: str, *, waiting: bool = False) -> Iterator[None]:
    """Context manager that keeps a second process from doing the same, or has it wait, where files can be locked."""
    if not is_local(job.address):
        yield
        return
    place = join(job.address, LOCK)
    with naming(place), open(place, "a") as file:
        with suppress(OSError):  # some network file systems do not support locks
            if waiting:
                fcntl.flock(file, fcntl.LOCK_EX)
            elif not try_lock(file):
                raise UserError("another process is writing it", path=output, cure="wait for it, or write elsewhere")
        yield
