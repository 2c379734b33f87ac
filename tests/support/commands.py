"""Commands in this process."""

import importlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Result:
    """How a command ended, what it printed, and the files below the current folder that are new, changed or gone."""

    code: int
    out: str
    err: str
    wrote: frozenset[str]


class Commands:
    """Runs ``xrep-NAME`` in this process, in ``folder``: ``cli("encode", "--path", encoder, ...)``."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd

    def __call__(self, name: str, *words: object, stdin: bytes = b"") -> Result:
        main = importlib.import_module(f"xrep_cli.{name}").main
        self.capfd.readouterr()
        before = _files(self.folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            try:
                code = main([str(word) for word in words])
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = self.capfd.readouterr()
        wrote = frozenset(name for name, _ in _files(self.folder).items() ^ before.items())
        return Result(code, captured.out, captured.err, wrote)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file below a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns)
    return found
