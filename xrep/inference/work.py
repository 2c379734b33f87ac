"""The folder beside an output in which a long command keeps what it has computed, so that it can go on later."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xrep.errors import UserError
from xrep.files import try_lock
from xrep.interrupts import Interrupted


@contextmanager
def work_folder(work: Path, own: re.Pattern[str], what: str, resumable: str) -> Iterator[None]:
    """Context manager that creates the folder if necessary and locks it for this process. If the block fails before
    there is anything to resume from, the folder is removed.

    Args:
        own: Pattern of the names of the files that the command keeps there; a folder with others is not touched.
        what: What the command does, for a message: "mining into this file".
        resumable: Pattern (glob) of the files that are worth keeping.

    Raises:
        UserError: Something else is there, or another process holds the lock.
        Interrupted: Ctrl-C was pressed.
    """
    if work.exists() and not (work.is_dir() and all(own.fullmatch(path.name) for path in work.iterdir())):
        raise UserError("not the folder of an unfinished command", path=work, cure="rename it, or write elsewhere")
    work.mkdir(exist_ok=True)
    with (work / "lock").open("a") as lock:
        if not try_lock(lock):
            raise UserError(f"another process is {what}", path=work, cure="wait for it, or write elsewhere")
        try:
            yield
        except BaseException as error:
            saved = any(work.glob(resumable))
            if not saved:
                shutil.rmtree(work)  # There is nothing to resume from.
            if isinstance(error, KeyboardInterrupt):
                done = f"what is done is in {work}, and the same command goes on from there"
                raise Interrupted(done if saved else "nothing is saved yet") from None
            raise
