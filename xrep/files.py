"""Atomic writing of files, folders and links; locks; and the sha256 of a file.

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


def same_file(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths lead to the same file, through links as well, or will once it exists."""
    with suppress(OSError):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


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
    path = Path(os.path.realpath(path) if os.path.islink(path) else path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
    if path.exists():
        _take_access(aside, path)
    os.replace(aside, path)


def _take_access(new: Path, old: Path) -> None:
    """Give ``new`` the mode of ``old`` (a link has none) and, where the system permits it, its owner and group."""
    status, own = old.lstat(), new.lstat()
    for user, group in ((status.st_uid, -1), (-1, status.st_gid)):
        if user not in (-1, own.st_uid) or group not in (-1, own.st_gid):
            with suppress(OSError):
                os.chown(new, user, group, follow_symlinks=False)
    if not new.is_symlink():
        new.chmod(stat.S_IMODE(status.st_mode))


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _take_over(new: Path, old: Path) -> None:
    """Prepare a folder to replace another one: what only ``old`` has is then in both, and what both have keeps its mode
    and owner. A file of ``new`` replaces a folder of its name with all that is in it, and the reverse."""
    both = [(new, old)]
    for path in sorted(old.rglob("*")):
        twin = new / path.relative_to(old)
        if not _is_folder(twin.parent):  # in a folder that is replaced by a file
            continue
        if os.path.lexists(twin):
            both += [(twin, path)] if _is_folder(twin) == _is_folder(path) else []
        elif _is_folder(path):
            twin.mkdir()
            both.append((twin, path))
        else:
            try:
                os.link(path, twin, follow_symlinks=False)
            except OSError:  # some file systems have no hard links
                shutil.copy2(path, twin, follow_symlinks=False)
                both.append((twin, path))
    for twin, path in reversed(both):  # a folder comes after what is in it, because its mode may forbid to write
        _take_access(twin, path)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a folder, and then itself and the folders in it unless something else is left in them.

    A link to a folder stays, with what is in it.
    """
    if folder.is_symlink():
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for path in sorted(filter(_is_folder, folder.rglob("*")), reverse=True):
        _remove_empty(path)
    _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file, which replaces an older one only when it is complete."""
    with write_aside(path) as aside:
        aside.write_text(json_text(content), encoding="utf-8")


def json_text(content: Any) -> str:
    """Return JSON that ends with a newline.

    Raises:
        ValueError: A number is not finite, which JSON cannot represent.
    """
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def point_link(link: Path, target: str | Path) -> None:
    """Make ``link`` a symbolic link to the folder ``target``; an older link is replaced atomically.

    Raises:
        FileExistsError: Something that is no link is there.
    """
    aside = link.with_name(f".{link.name}.new")
    with naming(link):
        if os.path.lexists(link) and not link.is_symlink():
            raise FileExistsError(errno.EEXIST, "something that is no link has this name", str(link))
        aside.unlink(missing_ok=True)
        aside.symlink_to(target, target_is_directory=True)
        if link.is_symlink():
            _take_access(aside, link)
        os.replace(aside, link)


@contextmanager
def directory_aside(path: str | Path, is_current: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Context manager that yields an empty folder beside ``path``, which takes its place if the block succeeds.

    A reader finds the complete old folder, the complete new one, or none, but never a part of one. Files of the old
    folder that the new one lacks are somebody else's, and are in the new one as well. Where nothing may be replaced, a
    link is followed; elsewhere the link itself is replaced, because what it leads to is not ours.

    Args:
        path: The folder to write. Its parents are created.
        is_current: Function that says whether a folder is already what the block makes. A folder at ``path`` that is
            not current is replaced; one that is current at the end, because another process was faster, is kept. None:
            nothing may be at ``path`` but an empty folder.

    Raises:
        UserError: ``is_current`` is None, and something is at ``path``.
    """
    path = Path(path).absolute()
    if is_current is None:
        path = Path(os.path.realpath(path))
        check_new_directory(path)
    aside, old = (path.with_name(f".{path.name}.{secrets.token_hex(4)}.{ending}") for ending in ("partial", "old"))
    with naming(path):
        aside.mkdir(parents=True)
        if _is_folder(path):  # nobody can read the new folder who cannot read the old one
            aside.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IRWXU)
    try:
        yield aside
        if is_current is None:
            check_new_directory(path)
        elif is_current(path):
            return
        if _is_folder(path):
            _take_over(aside, path)
        try:
            os.replace(aside, path)  # fails if a folder is there that is not empty
        except OSError:
            if is_current is None:
                check_new_directory(path)
                raise
            # The old folder is moved first: a reader would find a part of it while it is deleted in place.
            with suppress(FileNotFoundError):
                os.replace(path, old)
            try:
                os.replace(aside, path)
            except OSError:
                if not is_current(path):
                    raise
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):  # the new folder did not take its place
            os.replace(old, path)
        for left in (aside, old):
            _remove(left)


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, also where a mode forbids to write."""
    if not _is_folder(path):
        path.unlink(missing_ok=True)
        return
    for folder in filter(_is_folder, (path, *path.rglob("*"))):
        with suppress(OSError):
            folder.chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def check_new_directory(path: Path) -> None:
    """Raise UserError if anything is at ``path`` but an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError("exists and is not empty", path=path, cure="remove it, or choose another name")


def flush_to_disk(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def build_once(directory: Path, marker: str, build: Callable[[Path], object]) -> None:
    """Create ``directory`` with ``build``, unless it is complete already.

    Several processes may call this at the same time: the folder of one of them is kept, and all are equivalent.

    Args:
        directory: The folder to create; an incomplete one is replaced.
        marker: Name of the file that ``build`` writes last; a folder that has it is complete.
        build: Function that fills an empty folder.
    """
    if not (directory / marker).is_file():
        with directory_aside(directory, lambda folder: (folder / marker).is_file()) as folder:
            build(folder)


def try_lock(file: IO[Any], *, inherited: bool = True) -> bool:
    """Lock an open file without waiting, and return whether it is locked now; False if another process holds its lock.

    The lock ends when the file is closed or the process ends. If it is ``inherited`` (flock instead of a POSIX lock),
    processes forked from this one hold it as well. OSError is raised if the file system does not support locks.
    """
    try:
        (fcntl.flock if inherited else fcntl.lockf)(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


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
