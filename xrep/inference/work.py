"""The folder beside an output in which a long command keeps what it has computed, so that it can go on later."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.interrupts import Interrupted

LOCK, MARK = "lock", "xrep-work"
"""The file that is locked, and the one that says that the folder was made here. Without it nothing is removed."""


@contextmanager
def work_folder(work: Path, own: re.Pattern[str], what: str, resumable: str) -> Iterator[Path]:
    """Context manager that creates the folder if necessary, locks it for this process, and yields it.

    At the end, the command's files are removed, and the folder if it is then empty. They stay if the block fails and
    there is something to resume from, or if the block has removed the lock: then they are its result. Who cannot read
    the output that will be replaced cannot read the folder.

    Args:
        own: Pattern of the names of the files that the command keeps there.
        what: What the command does, for a message: "mining into this file".
        resumable: Pattern (glob) of the files that are worth keeping.

    Raises:
        UserError: Something else is there, or another process holds the lock.
        Interrupted: Ctrl-C was pressed.
    """
    if work.exists() and not (work.is_dir() and ((work / MARK).exists() or {*os.listdir(work)} <= {LOCK})):
        raise UserError("not the folder of an unfinished command", path=work, cure="rename it, or write elsewhere")
    target, lock = work.with_name(work.name.removesuffix(".work")), work / LOCK
    with naming(work):
        work.mkdir(exist_ok=True)
        readers = target.stat().st_mode if target.exists() else 0o044
        closed = 0o070 * (not readers & 0o040) | 0o007 * (not readers & 0o004)
        if (mode := work.stat().st_mode) & closed:
            work.chmod(mode & 0o777 & ~closed)
        (work / MARK).touch()
    with lock.open("a") as file:
        with suppress(OSError):  # Some network file systems do not support locks.
            if not try_lock(file):
                raise UserError(f"another process is {what}", path=target, cure="wait for it, or write elsewhere")
        try:
            yield work
            if lock.exists():
                remove_work(work, own)
        except BaseException as error:
            saved = any(work.glob(resumable))
            if not saved:
                remove_work(work, own)
            if isinstance(error, KeyboardInterrupt):
                done = f"what is done is in {work}, and the same command goes on from there"
                raise Interrupted(done if saved else "nothing is saved yet") from None
            raise


def remove_work(work: Path, own: re.Pattern[str]) -> None:
    """Remove the files of a command from its folder, and the folder unless somebody else has put something there."""
    files = [path for path in work.iterdir() if path.name in (LOCK, MARK) or own.fullmatch(path.name)]
    for path in sorted(files, key=_order):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError):
        work.rmdir()


def _order(path: Path) -> tuple[bool, ...]:
    """What says to which input the other files belong is removed after them, and the lock last."""
    return path.is_file(), path.name == LOCK, path.name == MARK, path.suffix == ".json"
