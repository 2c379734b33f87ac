"""Kill a small training run at random moments, resume it, and compare it with an undisturbed run.

  python scripts/kill_test.py --runs 50                  # a few minutes on two cores; prints "50 of 50 identical"
  python scripts/kill_test.py --runs 10 --ranks 2        # under torchrun: one rank is killed, or all at once
  python scripts/kill_test.py --runs 10 --data-workers 2 # further options are those of xrep-train

Each run is a real xrep-train in a process of its own, which is killed once or twice (SIGKILL): while a checkpoint is
being written, between two steps, or while it starts. The same command then trains to the end. Weights, momentum
encoders, queues, optimizer, random generators, the cursor, the links and every record of metrics.jsonl must be equal to
the last bit; only times and memory may differ.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.models.directory import CRITERION, open_checkpoint
from xrep.text.readers import discover_bitext
from xrep_cli.common import HelpFormatter, console_script

WORDS = {
    "der Bäcker": "the baker", "eine Katze": "a cat", "mein Onkel": "my uncle", "die Ärztin": "the doctor",
    "sieht": "sees", "sucht": "looks for", "malt": "paints", "kennt": "knows",
    "das Haus": "the house", "einen Baum": "a tree", "den Fluss": "the river", "viele Bücher": "many books",
    "heute": "today", "im Winter": "in winter", "jeden Tag": "every day", "am Abend": "in the evening",
}  # fmt: skip
STEPS, SAVE_EVERY = 40, 4
JOB = (
    "--task bitext --criterion dual_moco --queue-size 100 --momentum 0.9 --batch-size 16 --max-length 24 --lr 3e-3 "
    "--towers shared --layers 1 --hidden-size 32 --heads 2 --feedforward-size 64 --max-positions 24 "
    f"--max-steps {STEPS} --save-every {SAVE_EVERY} --validate-every 10 --warmup-steps 5 --log-every 1 "
    "--no-tensorboard --device cpu"
).split()
PATIENCE = 300.0
"""Seconds after which a process counts as hanging."""
MEASURED = re.compile(r"second|memory|waiting|stalled")
"""Names of records of time and memory, which differ between any two runs."""


@dataclass
class Job:
    """An xrep-train command, which can be started in any directory."""

    data: Path
    options: list[str]
    ranks: int
    seconds: float = 0.0
    """How long the undisturbed run takes."""

    @contextlib.contextmanager
    def started(self, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process; it ends with the block at the latest."""
        module = ["-m", "xrep_cli.train"]
        if self.ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
            module = [*launcher, *module]
        line = [sys.executable, *module, str(self.data), *JOB, *self.options, "--save-dir", str(directory)]
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with open(directory.with_suffix(".log"), "ab") as log:
            process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                kill([process.pid, *children(process.pid)])
                process.wait()


@dataclass
class Report:
    """The outcome of one run."""

    number: int
    kills: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


# -- when and whom to kill --------------------------------------------------------------------------------------------


def draw_moment(chance: random.Random, directory: Path, seconds: float) -> tuple[Callable[[], bool], float]:
    """Return a condition to wait for, and how many seconds more to wait then."""
    kind = chance.choices(["save", "step", "start"], weights=[5, 4, 1])[0]
    if kind == "save":
        step = SAVE_EVERY * chance.randint(1, STEPS // SAVE_EVERY - 1)
        partial = f".checkpoint-{step:08d}.*.partial"
        return lambda: any(directory.glob(partial)), chance.uniform(0.0, 0.01)
    if kind == "step":
        step = chance.randint(1, STEPS - 2)
        return lambda: last_step(directory) >= step, chance.uniform(0.0, 0.02)
    return lambda: True, chance.uniform(0.0, seconds)


def last_step(directory: Path) -> int:
    """Return the newest step that has a complete record."""
    try:
        lines = (directory / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        return json.loads(lines[-1])["step"] if lines else 0
    except (FileNotFoundError, ValueError):
        return 0


def kill_at(chance: random.Random, process: subprocess.Popen[bytes], directory: Path, job: Job) -> str:
    """Kill the run at a random moment and return where that was; empty if the run had ended before."""
    come, delay = draw_moment(chance, directory, job.seconds)
    deadline = time.monotonic() + PATIENCE
    while not come() and process.poll() is None:
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, PATIENCE)
        time.sleep(0.0005)
    time.sleep(delay)
    if process.poll() is not None:
        return ""
    whom = "" if job.ranks == 1 else chance.choice(["all ranks", "one rank"])
    ranks = children(process.pid) if whom else []
    kill([chance.choice(ranks)] if whom == "one rank" and ranks else [process.pid, *ranks])
    process.wait(PATIENCE)
    saving = any(directory.glob(".checkpoint-*.partial"))
    return " ".join(filter(None, [whom, f"after step {last_step(directory)}", "while saving" if saving else ""]))


def kill(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


# -- one run ----------------------------------------------------------------------------------------------------------


def disturbed(number: int, seed: int, job: Job, folder: Path, expected: dict[str, Any]) -> Report:
    """Kill a run once or twice, resume it to its end and compare its result."""
    chance, directory, report = random.Random(f"{seed} {number}"), folder / f"run{number}", Report(number)
    try:
        while not report.kills and not report.problems:  # if a moment never came, another one is drawn
            shutil.rmtree(directory, ignore_errors=True)
            disturb(chance, directory, job, report)
        if not report.problems:
            with job.started(directory) as process:
                code = process.wait(PATIENCE)
            report.problems += [f"exit code {code}"] if code else differences(expected, result(directory))
    except subprocess.TimeoutExpired:
        report.problems.append("it hangs")
    return report


def disturb(chance: random.Random, directory: Path, job: Job, report: Report) -> None:
    """Start a run and kill it, once or twice."""
    for _ in range(chance.choice([1, 1, 2])):
        with job.started(directory) as process:
            where = kill_at(chance, process, directory, job)
        report.kills += [where] if where else []
        if not where and process.returncode != 0:
            report.problems.append(f"exit code {process.returncode} before it was killed")


def result(directory: Path) -> dict[str, Any]:
    """Return everything of a finished run that must be equal, by name: tensors and plain values."""
    last = open_checkpoint(directory / "last")
    found: dict[str, Any] = {name: os.readlink(directory / name) for name in ("last", "best")}
    found["checkpoints"] = sorted(path.name for path in directory.iterdir() if "checkpoint-" in path.name)
    state = {name: value for name, value in last.training_state().items() if name != "seconds"}
    flatten("state", state, found)
    flatten("model", last.tensors(), found)
    flatten("criterion", last.tensors(CRITERION), found)
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for number, record in enumerate(records):
        kept = {name: value for name, value in record.items() if not MEASURED.search(name)}
        flatten(f"metrics.jsonl line {number + 1}", kept, found)
    return found


def flatten(place: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            flatten(f"{place}.{key}", inner, found)
    else:
        found[place] = value


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return the names under which two results differ."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            return one.dtype == other.dtype and torch.equal(one, other)
        return type(one) is type(other) and not isinstance(one, torch.Tensor) and one == other

    return [name for name in {**expected, **found} if not same(expected.get(name), found.get(name))]


# -- all runs ---------------------------------------------------------------------------------------------------------


def write_data(folder: Path) -> Path:
    """Write a data directory of sentences that are combinations of ``WORDS``."""
    pairs = list(WORDS.items())
    sentences = list(itertools.product(*(pairs[start : start + 4] for start in range(0, len(pairs), 4))))
    random.Random(0).shuffle(sentences)
    raw = folder / "raw"
    raw.mkdir()
    for split, some in (("train", sentences[:220]), ("valid", sentences[220:])):
        lines = ["\t".join(" ".join(words[side] for words in phrases) for side in (0, 1)) for phrases in some]
        (raw / f"{split}.de-en.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = PreprocessOptions(vocabulary_size=60)
    return preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False).path


def show(report: Report) -> None:
    outcome = "identical"
    if report.problems:
        more = f" and {len(report.problems) - 3} more" if len(report.problems) > 3 else ""
        outcome = f"DIFFERS: {', '.join(report.problems[:3])}{more}"
    print(f"run {report.number}: killed {', '.join(report.kills) or 'never'}: {outcome}", flush=True)


def _main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--runs", type=int, default=50, help="number of runs that are killed")
    add("--ranks", type=int, default=1, help="number of processes of a run")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="number of runs at the same time")
    add("--seed", type=int, default=1, help="random seed of the moments")
    given, further = parser.parse_known_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="xrep-kill-"))
    job = Job(write_data(folder), further, given.ranks)
    began = time.monotonic()
    whole = folder / "whole"
    with job.started(whole) as process:
        code = process.wait(PATIENCE)
    if code != 0:
        sys.exit(f"{whole.with_suffix('.log').read_text(encoding='utf-8')}the undisturbed run has failed")
    job.seconds = time.monotonic() - began
    expected = result(whole)
    reports = []
    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = (range(1, given.runs + 1), *([item] * given.runs for item in (given.seed, job, folder, expected)))
        for report in pool.map(disturbed, *tasks):
            show(report)
            reports.append(report)
    good = sum(not report.problems for report in reports)
    kills = [kill for report in reports for kill in report.kills]
    saving = sum("while saving" in kill for kill in kills)
    print(f"{len(kills)} kills, {saving} of them while saving; {time.monotonic() - began:.0f} seconds")
    print(f"{good} of {given.runs} identical")
    if good < given.runs:
        sys.exit(f"logs and checkpoints are in {folder}")
    shutil.rmtree(folder)


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())
