"""The checkpoints of one run: which are kept, which is last and best, and from which a run goes on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.models.directory import Checkpoint, open_checkpoint

PREFIX = "checkpoint-"
MAY_CHANGE = {
    "task": {"data", "batch_size"},
    "trainer": {"max_steps", "max_epochs", "max_minutes", "update_freq", "validate_every", "device", "kernels"},
    "checkpoint": {"save_dir", "save_every", "keep_last"},
    "logging": {"log_every", "tensorboard"},
    "plugins": set(),
}
"""Options that a run may be resumed with other values of; for all others the run would be another one."""


class Checkpoints:
    """The directory of a run: ``checkpoint-00001000/`` and so on, with ``last`` and ``best`` pointing at one each."""

    @dataclass(kw_only=True)
    class Config:
        save_dir: str | None = None
        """Directory of the run; a run found there with the same configuration goes on. None: runs/TASK-CRITERION."""
        save_every: int = 1000
        """Steps between checkpoints; 0 saves only where validation is best and at the end."""
        keep_last: int = 2
        """Number of recent checkpoints kept, besides the best."""

        def problems(self) -> list[str]:
            found = [f"save_every must not be negative: {self.save_every}"] if self.save_every < 0 else []
            return found + ([f"keep_last must be at least 1, not {self.keep_last}"] if self.keep_last < 1 else [])

    def __init__(self, config: Config, directory: Path) -> None:
        self.config, self.directory = config, directory

    def save(self, step: int, write: Callable[[Path], None], best: bool) -> Path:
        """Write the checkpoint of ``step`` by ``write(path)``, move the pointers and delete what is no longer kept."""
        path = self._path(step)
        write(path)
        for later in (p for p in self._all() if p.name > path.name):
            shutil.rmtree(later)  # damaged: the run went back behind them
        self.point(step, step if best else None)
        keep = {p.resolve() for p in self._all()[-self.config.keep_last :]} | {(self.directory / "best").resolve()}
        for old in self._all():
            if old.resolve() not in keep:
                shutil.rmtree(old)
        return path

    def point(self, last: int, best: int | None) -> None:
        """Point ``last`` and ``best`` at the checkpoints of these steps; None leaves ``best`` where it is."""
        self._point("last", self._path(last))
        if best is not None and self._path(best).exists():
            self._point("best", self._path(best))
        elif not (self.directory / "best").exists():
            self._point("best", self._path(last))

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; damaged ones are named on stderr and passed over."""
        for path in reversed(self._all()):
            try:
                return open_checkpoint(path)
            except UserError as error:
                print(f"warning: {error}; going back to the previous checkpoint", file=sys.stderr)
        return None

    def last_good(self) -> str:
        """For messages: the newest checkpoint, or that there is none."""
        return str(self._all()[-1]) if self._all() else "none yet"

    def _path(self, step: int) -> Path:
        return self.directory / f"{PREFIX}{step:08d}"

    def _all(self) -> list[Path]:
        return sorted(p for p in self.directory.glob(f"{PREFIX}*") if p.is_dir())

    def _point(self, name: str, path: Path) -> None:
        aside = self.directory / f".{name}.new"
        aside.unlink(missing_ok=True)
        aside.symlink_to(path.name, target_is_directory=True)
        os.replace(aside, self.directory / name)


def check_same_run(saved: dict[str, Any], current: dict[str, Any], directory: Path) -> None:
    """Refuse to go on with a run of another configuration.

    Raises:
        UserError: naming every option that differs.
    """
    differing = []
    for section in sorted({*saved, *current}):
        old, new = saved.get(section), current.get(section)
        if isinstance(old, dict) and isinstance(new, dict):
            keys = sorted({*old, *new} - MAY_CHANGE.get(section, set()))
            differing += [f"{section}.{k} {old.get(k)!r} -> {new.get(k)!r}" for k in keys if old.get(k) != new.get(k)]
        elif old != new and section not in MAY_CHANGE:
            differing.append(f"{section} {old!r} -> {new!r}")
    if differing:
        raise UserError(
            "holds a run of another configuration: " + ", ".join(differing),
            path=directory,
            cure="choose another --save-dir, or delete this one",
        )
