"""Errors that a user can cure, kept apart from errors that are ours.

A ``UserError`` is printed by the console scripts as one line and ends the process with exit code 2;
any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Something the user gave is wrong: says where, what, and the cure, on one line.

    >>> str(UserError("12 lines, but train.en has 11", path="train.de", cure="align the two files"))
    'train.de: 12 lines, but train.en has 11; align the two files'
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        cure: str | None = None,
    ) -> None:
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        self.problem, self.path, self.line, self.cure = problem, path, line, cure
        super().__init__(where + problem + (f"; {cure}" if cure else ""))


class ConfigError(UserError):
    """Every problem of one configuration, reported together (one line each)."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class TrainingError(Exception):
    """Training cannot go on (a loss that is not finite, say); printed without a traceback, exit code 1."""
