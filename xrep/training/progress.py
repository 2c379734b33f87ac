"""What a run reports while it trains: averages and the memory in use, as a line, in metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from xrep.config.ranges import out_of_range
from xrep.files import naming, write_aside
from xrep.progress import ProgressLine

SECONDS_BETWEEN_LINES = 10.0
METRICS, TENSORBOARD = "metrics.jsonl", "tensorboard"
"""Names in the directory of a run."""


class Progress:
    """Writes the averages of every ``log_every`` steps to ``metrics.jsonl`` and TensorBoard, and a line to stderr.

    On a terminal the line is rewritten in place; elsewhere (a log file) a new line is printed every ten seconds.
    """

    @dataclass(kw_only=True)
    class Config:
        log_every: int = 50
        """Number of steps between records in metrics.jsonl and TensorBoard."""
        tensorboard: bool = True
        """Write TensorBoard events below SAVE_DIR/tensorboard."""

        def problems(self) -> list[str]:
            return out_of_range(self, log_every="[1, inf)")

    def __init__(self, config: Config, directory: Path, resumed_step: int, stream: IO[str] | None = None) -> None:
        self.config = config
        self._line = ProgressLine(stream, seconds=SECONDS_BETWEEN_LINES, at_once=True)
        self.say = self._line.say
        self._path = directory / METRICS
        with naming(directory):
            _drop_records_after(self._path, resumed_step)
            self._file = open(self._path, "a", encoding="utf-8")
            self._board = _TensorBoard(directory / TENSORBOARD, resumed_step) if config.tensorboard else None

    def record(self, step: int, values: dict[str, Any], kind: str) -> None:
        """Append one record; ``kind`` is train or valid."""
        with naming(self._path):
            self._file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._file.flush()
        if self._board is not None:
            with naming(self._board.path):
                self._board.record(step, {f"{kind}/{name}": value for name, value in values.items()})

    def line(self, text: str) -> None:
        """Show the state of training, but not more often than a person can read it."""
        self._line.show(text)

    def close(self) -> None:
        with naming(self._path):
            self._file.close()


class Quiet:
    """A progress that reports nothing, for all ranks but rank 0."""

    def record(self, *arguments: Any) -> None:
        pass

    line = say = close = record


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


class _TensorBoard:
    """An event file of TensorBoard, written in the calling thread.

    ``SummaryWriter`` writes in its own thread, where a full disk leads to a traceback on the screen.
    """

    def __init__(self, directory: Path, resumed_step: int) -> None:
        # protobuf makes these classes at import time, so no type checker finds them in the source of the modules.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        self._event, self._summary = Event, Summary
        directory.mkdir(exist_ok=True)
        self.path = directory / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        if resumed_step:  # hides what an interrupted run wrote after its checkpoint
            self._write(step=resumed_step + 1, session_log=SessionLog(status=SessionLog.START))

    def record(self, step: int, values: dict[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=scalars))

    def _write(self, **event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        with open(self.path, "ab") as file:
            RecordWriter(file).write(self._event(wall_time=time.time(), **event).SerializeToString())


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
