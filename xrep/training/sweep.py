"""A search over values of options: one run for each combination and seed, several at a time, ranked by validation."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from xrep.config import RunConfig
from xrep.files import naming
from xrep.interrupts import Interrupted, StopRequest
from xrep.training.run import SUMMARY
from xrep.training.stages import is_finished
from xrep.workers import processors


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a search. ``values`` are those of the grid, by key; ``options`` are all of xrep-train."""

    values: Mapping[str, str]
    directory: Path
    options: Sequence[str]

    @property
    def log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.log")


@dataclass(frozen=True)
class Ranked:
    """The validation of one combination of values: a score for each of its seeds, their mean and their deviation."""

    trials: Sequence[Trial]
    metric: str
    scores: Sequence[float]
    mean: float
    deviation: float


def trials_of(
    grid: Mapping[str, Sequence[str]], seeds: Sequence[str], directory: Path, options: Sequence[str]
) -> list[Trial]:
    """Return the runs of a grid, in the order in which they are trained: all combinations of a seed, then the next.
    Without seeds, that of the configuration is used. All runs have the ``options`` of xrep-train."""
    trials = []
    for seed, *point in itertools.product(seeds or [""], *grid.values()):
        values = dict(zip(grid, point, strict=True))
        given = values | ({"seed": seed} if seed else {})
        named = "-".join(f"{_short(key)}{value}" for key, value in given.items())
        place = directory / re.sub(r"[^\w.+-]", "_", named)[:200]
        own = [f"{key}={value}" for key, value in given.items()]
        trials.append(Trial(values, place, [*options, *own, f"checkpoint.save_dir={place}"]))
    return trials


def _short(key: str) -> str:
    """Return the name of an option, which of a stage is ``stages.second.optimizer.lr``, for that of a directory."""
    parts = key.split(".")
    return f"{parts[1]}.{parts[-1]}" if parts[0] == "stages" else parts[-1]


def run_trials(
    program: Sequence[str],
    trials: Sequence[Trial],
    courses: Sequence[Sequence[RunConfig]],
    parallel: int,
    say: Callable[[str], object],
) -> dict[Trial, str]:
    """Train those runs that are not finished, ``parallel`` at a time; return the errors of those that failed.

    What a run prints is in its log, beside its directory. Processors and GPUs are shared among the runs. A run that a
    killed sweep has left behind is waited for. ``program`` is the command that takes the options of a run, and
    ``courses`` has the stages of each trial. Raises Interrupted after Ctrl-C, SIGTERM or SIGUSR1; the runs have saved
    what is done.
    """
    course, others = dict(zip(trials, courses, strict=True)), set[Trial]()
    waiting = [trial for trial, runs in course.items() if not all(map(is_finished, runs))]
    if len(waiting) < len(trials):
        say(f"{len(trials) - len(waiting)} of {len(trials)} runs are finished already")
    free, total, told, failed = _environments(parallel), len(waiting), False, dict[Trial, str]()
    running: dict[Trial, tuple[subprocess.Popen[Any], dict[str, str]]] = {}
    with StopRequest(signal.SIGTERM, signal.SIGUSR1).watching() as stop:
        while (waiting and not stop.signal) or running:
            for trial in list(waiting):
                if not free or stop.signal:
                    break
                with naming(trial.log), open(trial.log, "ab") as log:
                    if not _lock(log):
                        if trial not in others:
                            say(f"{trial.directory.name}: a run of an earlier sweep trains it; waiting for its end")
                        others.add(trial)
                        continue
                    waiting.remove(trial)
                    if trial in others and all(map(is_finished, course[trial])):
                        say(f"{total - len(waiting) - len(running)} of {total}: {trial.directory.name}")
                        continue
                    environment = free.pop(0)
                    # In a session of its own, a run gets the Ctrl-C of the terminal once, from here.
                    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                    process = subprocess.Popen(
                        [*program, *trial.options], **streams, env=environment, start_new_session=True
                    )
                running[trial] = process, environment
            for trial, (process, environment) in list(running.items()):
                if process.poll() is not None:
                    del running[trial]
                    free.append(environment)
                    if process.returncode and not stop.signal:
                        lines = trial.log.read_bytes()[-10_000:].decode("utf-8", "replace").splitlines()
                        failed[trial] = lines[-1] if lines else f"ended with exit code {process.returncode}"
                    how = ": failed" if trial in failed else ""
                    say(f"{total - len(waiting) - len(running)} of {total}: {trial.directory.name}{how}")
            if stop.signal and not told:
                told = True
                for process, _ in running.values():
                    process.send_signal(signal.SIGINT)
            time.sleep(0.1)
    if stop.signal:
        raise Interrupted("the runs saved what is done, and the same command goes on from there")
    return failed


def _lock(log: IO[bytes]) -> bool:
    """Lock the log of a run until all that have inherited it close it, the run among them, which may outlive a sweep
    that is killed; return whether no other process has it locked."""
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems do not support locks
        return True
    return True


def _environments(parallel: int) -> list[dict[str, str]]:
    """Return the environment of each of the runs that train at a time, with its share of the processors and its GPU."""
    if parallel == 1:
        return [dict(os.environ)]
    count, given = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = (given.split(",") if given else list(map(str, range(count))))[:count]
    shared = {"OMP_NUM_THREADS": str(max(1, processors() // parallel)), **os.environ}
    return [shared | ({"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} if gpus else {}) for n in range(parallel)]


def ranking(trials: Sequence[Trial], stage: str = "") -> list[Ranked]:
    """Return the combinations whose runs have finished, the best first, by the mean over their seeds.

    Args:
        stage: Name of the last stage of the runs, by which they are ranked; empty if they have no stages.
    """
    finished: dict[tuple[str, ...], list[tuple[Trial, dict[str, Any]]]] = {}
    for trial in trials:
        if (summary := trial.directory / stage / SUMMARY).is_file():
            best = json.loads(summary.read_text(encoding="utf-8"))["best"]
            finished.setdefault(tuple(trial.values.values()), []).append((trial, best))
    ranked = []
    for own in finished.values():
        scores = [float(best["value"]) for _, best in own]
        deviation = statistics.stdev(scores) if len(scores) > 1 else 0.0
        metric = own[0][1]["metric"]
        ranked.append(Ranked([trial for trial, _ in own], metric, scores, statistics.fmean(scores), deviation))
    upward = all(best["maximize"] for own in finished.values() for _, best in own)
    return sorted(ranked, key=lambda each: each.mean, reverse=upward)
