"""The checkpoints of one run: which are kept, which are the last and the best, and from which the run resumes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrep.config.fields import Count, CountOrZero
from xrep.errors import UserError
from xrep.files import naming, point_link, remove_files, try_lock
from xrep.models.directory import (
    PREFIX,
    Checkpoint,
    Snapshot,
    checkpoints_in,
    file_names,
    open_checkpoint,
    write_checkpoint,
)
from xrep.store.addresses import is_local

LOCK = ".lock"
MAY_CHANGE = {
    *"distributed init logging plugins task.data task.batch_size task.max_tokens".split(),
    *"trainer.max_steps trainer.max_epochs trainer.max_minutes trainer.patience trainer.validate_every".split(),
    *"trainer.update_freq trainer.micro_batch trainer.precision trainer.compile trainer.device".split(),
    *"trainer.activation_checkpointing trainer.data_workers".split(),
    *"checkpoint.save_dir checkpoint.save_every checkpoint.keep_last".split(),
}
"""Sections and options whose values may change when a run is resumed, including the task options of each part; any
other change would make it a different run. Numbers stay equal to the last bit only if device, precision, batch
size and number of processes stay the same, too."""


class Checkpoints:
    """The directory of a run: ``checkpoint-00001000/`` and so on, with links ``last`` and ``best`` to one each.

    A thread writes one checkpoint at a time from a copy in memory, while training goes on. A link is moved and an old
    checkpoint is deleted only when the new one is complete. A ``with`` block waits at its end for the thread to finish.

    Args:
        say: prints a warning; by default to stderr.

    Attributes:
        stalled_seconds: total time for which ``save`` has kept its caller from training.
    """

    @dataclass(kw_only=True)
    class Config:
        save_dir: str | None = None
        """Directory of the run. A run found there with the same configuration is resumed. none: runs/TASK-CRITERION."""
        save_every: CountOrZero = 1000
        """Number of steps between checkpoints. 0: save only after the best validation so far and at the end."""
        keep_last: Count = 2
        """Number of recent checkpoints that are kept, in addition to the best."""

        def problems(self) -> list[str]:
            in_store = self.save_dir is not None and not is_local(self.save_dir)
            return ["save_dir is in an object store; train in a folder of this machine, and copy it"] * in_store

    def __init__(self, config: Config, directory: Path, say: Callable[[str], None] | None = None) -> None:
        self.config, self.directory, self.stalled_seconds = config, directory, 0.0
        self.say = say or (lambda line: print(line, file=sys.stderr))
        self._writer, self._best_is_due = ThreadPoolExecutor(1, "checkpoint"), False
        self._writing = list[Future[None]]()  # one at most
        self._whole: int | None = None
        self._spare: Snapshot | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with suppress(*([] if kind is None else [Exception])):  # the error that ends the block is the one to report
            self.wait()

    def save(self, best: bool, final: bool = False, **facts: Any) -> None:
        """Wait for the previous checkpoint, copy ``Snapshot.of(**facts)`` into its memory, and start writing it.

        If it cannot be written, for example because the disk is full, it is left out with a warning: the existing
        checkpoints stay, and training goes on. If it would have been the best, the next one becomes ``best`` instead.
        The ``final`` one is waited for.

        Raises:
            OSError: the final checkpoint cannot be written.
        """
        started = time.monotonic()
        self.wait()
        snapshot = Snapshot.of(**facts, spare=self._spare)
        self._writing.append(self._writer.submit(self._write, snapshot, best, final))
        if final:
            self.wait()
        self.stalled_seconds += time.monotonic() - started

    def wait(self) -> None:
        """Wait for the checkpoint that is being written. Raises OSError if it is the final one, and cannot be."""
        while self._writing:
            self._writing.pop().result()

    def point(self, last: int, best: int | None) -> None:
        """Point the links ``last`` and ``best`` at the checkpoints of these steps.

        If ``best`` is None or has no checkpoint, an existing link ``best`` stays, and a missing one is set to ``last``.
        """
        if best is None or not self._path(best).exists():
            best = None if (self.directory / "best").exists() else last
        for name, step in (("last", last), ("best", best)):
            if step is not None:
                point_link(self.directory / name, self._path(step).name)

    def latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or None; a warning names each damaged one that is skipped."""
        for path in reversed(checkpoints_in(self.directory)):
            try:
                checkpoint = open_checkpoint(path).check()
            except UserError as error:
                self.say(f"warning: {error}; going back to the previous checkpoint")
            else:
                self._whole = checkpoint.step
                return checkpoint
        return None

    def last_good(self) -> str:
        """Return the path of the newest checkpoint for a message, or a text that says that there is none."""
        futures.wait(self._writing)
        paths = checkpoints_in(self.directory)
        return str(paths[-1]) if paths else "none yet"

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _write(self, snapshot: Snapshot, best: bool, final: bool) -> None:
        best = best or self._best_is_due
        try:
            if snapshot.step != self._whole:  # an intact one is never rewritten: a kill would lose it
                write_checkpoint(self._path(snapshot.step), snapshot)
                self._whole = snapshot.step
            with naming(self.directory):
                self._tidy(snapshot.step, best)
            self._best_is_due = False
        except OSError as error:
            self._best_is_due = best
            if final:
                raise
            effect = f"no checkpoint of step {snapshot.step}; make room before the next"
            if self._whole == snapshot.step:
                effect = f"the one of step {snapshot.step} is complete, but links and older ones are not all changed"
            self.say(f"warning: {error.filename}: {error.strerror}: {effect}; training goes on")
        finally:
            self._spare = snapshot

    def _tidy(self, step: int, best: bool) -> None:
        """Move the links, then delete the checkpoints that are no longer kept."""
        paths, own = checkpoints_in(self.directory), file_names(self._path(step))
        count = paths.index(self._path(step)) + 1
        for later in paths[count:]:
            remove_files(later, own)  # damaged: the run was resumed from an earlier one
        self.point(step, step if best else None)
        for old in paths[:count][: -self.config.keep_last]:
            if old.resolve() != (self.directory / "best").resolve():
                remove_files(old, own)

    def _path(self, step: int) -> Path:
        return self.directory / f"{PREFIX}{step:08d}"


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Keep other processes from training into ``directory``, which is made if missing.

    The operating system releases the lock however this process ends. It is a lock of the process (POSIX): processes
    forked from it, such as data workers that outlive it for seconds, do not hold it.

    Raises:
        UserError: another process holds the lock.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / LOCK, "a", encoding="utf-8") as file:
        try:
            is_free = try_lock(file)
        except OSError as error:  # some file systems have no locks
            advice = "see to it that no other process trains here"
            print(f"warning: {file.name}: {error.strerror}; {advice}", file=sys.stderr)
            is_free = True
        if not is_free:
            cure = "wait for it, or choose another `save_dir`"
            raise UserError("another process is training here", path=directory, cure=cure)
        yield


def check_same_run(saved: dict[str, Any], current: dict[str, Any], directory: Path) -> None:
    """Refuse to resume a run with another configuration.

    Raises:
        UserError: the configurations differ; it names every option that does.
    """
    keys = sorted(key for key in {*saved, *current} if saved.get(key) != current.get(key) and not _may_change(key))
    renamed = tuple(key.removesuffix("name") for key in keys if key.endswith(".name"))
    if differing := [key for key in keys if key.endswith(".name") or not key.startswith(renamed)]:
        listed = ", ".join(f"{key} {saved.get(key)!r} -> {current.get(key)!r}" for key in differing)
        cure = "choose another `save_dir`, or delete this one"
        if saved.get("size") != current.get("size"):  # auto is another size on another device
            cure = f"set `size` to {saved.get('size')} to go on with it, or {cure}"
        raise UserError(f"holds a run of another configuration: {listed}", path=directory, cure=cure)


def _may_change(key: str) -> bool:
    if key == "parts":  # their order; other parts have other keys
        return True
    return re.sub(r"^parts\.\w+\.(?=task\.)", "", key) in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE
