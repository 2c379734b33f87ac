"""Files that appear whole or not at all, and the sha256 of a file."""

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
    """The hex sha256 of a file, read piece by piece. ``hashlib.file_digest`` would need Python 3.11."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let a failed write (a full disk, a quota) name the file or folder it was for: Python often does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def write_aside(path: str | Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it takes the place of ``path`` if the block ends well."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: str | Path, *, folder: bool = False) -> None:
    """Find out before the work whether its result can be written: a file, or a folder that may yet have to be made.

    Raises:
        UserError: the parent folder is missing or closed to writing, or something of another kind has that name.
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
    """Have ``build`` fill a folder aside that becomes ``directory``, unless that is there; ``marker`` is its last file.

    Several processes may do so at once: one of the folders stays, which is as good as the others.
    """
    if (directory / marker).is_file():
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".", dir=directory.parent))
    try:
        build(temporary)
        os.replace(temporary, directory)
    except OSError:
        if not (directory / marker).is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
