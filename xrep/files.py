"""Atomic writing of files, folders and links; a lock; and the sha256 of a file.

What replaces something takes over its mode and, where the system permits it, its owner and group. In a folder that is
replaced, only the files that the new one has too are ours: others stay.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from xrep.errors import UserError


def sha256_of(path: str | Path) -> str:
    """Return the hex sha256 of a file, read in blocks. ``hashlib.file_digest`` would need Python 3.11."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digests_of(directory: Path) -> dict[str, str]:
    """Return ``{path relative to the directory: sha256}`` of all files in a directory and its folders, sorted."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): sha256_of(path) for path in files}


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Context manager that adds ``path`` to the OSError of a failed write (full disk, quota), which may not name it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def is_stream(path: str | Path) -> bool:
    """Return whether a path is that of a device, a pipe or an open stream such as /dev/stdout, which is only written
    to and never replaced."""
    absolute, real = os.path.abspath(path), os.path.realpath(path)
    if absolute.startswith(("/dev/", "/proc/")) and not absolute.startswith("/dev/shm/"):
        return True
    return os.path.exists(real) and not os.path.isfile(real) and not os.path.isdir(real)


@contextmanager
def write_aside(path: str | Path) -> Iterator[Path]:
    """Context manager that yields a temporary path, whose file becomes the one at ``path`` if the block succeeds.

    A regular file is replaced at once, and of a link the file that it leads to. Devices and pipes are never replaced:
    the content is written to them. The temporary file exists already if there is one to replace, with its mode.
    """
    if is_stream(path):
        with naming(path), tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "content"
            with open(Path(folder) / "content", "rb") as content, open(path, "ab") as stream:
                shutil.copyfileobj(content, stream)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")  # process ids repeat in containers
    try:
        with naming(path):
            if path.is_file():  # so that nobody can read the new content before who cannot read the old one
                mode = stat.S_IMODE(path.stat().st_mode) | stat.S_IWUSR
                os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode))
            yield temporary
            replace_file(temporary, path)
    finally:
        with suppress(OSError):  # a read-only file system refuses to remove even what is not there
            temporary.unlink()


def replace_file(aside: Path, path: Path) -> None:
    """Rename a file, or a folder whose new place is free or empty; what is there leaves it its mode and owner."""
    with suppress(FileNotFoundError):
        status = path.stat()
        for user, group in ((status.st_uid, -1), (-1, status.st_gid)):
            with suppress(OSError):  # others than root may not
                os.chown(aside, user, group)
        aside.chmod(stat.S_IMODE(status.st_mode))
    os.replace(aside, path)


def link_or_copy(file: Path, path: Path) -> None:
    """Make ``path`` another name of a file, or a copy on another file system; nothing may have this name yet."""
    try:
        os.link(file.resolve(), path)
    except OSError:
        with write_aside(path) as aside:
            shutil.copyfile(file, aside)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, and then itself and the folders in it unless something else is left in them.

    A link to a folder stays, with what is in it.
    """
    if folder.is_symlink():
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        with suppress(OSError):  # it is no folder, or not empty
            path.rmdir()


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file, which replaces an older one only when it is complete."""
    with write_aside(path) as aside:
        aside.write_text(json_text(content), encoding="utf-8")


def json_text(content: Any) -> str:
    """Return JSON that ends with a newline. Raises ValueError if a number is not finite, which JSON has not."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def point_link(link: Path, target: str | Path) -> None:
    """Make ``link`` a symbolic link to the folder ``target``; an older link is replaced atomically.

    Raises:
        FileExistsError: Something that is no link is there.
    """
    aside = link.with_name(f".{link.name}.new")
    with naming(link):
        if link.exists() and not link.is_symlink():
            raise FileExistsError(errno.EEXIST, "something that is no link has this name")
        aside.unlink(missing_ok=True)
        aside.symlink_to(target, target_is_directory=True)
        os.replace(aside, link)


@contextmanager
def directory_aside(path: str | Path, marker: str | None = None, place: Path | None = None) -> Iterator[Path]:
    """Context manager that yields an empty folder beside ``path``, which takes its place if the block succeeds.

    A link is followed, and parents are created. Files of an old folder that the new one lacks are somebody else's, and
    stay. A reader that looks for the marker finds all files of the old folder, all of the new one, or no marker.

    Args:
        marker: The file without which a folder of this kind is not complete. A folder at ``path`` is replaced, unless
            its marker has changed during the block, because another process was faster. None: nothing may be at
            ``path`` but an empty folder.
        place: Another folder of the same file system, in which the empty folder is made.

    Raises:
        UserError: ``marker`` is None, and something is at ``path``.
    """
    path = Path(os.path.realpath(path))
    if marker is None:
        check_new_directory(path)
    before, aside = _inode(path, marker), (place or path.parent) / f".{path.name}.{secrets.token_hex(4)}.partial"
    try:
        with naming(path):
            aside.mkdir(parents=True)
            if path.is_dir():  # nobody can read the new folder who cannot read the old one
                aside.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
        yield aside
        try:
            replace_file(aside, path)
        except OSError:  # a folder is there that is not empty
            if marker is None:
                check_new_directory(path)
                raise
            if _inode(path, marker) == before:
                _move_files(aside, path, marker)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _inode(folder: Path, marker: str | None) -> int | None:
    """Return what tells whether another process has written the marker of a folder."""
    with suppress(OSError):
        return (folder / marker).stat().st_ino if marker else None


def _move_files(aside: Path, path: Path, marker: str) -> None:
    """Move all files to another folder, where the marker is missing meanwhile."""
    (path / marker).unlink(missing_ok=True)
    for new in sorted(aside.rglob("*"), key=lambda file: file == aside / marker):
        old = path / new.relative_to(aside)
        if new.is_dir():
            old.mkdir(exist_ok=True)
        else:
            replace_file(new, old)


def check_new_directory(path: Path) -> None:
    """Raise UserError if anything is at ``path`` but an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError("exists and is not empty", path=path, cure="remove it, or choose another name")


def build_once(directory: Path, marker: str, build: Callable[[Path], object]) -> None:
    """Create ``directory`` by ``build``, which fills an empty folder and writes the marker last, unless it is complete.

    Several processes may call this at the same time: one of them builds, and the others wait for it.
    """
    if (directory / marker).is_file():
        return
    with locked(directory.with_name(f"{directory.name}.lock")):
        if not (directory / marker).is_file():
            with directory_aside(directory, marker) as folder:
                build(folder)


def flush_to_disk(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file without waiting, and return whether it is locked now; False if another process holds its lock.

    The lock ends when the file is closed or the process ends, and processes forked from this one do not hold it.
    OSError is raised if the file system does not support locks.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager that one process at a time is in, of those that name the same file, which is there meanwhile.

    The others wait, and say so on stderr. Nobody waits for a process that has ended, or where files cannot be locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _wait_for(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _wait_for(path: Path) -> IO[Any]:
    """Return an open file that is locked."""
    is_told = False
    while True:
        file = path.open("a")
        with suppress(OSError):  # some network file systems do not support locks
            if not try_lock(file):
                if not is_told:
                    print(f"waiting for another process, which has locked {path}", file=sys.stderr, flush=True)
                is_told = True
                fcntl.lockf(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # unless the process that had the lock has removed the file
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        file.close()


def check_output(path: str | Path, *, folder: bool = False) -> None:
    """Check before a long computation that its result, a file or a ``folder``, can be written.

    Raises:
        UserError: If the parent folder is missing or not writable, or ``path`` is of the other kind.
    """
    path = Path(path)
    if is_stream(path) and not folder:
        if not os.access(path, os.W_OK):
            raise UserError("no permission to write to it", path=path, cure="write elsewhere")
        return
    place = path if folder and path.is_dir() else Path(os.path.realpath(path)).parent
    if not place.is_dir():
        raise UserError("no such folder", path=place, cure="make it first, or write elsewhere")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError("no permission to write in this folder", path=place, cure="write elsewhere")
    if path.exists() and path.is_dir() != folder:
        kind = "a folder" if path.is_dir() else "a file"
        raise UserError(f"is {kind} already", path=path, cure="choose another name")
