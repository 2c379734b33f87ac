"""Runs a command on a hostile input, in this process, and checks how it ends.

A case is a line of a table: the command, its arguments, a part of the message, the exit code. A refused command prints
one line that begins with its name, no traceback, and leaves every file as it was.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.runs import contents


@dataclass(frozen=True)
class Case:
    """A command on a hostile input."""

    command: str
    """Name without ``xrep-``."""
    arguments: str
    """Arguments, which spaces separate; files are relative to the folder of the test."""
    message: str
    """Part of the line that is printed."""
    code: int = 2

    def __str__(self) -> str:
        return f"{self.command} {self.arguments[-60:]}"


def check_refused(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the case in ``folder`` and check its line, its exit code, and that nothing in the folder changed."""
    before = contents(folder)
    main = importlib.import_module(f"xrep_cli.{case.command}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code = main(case.arguments.split())
    errors = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert code == case.code and len(errors) == 1 and case.message in errors[0], (code, errors)
    assert contents(folder) == before


def case_name(case: Case) -> str:
    """Return the name of a case in a parametrised test."""
    return str(case)
