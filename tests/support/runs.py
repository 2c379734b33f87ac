"""Small training runs for tests: in this process, or as a user starts them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from xrep.config import RunConfig, runs_of
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import World, alone
from xrep.training.log import Log
from xrep.training.run import train
from xrep.training.trainer import Trainer
from xrep_cli.train_options import parse

SMALL_MODEL = {
    "layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64, "max_positions": 32, "towers": "shared",
}  # fmt: skip
SMALL = {
    "task": "bitext", "criterion": "dual_moco", "max_length": 32, "batch_size": 30, "lr": 3e-3, "warmup_steps": 3,
    "clip_norm": 1.0, "log_every": 5, "no_tensorboard": None, "device": "cpu", **SMALL_MODEL,
}  # fmt: skip
QUEUE = {"queue_size": 100, "momentum": 0.9}


def options(**given: Any) -> list[str]:
    """Return ``SMALL`` and ``given`` as a command line: ``max_steps=5`` is ``--max-steps 5``, and None is a flag."""
    merged = {**SMALL, **given}
    if merged["criterion"] == "dual_moco":
        merged = {**merged, **{name: merged.get(name, value) for name, value in QUEUE.items()}}
    line = []
    for name, value in merged.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is None else [str(value)])]
    return line


def compose_run(data: Path, save_dir: Path, **given: Any) -> RunConfig:
    line = parse([str(data), *options(save_dir=save_dir, **given)])
    return runs_of(line.layers, line.problems)[0]


def going_on_is_never_stopping(data: Path, folder: Path, *, stop: int = 3, steps: int = 6, **given: Any) -> Path:
    """Train a run at once, and another one that stops and goes on. Assert that both have the same weights, state of the
    criterion and logged figures, bit by bit. Return the directory of the second run, which stops at step ``stop``.
    """
    given = {"lr_scheduler": "constant", "log_every": 1, **given}
    once = train(compose_run(data, folder / "once", max_steps=steps, **given)).directory
    train(compose_run(data, folder / "twice", max_steps=stop, **given))
    twice = train(compose_run(data, folder / "twice", max_steps=steps, **given)).directory
    one, other = contents(once / "last"), contents(twice / "last")
    for name in ("model.safetensors", "criterion.safetensors"):
        assert one.get(name) == other.get(name), f"{name} is another one"
    assert figures(once) == figures(twice)
    return twice


def figures(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return the records of training and validation (or of ``kinds``), without figures that depend on the clock."""
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    clock = ("seconds", "per_second", "memory", "time", "waiting")
    return [
        {name: value for name, value in record.items() if not any(word in name for word in clock)}
        for record in records
        if record["kind"] in (kinds or ("train", "valid"))
    ]


def make_trainer(
    run: RunConfig, directory: Path, validate: Callable[..., dict[str, float]] | None = None, world: World | None = None
) -> Trainer:
    """Return a trainer of a new run in ``directory``. Without ``validate`` every checkpoint is the best."""
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(run.seed)
    task = run.classes["task"](run.configs["task"], run.seed)
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    criterion.prepare(task)
    checkpoints = Checkpoints(run.configs["checkpoint"], directory)
    progress = Log(run.configs["logging"], directory, 0, run.values)
    return Trainer(run, task, model, criterion, checkpoints, progress, validate, world or alone("cpu"))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "xrep_cli.train", *map(str, arguments)]


def environment(path: Path | None = None, threads: int | None = None) -> dict[str, str]:
    """Return the environment of a process that can import the repository (and ``path``)."""
    repository = Path(__file__).parents[2]
    places = [str(place) for place in (repository, path) if place] + [os.environ.get("PYTHONPATH", "")]
    limited = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {**os.environ, **limited, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def refusal(finished: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Return the error of a refused run, after checking that it is one line without a traceback."""
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    errors = [line for line in finished.stderr.splitlines() if ": error: " in line]
    assert len(errors) == 1 and finished.stderr.splitlines()[-1] == errors[0], finished.stderr
    return errors[0].partition(": error: ")[2]


def contents(directory: Path) -> dict[str, bytes | str]:
    """Return the content of every file below a directory; links are given by their targets."""
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


class TwoTerms(Criterion):
    """The distance of translations, summed over pairs, and the size of token vectors, summed over tokens."""

    @dataclass(kw_only=True)
    class Config:
        poisoned: int = -1
        """Index of an example whose loss is not a number."""

    seen: list[list[int]] = []
    """The examples of each batch so far."""

    def __init__(self, config: Config, model: Any, text: Any) -> None:
        super().__init__()
        self.config = config
        TwoTerms.seen = []

    def plan(self, batch: Any, generator: torch.Generator) -> Planned:
        return Planned(batch, {"pairs": len(batch), "tokens": batch.token_count})

    def forward(self, model: Any, planned: Planned) -> Loss:
        batch = planned.batch
        TwoTerms.seen.append(batch.indices.tolist())
        source, source_tokens = model.encode("shared", batch.source)
        target, target_tokens = model.encode("shared", batch.target)
        distance = (source - target).square().sum()
        if self.config.poisoned in TwoTerms.seen[-1]:
            distance = distance * torch.nan
        read = [vectors[side.mask] for vectors, side in ((source_tokens, batch.source), (target_tokens, batch.target))]
        tokens = (read[0] - 1).square().sum() + (read[1] + 1).square().sum()
        terms = {"pairs": Term(distance), "tokens": Term(tokens, weight=0.25)}
        return Loss(terms)
