"""Atomic writing of files and folders, and the sha256 of a file."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xrep.errors import UserError


def sha256_of(path: str | Path) -> str:
    """Return the hex sha256 of a file, read in blocks. ``hashlib.file_digest`` would need Python 3.11."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Context manager that adds ``path`` to the OSError of a failed write (full disk, quota), which may not name it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def write_aside(path: str | Path) -> Iterator[Path]:
    """Context manager that yields a temporary path beside ``path``, which replaces ``path`` if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: str | Path, *, folder: bool = False) -> None:
    """Check before a long computation that its result can be written.

    Args:
        path: Where the result will be written.
        folder: Whether the result is a folder, which need not exist yet, instead of a file.

    Raises:
        UserError: If the parent folder is missing or not writable, or ``path`` is a folder where a file is needed or
            the reverse.
    """
    path = Path(path)
    place = path if folder and path.is_dir() else path.absolute().parent
    if not place.is_dir():
        raise UserError("no such folder", path=place, cure="make it first, or write elsewhere")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError("no permission to write in this folder", path=place, cure="write elsewhere")
    if path.exists() and path.is_dir() != folder:
        kind = "a folder" if path.is_dir() else "a file"
        raise UserError(f"is {kind} already", path=path, cure="choose another name")


def build_once(directory: Path, marker: str, build: Callable[[Path], None]) -> None:
    """Create ``directory`` with ``build``, unless it is complete already.

    Several processes may call this at the same time: the folder of one of them is kept, and all are equivalent.

    Args:
        directory: The folder to create.
        marker: Name of the file that ``build`` writes last; a folder that has it is complete.
        build: Function that fills an empty folder, which is then renamed to ``directory``.
    """
    if (directory / marker).is_file():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".", dir=directory.parent))
    try:
        build(temporary)
        os.replace(temporary, directory)
    except OSError:
        if not (directory / marker).is_file():  # If the file is there, another process was faster.
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
