"""What a run reports while it trains: averages and the memory in use, as a line, in metrics.jsonl and TensorBoard."""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from xrep.config.fields import Count
from xrep.config.layers import flat
from xrep.files import naming, write_aside
from xrep.nn.queue import Queue
from xrep.progress import ProgressLine
from xrep.training.boards import Board, TensorBoard, WeightsAndBiases
from xrep.training.launches import now

METRICS, TENSORBOARD, LOG = "metrics.jsonl", "tensorboard", "log.txt"
"""Names in the directory of a run."""


class Progress:
    """Writes the averages of every ``log_every`` steps to ``metrics.jsonl`` and the boards, and a line to stderr.

    On a terminal the line is rewritten in place; elsewhere (a log file) a new line is printed every ten seconds.
    ``log.txt`` gets these lines and all other text with the time of each.
    """

    @dataclass(kw_only=True)
    class Config:
        log_every: Count = 50
        """Number of steps between records in metrics.jsonl and TensorBoard."""
        tensorboard: bool = True
        """Write TensorBoard events below SAVE_DIR/tensorboard."""
        logger: Literal["none", "wandb"] = "none"
        """Service that gets the records as well: Weights & Biases (extra 'wandb')."""

        def problems(self) -> list[str]:
            problems = list[str]()
            if self.logger == "wandb" and importlib.util.find_spec("wandb") is None:
                problems.append("`logger` is wandb, which is not installed: pip install 'xrep[wandb]'")
            return problems

    def __init__(
        self,
        config: Config,
        directory: Path,
        resumed_step: int,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.config = config
        self._line = ProgressLine(at_once=True)
        self._path = directory / METRICS
        with naming(directory):
            _drop_records_after(self._path, resumed_step)
            self._file = open(self._path, "a", encoding="utf-8")
            self._log_file = open(directory / LOG, "a", encoding="utf-8", errors="backslashreplace")
            values, self._boards = flat(options) if options else {}, list[Board]()
            if config.tensorboard:
                self._boards.append(TensorBoard(directory / TENSORBOARD, resumed_step, values))
            if config.logger == "wandb":
                self._boards.append(WeightsAndBiases(directory, values))
        self._log_line = ProgressLine(self._log_file, at_once=True)

    def say(self, text: str) -> None:
        """Print a line on stderr and in the log."""
        self._line.say(text)
        self.log(text)

    def log(self, text: str, time: str | None = None) -> None:
        """Write a line to the log only, with the time at which it was said; None: now."""
        with suppress(OSError):  # training goes on without a log, for example until a full disk has room again
            self._log_line.say(f"{time or now()} {text}")

    def record(self, step: int, values: dict[str, Any], kind: str) -> None:
        """Append one record; ``kind`` is train or valid."""
        with naming(self._path):
            self._file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._file.flush()
        for board in self._boards:
            with naming(board.path):
                board.record(step, {f"{kind}/{name}": value for name, value in values.items()})

    def line(self, text: str) -> None:
        """Show the state of training, but not more often than a person can read it."""
        self._line.show(text)
        with suppress(OSError):
            self._log_line.show(f"{now()} {text}")

    def close(self) -> None:
        with suppress(OSError):
            self._log_file.close()
        with naming(self._path):
            self._file.close()
        for board in self._boards:
            board.close()


class Quiet:
    """A progress that reports nothing, for all ranks but rank 0."""

    def record(self, *arguments: Any) -> None:
        pass

    line = say = log = close = record


def _drop_records_after(path: Path, step: int) -> None:
    """Delete the records of later steps than ``step``, because a resumed run repeats these steps."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            if line and json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, LookupError, TypeError, RecursionError):
            continue  # the line was cut short when the run was killed, or is not a record
    with write_aside(path) as aside:
        aside.write_bytes(b"".join(kept))


class Recent:
    """Means over the last steps for the line of progress, since single steps differ too much to be read.

    Args:
        criterion: The objective, whose queues may have to be filled first.
    """

    def __init__(self, criterion: nn.Module) -> None:
        self._steps = deque[dict[str, float]](maxlen=20)
        self._queues = [part for part in criterion.modules() if isinstance(part, Queue)]

    def add(self, values: dict[str, float]) -> None:
        """Add the numbers of a step: its loss, and ``pairs``, ``tokens`` and ``busy`` seconds, for example."""
        self._steps.append(values)

    def quality(self) -> list[str]:
        """Return loss and accuracy as text, or how full the queue is: both become worse with every negative that joins,
        which says nothing about the model."""
        filling = min(self._queues, key=lambda queue: queue.filled / len(queue.vectors), default=None)
        if filling is not None and filling.filled < len(filling.vectors):
            return [f"queue {filling.filled:,} of {len(filling.vectors):,} filled"]
        means = {name: self._mean(name) for name in ("loss", "accuracy")}
        return [f"{name} {mean:.4g}" for name, mean in means.items() if mean is not None]

    def speeds(self) -> list[str]:
        """Return the numbers of pairs and tokens per second as text."""
        busy, means = self._mean("busy"), {unit: self._mean(unit) for unit in ("pairs", "tokens")}
        return [f"{mean / busy:,.0f} {unit}/s" for unit, mean in means.items() if mean is not None and busy]

    def _mean(self, name: str) -> float | None:
        known = [step[name] for step in self._steps if name in step]
        return sum(known) / len(known) if known else None


class Meters:
    """Means and totals of numbers since the last record."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.totals, self._sums, self._counts = (defaultdict[str, float](float) for _ in range(3))

    def add(self, values: dict[str, float]) -> None:
        """Add numbers that are averaged."""
        for name, value in values.items():
            self._sums[name] += value
            self._counts[name] += 1

    def count(self, **values: float) -> None:
        """Add numbers that are summed."""
        for name, value in values.items():
            self.totals[name] += value

    def means(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}


def memory_megabytes(device: torch.device) -> float:
    """Return the peak memory so far: what torch allocated on a GPU, or the resident size of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # Linux counts in KiB
