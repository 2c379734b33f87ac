"""The folder beside an output in which a long command keeps what it has computed, so that it can go on later."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.interrupts import Interrupted


@contextmanager
def work_folder(work: Path, own: re.Pattern[str], what: str, resumable: str) -> Iterator[Path]:
    """Context manager that creates the folder if necessary, locks it for this process, and yields it.

    At the end, the command's files are removed, and the folder if it is then empty. They stay if the block fails and
    there is something to resume from, or if the block has removed the lock: then they are its result.

    Args:
        own: Pattern of the names of the files that the command keeps there.
        what: What the command does, for a message: "mining into this file".
        resumable: Pattern (glob) of the files that are worth keeping.

    Raises:
        UserError: Something else is there, or another process holds the lock.
        Interrupted: Ctrl-C was pressed.
    """

    def own_files() -> list[Path]:
        return [path for path in work.iterdir() if own.fullmatch(path.name)]

    def remove() -> None:
        # What says to which input the other files belong goes after them, and the lock last.
        for path in sorted(own_files(), key=lambda path: (path.is_file(), path.suffix == ".json", path == lock)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with suppress(OSError):  # somebody else has put something there
            work.rmdir()

    if work.exists() and not (work.is_dir() and (own_files() or not any(work.iterdir()))):
        raise UserError("not the folder of an unfinished command", path=work, cure="rename it, or write elsewhere")
    with naming(work):
        work.mkdir(exist_ok=True)
    lock = work / "lock"
    with lock.open("a") as file:
        with suppress(OSError):  # Some network file systems do not support locks.
            if not try_lock(file):
                target = work.with_name(work.name.removesuffix(".work"))
                raise UserError(f"another process is {what}", path=target, cure="wait for it, or write elsewhere")
        try:
            yield work
            if lock.exists():
                remove()
        except BaseException as error:
            saved = any(work.glob(resumable))
            if not saved:
                remove()
            if isinstance(error, KeyboardInterrupt):
                done = f"what is done is in {work}, and the same command goes on from there"
                raise Interrupted(done if saved else "nothing is saved yet") from None
            raise
