"""The log of a run: its records, its lines of text, and its launches, each given to what keeps it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from xrep.config.fields import Count
from xrep.files import naming, write_aside
from xrep.progress import ProgressLine
from xrep.training.boards import TensorBoard, WeightsAndBiases
from xrep.version import __version__

METRICS, TENSORBOARD, LOG, LAUNCHES = "metrics.jsonl", "tensorboard", "log.txt", "launches.jsonl"
"""Names in the directory of a run."""
_PACKAGES = "torch numpy scipy sentencepiece tokenizers safetensors faiss-cpu omegaconf transformers".split()


class Log:
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
            if self.logger == "wandb" and importlib.util.find_spec("wandb") is None:
                return ["`logger` is wandb, which is not installed: pip install 'xrep[wandb]'"]
            return []

    def __init__(self, config: Config, directory: Path, step: int, options: Mapping[str, Any]) -> None:
        self._directory = directory
        with naming(directory):
            _drop_records_after(directory / METRICS, step)
            self._metrics = open(directory / METRICS, "a", encoding="utf-8")
            self._text = open(directory / LOG, "a", encoding="utf-8", errors="backslashreplace")
            self._boards: list[TensorBoard | WeightsAndBiases] = []
            if config.tensorboard:
                self._boards.append(TensorBoard(directory / TENSORBOARD, step, options))
            if config.logger == "wandb":
                self._boards.append(WeightsAndBiases(directory, options))
        self._line, self._text_line = ProgressLine(at_once=True), ProgressLine(self._text, at_once=True)

    def record(self, step: int, values: dict[str, Any], kind: str) -> None:
        """Append one record; ``kind`` is train or valid."""
        with naming(self._directory):
            self._metrics.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
            self._metrics.flush()
            for board in self._boards:
                board.record(step, {f"{kind}/{name}": value for name, value in values.items()})

    def line(self, text: str) -> None:
        """Show the state of training, but not more often than a person can read it."""
        self._line.show(text)
        with suppress(OSError):  # training goes on without a log, for example until a full disk has room again
            self._text_line.show(f"{_now()} {text}")

    def say(self, text: str) -> None:
        """Print a line on stderr and in the log."""
        self._line.say(text)
        self._note(text)

    def _note(self, text: str) -> None:
        with suppress(OSError):
            self._text_line.say(f"{_now()} {text}")

    @contextmanager
    def launch(self, state: Any, **facts: Any) -> Iterator[dict[str, Any]]:
        """Context manager that appends a record to ``launches.jsonl`` at its beginning and one at its end.

        A launch that was killed has no end. The block adds further facts to the mapping that is yielded, such as how
        it ended; after an exception, that is its message.

        Args:
            state: State of the run, whose ``step`` is recorded.
            facts: Further facts of the beginning.
        """
        end, place = dict[str, Any](), {"folder": os.getcwd(), "host": socket.gethostname(), "process": os.getpid()}
        command = shlex.join(sys.orig_argv)

        def append(event: str, **values: Any) -> None:
            with naming(self._directory), open(self._directory / LAUNCHES, "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, "time": _now(), "step": state.step, **values}) + "\n")

        self._note(f"launch in {place['folder']} on {place['host']}: {command}")
        append("start", command=command, **place, **facts, versions=_versions())
        try:
            yield end
        except BaseException as error:
            end["how"] = str(error) or type(error).__name__
            raise
        finally:
            self._note(f"end of the launch: {end.get('how')}")
            with suppress(OSError):  # the disk may be full; the error that ends the block is the one to report
                append("end", **end)

    def close(self) -> None:
        with suppress(OSError):
            self._text.close()
        with naming(self._directory):
            self._metrics.close()
            for board in self._boards:
                board.close()


class Quiet:
    """A log that keeps nothing, for all ranks but rank 0."""

    def record(self, *arguments: Any) -> None:
        pass

    line = say = close = record

    @contextmanager
    def launch(self, state: Any, **facts: Any) -> Iterator[dict[str, Any]]:
        yield {}


def _drop_records_after(path: Path, step: int) -> None:
    """Delete the records of later steps than ``step``, because a resumed run repeats these steps."""
    kept = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        with suppress(ValueError):  # a line was cut short when the run was killed
            kept += [line] if json.loads(line)["step"] <= step else []
    with write_aside(path) as aside:
        aside.write_bytes(b"".join(kept))


def _now() -> str:
    """Return the local time with its offset, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {"xrep": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
