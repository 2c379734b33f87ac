"""What the benchmarks share: contestants that take turns, medians, options and files of figures.

It imports torch only where it trains or waits for a GPU, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrep.files import write_aside
from xrep_cli.command import HelpFormatter

if TYPE_CHECKING:
    from xrep.criteria.criterion import Criterion
    from xrep.models.dual_encoder import DualEncoder
    from xrep.training.step import Step

ROUNDS = "XREP_BENCHMARK_ROUNDS"
"""Environment variable with a file, to which the times of each contest are appended as a line of JSON (``run.py``)."""


@dataclass
class Turns:
    """The measurements of contestants that took turns.

    Attributes:
        seconds: The time of each round after the warm-up, by contestant.
        results: What each contestant returned last.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    def medians(self) -> dict[str, float]:
        """Return the median time of each contestant, in seconds."""
        return {name: statistics.median(seconds) for name, seconds in self.seconds.items()}


def take_turns(
    contestants: Mapping[str, Callable[[Any], Any]],
    inputs: Iterable[Any],
    *,
    warm_up: int = 1,
    device: str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
    verbose: bool = False,
    title: str = "",
) -> Turns:
    """Time contestants that take turns in one process, so that a busy machine disturbs all of them.

    Args:
        contestants: Functions of one input, by name. Each goes first equally often.
        inputs: One input for each round.
        warm_up: Number of first rounds that are not measured.
        device: A time on a GPU ends when the GPU has finished.
        clock: Function that returns seconds.
        verbose: Whether each time is printed on stderr.
        title: What distinguishes this contest from others of the same script.
    """
    names = list(contestants)
    turns = Turns({name: [] for name in names})
    for number, value in enumerate(inputs):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begun = clock()
            turns.results[name] = contestants[name](value)
            wait_for(device)
            taken = clock() - begun
            if number >= warm_up:
                turns.seconds[name].append(taken)
            if verbose:
                progress(f"round {number}: {name} {taken:.2f} s")
    record(title=title, seconds=turns.seconds)
    return turns


def record(**facts: Any) -> None:
    """Append facts to the file that the environment names, if it does."""
    if path := os.environ.get(ROUNDS):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def say_absent(name: str, reason: object) -> None:
    """Say that a contestant cannot take part, which is no error."""
    line = str(reason).splitlines()[0]
    progress(f"no {name}: {line}")
    record(absent={name: line})


def wait_for(device: str) -> None:
    """Wait until a GPU has done what it was given."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def markdown_table(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table in Markdown, whose first row is the head."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [f"| {' | '.join(line)} |" for line in lines]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option ``--json``, which prints its description as it is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as JSON")
    return parser


def write_json(path: str | None, figures: Any) -> None:
    """Write the figures if a file was named."""
    if path:
        with write_aside(path) as aside:
            aside.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def add_training_options(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Add the options of training steps on pairs of sentences, which are read from --data or drawn at random."""
    add = parser.add_argument
    add("--layers", type=int, default=defaults["layers"], help="layers of the encoder")
    add("--hidden-size", type=int, default=defaults["hidden_size"], help="width of its token vectors")
    add("--heads", type=int, default=defaults["heads"], help="attention heads")
    add("--feedforward-size", type=int, default=defaults["feedforward_size"], help="width of its feed-forward layers")
    add("--vocabulary-size", type=int, default=defaults["vocabulary_size"], help="subwords, if there is no --data")
    add("--length", type=int, default=32, help="tokens of a sentence, special ones included")
    add("--batch-size", type=int, default=defaults["batch_size"], help="pairs in a step")
    add("--data", help="directory made by xrep-preprocess, for sentences of real lengths; else full random ones")
    add("--clip-norm", type=float, default=1.0, help="largest norm of the gradient")
    add("--precision", choices=("float32", "bf16", "fp16"), default="float32", help="precision of the training steps")
    add("--device", default="auto", help="cpu, cuda or auto")


def make_step(
    model: DualEncoder,
    criterion: Criterion,
    device: str,
    *,
    lr: float = 1e-5,
    precision: str = "float32",
    clip_norm: float = 1.0,
) -> Step:
    """Return what makes training steps of a model and a criterion, on one process."""
    import torch

    from xrep.training.distributed import alone
    from xrep.training.freezing import Freezing
    from xrep.training.numbers import type_on
    from xrep.training.step import Pair, Step
    from xrep.training.update import Update

    world = alone(device)
    pair, dtype = Pair(model, criterion).to(world.device), type_on(world.device, precision)
    freezing = Freezing(list(criterion.frozen), pair)
    groups = [{"params": [p for _, p in freezing.ever_trained()], "lr_scale": 1.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, fused=True)
    step = Step(pair, freezing, Update(optimizer, world, clip_norm=clip_norm, dtype=dtype))
    step.prepare(0)
    step.train_mode()
    return step


def run_step(step: Step, batch: Any) -> None:
    """Plan a batch and train on it, always with the same random numbers in the plan."""
    import torch

    planned = step.pair.criterion.plan(batch, torch.Generator().manual_seed(0))
    step.apply(step.gradients([planned], planned.sizes, 0), step.update.optimizer.param_groups[0]["lr"])
