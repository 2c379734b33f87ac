"""Stages of numbers: a stage squares them, and a second one adds them up. Units say where and how often they ran."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from xrep.jobs import notes
from xrep.jobs.engines import LOCAL, Engine, run_job
from xrep.jobs.plan import Advance, Job, Stage

FOR_EVER = 1e6
"""Patience of programs and workers, so that a test ends in time only if they do not wait until a claim is old."""


class Squares(Stage):
    """Write the square of the number of each unit.

    Args:
        count: Number of units.
        seconds: How long each takes.
        faults: What happens in some units: "fail" raises an error, "once" only the first time, "die" kills the process.
    """

    name = "squares"

    def __init__(self, count: int, seconds: float = 0.0, faults: dict[int, str] | None = None) -> None:
        self._count, self._seconds, self._faults = count, seconds, faults or {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As in a program below; this process is a worker of Ray."""
        vars(self).update(state)
        notes._PATIENCE = FOR_EVER

    @cached_property
    def units(self) -> Sequence[int]:
        return range(self._count)

    def run(self, unit: int, folder: Path, advance: Advance) -> dict[str, Any]:
        number, job = unit, self.job
        with open(ran_file(job.address), "a", encoding="utf-8") as ran:
            ran.write(f"{number}\n")
        time.sleep(self._seconds)
        fault = self._faults.get(number)
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "fail" or (fault == "once" and runs(job.address).count(number) == 1):
            raise RuntimeError(f"unit {number} is broken")
        (folder / "square.txt").write_text(f"{number**2}\n")
        return {"square": number**2}


class Total(Stage):
    """Write the list of all squares; the only unit."""

    name = "total"

    def __init__(self, squares: Squares) -> None:
        self._squares = squares

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        files = [Path(result.files["square.txt"]) for result in self._squares.results]
        (folder / "total.txt").write_text("".join(file.read_text() for file in files))
        return {}


def ran_file(job: str) -> str:
    """Return the file that has a line for each run of a unit, beside the folder of the job."""
    return f"{job}.ran"


def runs(job: str) -> list[int]:
    """Return the units that ran, in their order, as often as they did."""
    path = Path(ran_file(job))
    return [int(line) for line in path.read_text(encoding="utf-8").split()] if path.exists() else []


def make_job(folder: Path, count: int = 12, *, seed: int = 0, **how: Any) -> Job:
    squares = Squares(count, **how)
    return Job(str(folder / "out.job"), "square", {"seed": seed, "count": count}, [squares, Total(squares)])


def total(job: Job) -> str:
    """Return the result of a job."""
    (result,) = job.stages[1].results
    return Path(result.files["total.txt"]).read_text()


def expected(count: int) -> str:
    return "".join(f"{number**2}\n" for number in range(count))


def run_here(job: Job, engine: Engine = LOCAL) -> dict[str, Any] | None:
    """Do a job, whose output is a file beside its folder."""
    output = job.address.removesuffix(".job")

    def finish() -> dict[str, Any]:
        Path(output).write_text(total(job))
        return {"total": total(job)}

    return run_job(job, engine, finish, output, show_progress=False)


if __name__ == "__main__":  # FOLDER SECONDS ENGINE
    from tests.jobs import stages  # workers of Ray can import its classes, and not those of __main__

    notes._PATIENCE = FOR_EVER
    given = stages.make_job(Path(sys.argv[1]), seconds=float(sys.argv[2]))
    done = stages.run_here(given, Engine(engine=sys.argv[3]))  # type: ignore[arg-type]
    print("shared" if done is None else "done")
