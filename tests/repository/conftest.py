"""Fixtures of the tests of the repository: setup.py as data, and xrep's commands without an installation."""

from __future__ import annotations

import runpy
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import setuptools

from tests.support.programs import command_server

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def setup_arguments(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return the arguments that setup.py gives to setuptools."""
    arguments: dict = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: arguments.update(given))
    monkeypatch.chdir(REPOSITORY)
    runpy.run_path(str(REPOSITORY / "setup.py"))
    return arguments


@pytest.fixture
def console_scripts(setup_arguments: dict) -> dict[str, tuple[str, str]]:
    """Return ``{command: (module, function)}``."""
    scripts = dict(line.split("=") for line in setup_arguments["entry_points"]["console_scripts"])
    return {command: tuple(target.split(":")) for command, target in scripts.items()}


@pytest.fixture
def write_executable() -> Callable[[Path, str], None]:
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return write


@pytest.fixture
def install_commands(console_scripts, write_executable) -> Iterator[Callable[[Path, dict[str, list[str]]], None]]:
    """``install_commands(bin, extra)`` writes python and the commands, which append ``extra[command]``."""
    with command_server() as command_text:

        def install(folder: Path, extra: dict[str, list[str]]) -> None:
            write_executable(folder / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            for command, (module, function) in console_scripts.items():
                write_executable(folder / command, command_text(module, function, extra.get(command, [])))

        yield install
