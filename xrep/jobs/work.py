"""What each worker of a job does, with whatever engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from xrep.errors import UserError
from xrep.interrupts import StopRequest
from xrep.jobs.plan import Job, Stage
from xrep.progress import Counter

_PATIENCE = 60.0
"""Seconds, beside three times what the longest unit took, after which a unit is done anew whose worker was not heard
of."""
_PAUSE = 0.2, 5.0
"""Seconds between two looks at what the others have done, at first and at most."""


@dataclass(frozen=True)
class Share:
    """The number of a worker, from 0, and the number of workers."""

    number: int = 0
    count: int = 1

    @property
    def worker(self) -> str:
        """The name that is noted where this worker starts a unit."""
        return f"{self.number} of {self.count}"


def work(job: Job, share: Share, show_progress: bool) -> bool:
    """Do the units of one worker, stage by stage, and return whether all units are done then; they are not if another
    process has finished the job. A worker begins with its own part of each stage, because neighbouring units read the
    same data, and helps the others when it has nothing to do."""
    for stage in job.stages:
        count = job.begin_stage(stage)
        done = job.numbers_done(stage)
        job.before[stage.name] = done
        weights = stage.weights(job) if show_progress else []
        with Counter(stage.unit, stage.name, total=sum(weights) or None, shown=show_progress) as counter:
            counter.skip(sum(weights[number] for number in done) if weights else 0)
            for number in _units(job, stage, count, share):
                stop = StopRequest()
                watching = stop.watching() if stage.is_finished_first else nullcontext()
                with watching, _heard_of(job, stage, number, share):
                    job.do(stage, number, counter.update)
                if stop.signal:
                    raise KeyboardInterrupt
        if job.is_finished():
            return False
        job.check_failures(stage)
    return True


@contextmanager
def _heard_of(job: Job, stage: Stage, number: int, share: Share) -> Iterator[None]:
    """Context manager that notes now and then that this worker is still at a unit, which no other one begins then."""
    ended = threading.Event()

    def note() -> None:
        while not ended.wait(_PATIENCE / 3):
            with suppress(OSError, UserError):
                job.claim(stage, number, share.worker, _PATIENCE)

    thread = threading.Thread(target=note, daemon=True)
    if share.count > 1:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def _units(job: Job, stage: Stage, count: int, share: Share) -> Iterator[int]:
    """Yield the units of a stage that this worker shall do, until all are done or have failed."""
    longest, pause = 0.0, _PAUSE[0]
    first = count * share.number // share.count
    order = [*range(first, count), *range(first)]
    while True:
        over = job.numbers_done(stage) | job.numbers_failed(stage)
        left = [number for number in order if number not in over]
        if not left or job.is_finished():
            return
        worked = False
        for number in left:
            if job.claim(stage, number, share.worker, _PATIENCE + 3 * longest):
                began, worked = time.monotonic(), True
                yield number
                longest = max(longest, time.monotonic() - began)
        pause = _PAUSE[0] if worked else min(2 * pause, _PAUSE[1])
        if not worked:
            time.sleep(pause)
