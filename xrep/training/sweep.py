"""A search over values of options: one run for each combination and seed, several at a time, ranked by validation."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xrep.config import RunConfig
from xrep.errors import UserError
from xrep.files import naming
from xrep.interrupts import Interrupted, StopRequest
from xrep.training.run import SUMMARY
from xrep.training.stages import is_finished

MOST_RUNS = 10_000


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a search. ``values`` are those of the grid, by key; ``options`` are all of xrep-train."""

    values: Mapping[str, str]
    seed: str | None
    directory: Path
    options: Sequence[str]

    @property
    def log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.log")


@dataclass(frozen=True)
class Ranked:
    """The validation of one combination of values: a value for each of its seeds."""

    trials: Sequence[Trial]
    metric: str
    scores: Sequence[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def deviation(self) -> float:
        """Standard deviation over the seeds; 0 for one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0


def trials_of(
    grid: Mapping[str, Sequence[str]], seeds: Sequence[str], directory: Path, options: Sequence[str]
) -> list[Trial]:
    """Return the runs of a grid, in the order in which they are trained: all combinations of a seed, then the next.

    Args:
        grid: Values of each key, such as ``optimizer.lr``.
        seeds: Empty: the seed of the configuration.
        options: Options of xrep-train that all runs have.

    Raises:
        UserError: There are too many runs, or two of them would have the same directory.
    """
    trials = list[Trial]()
    count = len(seeds or [None])
    for values in grid.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise UserError(f"a grid of {count:,} runs", cure=f"search at most {MOST_RUNS:,} at once")
    for seed in seeds or [None]:
        for point in itertools.product(*grid.values()):
            values = dict(zip(grid, point, strict=True))
            named = {_short(key): value for key, value in values.items()}
            named |= {"seed": seed} if seed is not None else {}
            name = "-".join(re.sub(r"[^\w.+-]", "_", f"{key}{value}") for key, value in named.items())[:200]
            own = [f"{key}={value}" for key, value in values.items()]
            own += [f"seed={seed}"] if seed is not None else []
            place = directory / name
            trials.append(Trial(values, seed, place, [*options, *own, f"checkpoint.save_dir={place}"]))
    names = [trial.directory.name for trial in trials]
    if again := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two runs would have the directory {again[0]}", cure="name each value and each key once")
    return trials


def _short(key: str) -> str:
    """Return the name of an option, which of a stage is ``stages.second.optimizer.lr``, for that of a directory."""
    parts = key.split(".")
    return f"{parts[1]}.{parts[-1]}" if parts[0] == "stages" else parts[-1]


def run_trials(
    trials: Sequence[Trial], courses: Sequence[Sequence[RunConfig]], parallel: int, say: Callable[[str], object]
) -> dict[Trial, str]:
    """Train those runs that are not finished, ``parallel`` at a time; return the errors of those that failed.

    What a run prints is in its log, beside its directory. Processors and GPUs are shared among the runs.

    Args:
        courses: The stages of each trial; a run without stages is a course of one.

    Raises:
        Interrupted: Ctrl-C, SIGTERM or SIGUSR1 was received; the runs have saved what is done.
    """
    waiting = [trial for trial, runs in zip(trials, courses, strict=True) if not all(map(is_finished, runs))]
    if len(waiting) < len(trials):
        say(f"{len(trials) - len(waiting)} of {len(trials)} runs are finished already")
    free = _environments(parallel)
    used: dict[Trial, dict[str, str]] = {}
    running: dict[Trial, subprocess.Popen[Any]] = {}
    failed: dict[Trial, str] = {}
    total, told = len(waiting), False
    with StopRequest(signal.SIGTERM, signal.SIGUSR1).watching() as stop:
        while (waiting and not stop.signal) or running:
            while waiting and len(running) < parallel and not stop.signal:
                trial = waiting.pop(0)
                used[trial] = free.pop(0)
                command = [sys.executable, "-m", "xrep_cli.train", *trial.options]
                with naming(trial.log), open(trial.log, "ab") as log:
                    # In a session of its own, a run gets the Ctrl-C of the terminal once, from here.
                    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                    running[trial] = subprocess.Popen(command, **streams, env=used[trial], start_new_session=True)
            for trial in [trial for trial, process in running.items() if process.poll() is not None]:
                code = running.pop(trial).returncode
                free.append(used.pop(trial))
                if code and not stop.signal:
                    failed[trial] = _last_line(trial.log) or f"ended with exit code {code}"
                say(f"{total - len(waiting) - len(running)} of {total}: {trial.directory.name}"
                    f"{': failed' if trial in failed else ''}")  # fmt: skip
            if stop.signal and not told:
                told = True
                for process in running.values():
                    process.send_signal(signal.SIGINT)
            time.sleep(0.1)
    if stop.signal:
        raise Interrupted("the runs saved what is done, and the same command goes on from there")
    return failed


def _environments(parallel: int) -> list[dict[str, str]]:
    """Return the environment of each of the runs that train at a time, with its share of the processors and its GPU."""
    if parallel == 1:
        return [dict(os.environ)]
    count, given = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = (given.split(",") if given else list(map(str, range(count))))[:count]
    shared = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // parallel)), **os.environ}
    return [shared | ({"CUDA_VISIBLE_DEVICES": gpus[n % len(gpus)]} if gpus else {}) for n in range(parallel)]


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-10_000:].decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else ""


def ranking(trials: Sequence[Trial], stage: str = "") -> list[Ranked]:
    """Return the combinations whose runs have finished, the best first, by the mean over their seeds.

    Args:
        stage: Name of the last stage of the runs, by which they are ranked; empty if they have no stages.

    Raises:
        UserError: A run has no validation by which it could be ranked.
    """
    finished: dict[tuple[str, ...], list[tuple[Trial, dict[str, Any]]]] = {}
    for trial in trials:
        if (summary := trial.directory / stage / SUMMARY).is_file():
            finished.setdefault(tuple(trial.values.values()), []).append((trial, _best_of(summary)))
    ranked = [
        Ranked([trial for trial, _ in own], own[0][1]["metric"], [best["value"] for _, best in own])
        for own in finished.values()
    ]
    upward = all(best["maximize"] for own in finished.values() for _, best in own)
    return sorted(ranked, key=lambda each: each.mean, reverse=upward)


def _best_of(summary: Path) -> dict[str, Any]:
    """Return the metric, its best value and whether a higher one is better, from the summary of a run."""
    try:
        best = json.loads(summary.read_text(encoding="utf-8"))["best"]
        metric, value, maximize = (best[key] for key in ("metric", "value", "maximize"))
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError("not the summary of a run", path=summary, cure="remove that directory") from None
    if not isinstance(metric, str) or not isinstance(value, int | float) or not isinstance(maximize, bool):
        cure = "choose a `validation`"
        raise UserError("has no validation by which it could be ranked", path=summary.parent, cure=cure)
    return {"metric": metric, "value": float(value), "maximize": maximize}
