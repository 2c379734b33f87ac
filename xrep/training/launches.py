"""The record of a run's launches in its directory: when, where and by which command each began, and how it ended."""

from __future__ import annotations

import io
import json
import os
import platform
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xrep import __version__
from xrep.files import naming
from xrep.training.state import TrainingState

LAUNCHES = "launches.jsonl"
_PACKAGES = "torch numpy scipy sentencepiece tokenizers safetensors faiss-cpu omegaconf transformers".split()


@contextmanager
def recorded(
    directory: Path, state: TrainingState, log: Callable[[str], None], **facts: Any
) -> Iterator[dict[str, Any]]:
    """Context manager that appends a record to ``launches.jsonl`` at its beginning and one at its end.

    A launch that was killed has no end. The block adds further facts to the mapping that is yielded, such as how it
    ended; after an exception, that is its message.

    Args:
        state: State of the run, whose step is recorded.
        log: Called with the command and with how the launch ended.
        facts: Further facts of the beginning.
    """
    path, command, end = directory / LAUNCHES, shlex.join(sys.orig_argv), dict[str, Any]()

    def append(event: str, **values: Any) -> None:
        record = {"event": event, "time": now(), "step": state.step, **values}
        with naming(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    log(f"launch in {os.getcwd()} on {socket.gethostname()}: {command}")
    place = {"folder": os.getcwd(), "host": socket.gethostname(), "process": os.getpid()}
    append("start", command=command, **place, **facts, versions=_versions())
    try:
        yield end
    except BaseException as error:
        end["how"] = str(error) or type(error).__name__
        with suppress(OSError):  # the disk may be full; the error that ends the block is the one to report
            append("end", **end)
        raise
    finally:
        log(f"end of the launch: {end.get('how')}")
    append("end", **end)


@contextmanager
def heard() -> Iterator[list[tuple[str, str]]]:
    """Context manager that yields the lines that the block prints on standard output, each with its time, for the log
    of a run that has no directory yet."""
    lines, stdout = list[tuple[str, str]](), sys.stdout

    class Listener(io.TextIOBase):
        def write(self, text: str) -> int:
            lines.extend((now(), line) for line in text.splitlines() if line)
            return stdout.write(text) if stdout else len(text)  # there is none if the program was started without

        def flush(self) -> None:
            if stdout:
                stdout.flush()

    with redirect_stdout(Listener()):
        yield lines


def now() -> str:
    """Return the local time with its offset, in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    versions = {"xrep": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
