"""Exceptions for errors that the user can correct, as opposed to bugs in xrep.

The console scripts print a ``UserError`` as one line and end the process with exit code 2. A ``TrainingError`` is
printed without a traceback too. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """An error in the user's input; its message says on one line where it is, what is wrong and how to correct it.

    Examples:
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


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    return abbreviated(repr(value))


def abbreviated(text: str) -> str:
    """Return at most 80 characters of a text."""
    return text if len(text) <= 80 else f"{text[:80]}..."


class ConfigError(UserError):
    """All problems of one configuration, reported together, one per line."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class TrainingError(Exception):
    """Training cannot continue, for example because the loss is not finite. The exit code is 1, without a traceback."""
