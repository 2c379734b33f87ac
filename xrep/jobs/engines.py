"""The engines that do the units of a job: this process, the tasks of a Slurm array or of torchrun, or a Ray cluster.

An engine only chooses who does which unit. All of them end in ``work``, the loop of one worker, and the markers of the
job are all that workers know of each other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xrep.errors import UserError
from xrep.interrupts import Interrupted
from xrep.jobs.notes import DONE, FAILED
from xrep.jobs.outputs import prepare_job
from xrep.jobs.plan import LOCK_FILE, ChoiceError, Job, MachineError
from xrep.jobs.work import Engine, WorkerShare, share_of, work
from xrep.store.addresses import is_local, join

Finish = Callable[[], dict[str, Any]]
LOCAL = Engine()


def run_job(
    job: Job, engine: Engine, finish: Finish, output: str, *, show_progress: bool, share: WorkerShare | None = None
) -> dict[str, Any] | None:
    """Do what is left of a job, or this process's share of it, and return what ``finish`` returns, which makes the
    output of the results when all is done. None: another process makes it, or has made it.

    Args:
        output: The address of what ``finish`` writes. It may be called by several processes.
        share: What this process does; None: what the environment says.

    Raises:
        UserError: Of a unit, or as ``Job.begin``; another process is at work there; or some units failed.
        Interrupted: Ctrl-C was pressed, and the unit that was being worked on is done; units on Ray are given up.
    """
    share = share or share_of(engine)
    shared = share.count > 1
    prepare_job(output)
    with _locked(job, output, shared):
        if not job.begin(output if shared else None):
            return None
        try:
            if engine.engine == "ray":
                from xrep.jobs.ray_engine import run_on_ray

                is_done = run_on_ray(job, engine, show_progress)
            else:
                is_done = work(job, share, show_progress and not share.number)
            result = finish() if is_done else None
        except (UserError, OSError, KeyboardInterrupt) as error:
            if not isinstance(error, UserError | FileNotFoundError) or not job.has_ended():
                _stop(job, error, shared)
            result = None  # another process has removed what this one was about to read
        if result is None:
            job.clear(keep=shared)  # this process may have made folders anew while the other one removed them
        else:
            job.finish(keep=shared)
    return result


def _stop(job: Job, error: BaseException, shared: bool) -> None:
    """Raise the error that ended the work, and remove the job if nothing of it is of use."""
    if isinstance(error, ChoiceError):
        cure = f"{error.cure}; what is done is in {job.address}, and the command goes on from there"
        raise UserError(error.problem, path=error.path, cure=cure) from None
    # A user changes what is wrong, and then nothing of this fits, unless the rest of the units is done.
    kept = FAILED if isinstance(error, UserError) and not isinstance(error, MachineError) else DONE
    saved = shared or any(job.notes(stage).numbers(kept) for stage in job.stages)
    if not saved:
        job.clear()
    if not isinstance(error, KeyboardInterrupt):
        raise error
    done = f"what is done is in {job.address}, and the same command goes on from there"
    raise Interrupted(done if saved else "nothing is saved yet") from None


@contextmanager
def _locked(job: Job, output: str, shared: bool) -> Iterator[None]:
    """Context manager that keeps others out but those who share the work, where files can be locked."""
    if not is_local(job.address):
        yield
        return
    with open(join(job.address, LOCK_FILE), "a") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            cure = "wait for it, or write elsewhere"
            raise UserError("another process is writing it", path=output, cure=cure) from None
        except OSError:
            pass  # some network file systems do not support locks
        yield
