"""The engines that do the units of a job: this process, the tasks of a Slurm array or of torchrun, or a Ray cluster.

An engine only chooses who does which unit. All of them end in ``work``, the loop of one worker, and the markers of the
job are all that workers know of each other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.interrupts import Interrupted
from xrep.jobs.notes import DONE, FAILED
from xrep.jobs.outputs import prepare
from xrep.jobs.plan import KEPT, LOCK, PLAN, Job, MachineError
from xrep.jobs.status import retry
from xrep.jobs.work import Engine, Share, share_of, work
from xrep.store import addresses
from xrep.store.addresses import is_local, join

Finish = Callable[[], dict[str, Any]]
LOCAL = Engine()


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
        retry(job.address, begun=True)
        try:
            if engine.engine == "ray":
                from xrep.jobs.ray_engine import run_on_ray

                run_on_ray(job, engine, show_progress)
            elif not work(job, share, show_progress):
                return None
            result = finish()
        except MachineError:
            raise
        except (UserError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, UserError | FileNotFoundError) and _ended(job):
                return None
            # A user changes what is wrong, and then nothing of this fits, unless the rest of the units is done.
            kept = FAILED if isinstance(error, UserError) else DONE
            saved = any(job.notes(stage).numbers(kept) for stage in job.stages)
            if not saved:
                job.clear()
            if not isinstance(error, KeyboardInterrupt):
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
    result = None
    try:
        if work(job, share, show_progress and not share.number):
            result = finish()
    except (UserError, FileNotFoundError):
        if not job.is_finished():  # if it is, another process has removed what this one was about to read
            raise
    if result is not None:
        job.finish(result, keep=True)
    elif job.is_finished():  # this process may have made folders anew while the other one removed them
        job.clear(leave=KEPT)
    return result


def _ended(job: Job) -> bool:
    """Return whether another process has finished a job in an object store, which has no locks, and may have removed
    it. Then what this one has left is removed, too."""
    if is_local(job.address):
        return False
    ended = job.is_finished() or not addresses.exists(join(job.address, PLAN))
    if ended:
        job.clear()
    return ended


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
