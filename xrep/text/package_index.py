"""Run pip in a subprocess: report progress line by line, retry interrupted transfers, and explain a failure.

scripts/install.py uses this module before anything is installed, so it needs only the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ATTEMPTS = 3
_SILENCE = 30.0
"""Seconds without output of pip after which the user is told that pip still works."""

NETWORK_CURE = "check the network (PIP_INDEX_URL can name another index)"
_NETWORK_TROUBLE = (  # Patterns in pip's log and what each means; the first that matches counts.
    (r"Read timed out|ConnectTimeout|didn't respond within", "the package index did not answer in time"),
    (r"too many (\d{3}) error responses|: ([45]\d\d) (?:Client|Server) Error", "the package index answered with error"),
    (
        r"Connection interrupted|not enough bytes|IncompleteRead|ChunkedEncodingError|located at \S+ is invalid"
        r"|DO NOT MATCH THE HASHES",
        "the transfer broke off",
    ),
    (
        r"connection broken by|connection error|ConnectionError|SSLError|Could not fetch URL",
        "the package index cannot be reached",
    ),
)


@dataclass(frozen=True)
class PipFailure:
    """Why pip failed, and what the user can do about it."""

    reason: str
    cure: str
    is_network: bool = False


def run_pip(
    arguments: Sequence[str],
    say: Callable[[str], None] = lambda line: None,
    *,
    python: str | Path = sys.executable,
    environment: Mapping[str, str] = os.environ,
    log: Path | None = None,
) -> PipFailure | None:
    """Run ``python -m pip`` with these arguments; return None if it succeeds, else the failure.

    pip itself repeats a request that is not answered (``PIP_RETRIES``, ``PIP_TIMEOUT``) and, from version 25.1,
    resumes an interrupted transfer. If a transfer fails nevertheless, the whole command is run again, at most three
    times in all; pip's cache keeps the files that were transferred completely.

    Args:
        say: Called with one line of text for each file that is fetched and whenever pip waits.
        python: The Python interpreter that runs pip.
        log: File for pip's detailed log of the last attempt; None keeps no log.
    """
    with tempfile.TemporaryDirectory() as temporary:
        log = log or Path(temporary) / "pip.log"
        command = [str(python), "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check", "--log", str(log)]
        attempt = 1
        while True:
            log.unlink(missing_ok=True)
            code, lines = _run(command, {"PIP_RESUME_RETRIES": "5", **environment}, say)
            if code == 0:
                return None
            failure = _failure(lines, log)
            was_transferring = any(line.startswith("Downloading ") for line in lines)
            if attempt == _ATTEMPTS or not (failure.is_network and was_transferring):
                return failure
            attempt += 1
            say(f"{failure.reason}; trying again ({attempt} of {_ATTEMPTS})")


def _run(command: list[str], environment: dict[str, str], say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run a pip command and return its exit code and all its output lines; pass progress to ``say`` as it arrives."""
    lines: list[str] = []
    heard = threading.Event()
    with subprocess.Popen(
        command,
        env=environment,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        threading.Thread(target=_report_silence, args=(process, heard, say), daemon=True).start()
        for line in filter(None, map(str.strip, process.stdout or ())):
            heard.set()
            lines.append(line)
            if match := re.match(r"Downloading (?!\S+\.metadata )(?:\S*/)?(\S+ \([^)]*\))", line):
                say(f"downloading {match[1]}")
            elif "Retrying (" in line:
                say("the package index does not answer; pip tries again")
            elif match := re.match(r"Installing collected packages: (.*)", line):
                count = match[1].count(",") + 1
                say(f"unpacking {count} package{'s' * (count > 1)}")
    return process.returncode, lines


def _report_silence(process: subprocess.Popen[str], heard: threading.Event, say: Callable[[str], None]) -> None:
    """Say whenever a running process has printed nothing for a while; ``heard`` is set at each of its lines."""
    waited = 0.0
    while process.poll() is None:
        waited = 0.0 if heard.wait(_SILENCE) else waited + _SILENCE
        heard.clear()
        if waited and process.poll() is None:
            say(f"pip still works ({waited:.0f} s)")


def _failure(lines: list[str], log: Path) -> PipFailure:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    text = "\n".join([text, *lines])
    if match := re.search(r"\[Errno \d+\] (No space left on device|Permission denied)[^\n]*", text):
        return PipFailure(match[1].lower(), "make room on the disk, or let pip write there,")
    # An index that lacks a package answers with 404, which is not an error if another index has the package.
    text = re.sub(r"[^\n]*: 404 Client Error[^\n]*", "", text)
    for pattern, meaning in _NETWORK_TROUBLE:
        if match := re.search(pattern, text):
            number = "".join(f" {group}" for group in match.groups() if group)
            return PipFailure(meaning + number, NETWORK_CURE, is_network=True)
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or ["pip gave no reason"]
    return PipFailure(errors[-1], NETWORK_CURE if "No matching distribution" in text else "correct that")
