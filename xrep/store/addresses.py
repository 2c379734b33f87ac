"""Files by their address: a path of this machine, or the address of an object store that fsspec knows, such as
``s3://bucket/name``. A new file appears at once with all of its content."""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from xrep.errors import UserError
from xrep.files import naming, replace_file

Address = str | Path
T = TypeVar("T")
_AT_A_TIME = 1000
"""Number of small files that an object store is asked for at a time."""
_TRIES, _PAUSE = 4, 0.5
"""How often a request to an object store is made, and the seconds after the first one that failed."""


def is_local(address: Address) -> bool:
    """Return whether an address is a path of this machine."""
    return "://" not in str(address)


def join(folder: Address, *names: str) -> str:
    """Return the address of something in a folder."""
    return "/".join([str(folder).rstrip("/"), *names]) if not is_local(folder) else os.path.join(folder, *names)


@functools.cache
def _of_protocol(protocol: str, process: int) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(protocol)
    except ImportError as error:
        names = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
        cure = f"pip install 'xrep[{names[protocol]}]'" if protocol in names else "install the package that reads it"
        raise UserError(f"{protocol}:// needs another package ({error})", cure=cure) from None
    except ValueError:
        raise UserError(f"{protocol}:// is no store that fsspec knows", cure="give a path, s3:// or gs://") from None


def store_of(address: Address) -> Any:
    """Return fsspec's file system of an address of an object store; a process that was forked has its own."""
    return _of_protocol(str(address).partition("://")[0], os.getpid())


def _patiently(request: Callable[[], T]) -> T:
    """Return the answer of an object store, which may refuse a request because it is busy."""
    for attempt in range(_TRIES):
        try:
            return request()
        except (FileNotFoundError, FileExistsError, PermissionError):
            raise
        except OSError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE * 2**attempt)
    raise AssertionError


def exists(address: Address) -> bool:
    if is_local(address):
        return os.path.exists(address)
    store = store_of(address)
    store.invalidate_cache()
    return _patiently(lambda: store.exists(str(address)))


def is_file(address: Address) -> bool:
    """Return whether there is a file, and not a folder, at an address."""
    if is_local(address):
        return os.path.isfile(address)
    store = store_of(address)
    store.invalidate_cache()
    return _patiently(lambda: store.isfile(str(address)))


def state_of(address: Address) -> list[Any]:
    """Return what changes when a file is written again: its size, and its time or its ETag."""
    if is_local(address):
        status = os.stat(address)
        return [status.st_size, status.st_mtime_ns]
    info = _info(address)
    changed = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("created") or ""
    return [int(info["size"]), str(changed)]


def _info(address: Address) -> dict[str, Any]:
    store = store_of(address)
    store.invalidate_cache()
    return _patiently(lambda: store.info(str(address)))


def names_in(folder: Address) -> list[str]:
    """Return the sorted names of what is in a folder; none if there is no such folder."""
    try:
        if is_local(folder):
            return sorted(os.listdir(folder))
        store = store_of(folder)
        store.invalidate_cache()
        found = _patiently(lambda: store.ls(str(folder), detail=False))
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found} - {""})
    except (FileNotFoundError, NotADirectoryError):
        return []


def matching(pattern: str) -> list[str]:
    """Return the sorted addresses of the files that match a pattern with ``*``, ``?`` or ``[``; the pattern itself if
    it has none of them, or is the name of a file. A UserError says that nothing matches."""
    if not any(character in pattern for character in "*?[") or (is_local(pattern) and os.path.exists(pattern)):
        return [pattern]
    if is_local(pattern):
        import glob

        found = sorted(glob.glob(pattern))
    else:
        protocol, store = pattern.partition("://")[0], store_of(pattern)
        store.invalidate_cache()
        found = [f"{protocol}://{path}" for path in sorted(_patiently(lambda: store.glob(pattern)))]
    if not found:
        raise UserError("no file matches", path=pattern, cure="check the name")
    return found


def read(address: Address) -> bytes:
    if is_local(address):
        return Path(address).read_bytes()
    store = store_of(address)
    return _patiently(lambda: store.cat_file(str(address)))


def read_all(files: Sequence[str]) -> list[bytes]:
    """Return the content of many small files; an object store answers many requests at a time."""
    if not files or is_local(files[0]):
        return [read(file) for file in files]
    store, contents = store_of(files[0]), list[bytes]()
    for start in range(0, len(files), _AT_A_TIME):
        some = files[start : start + _AT_A_TIME]
        found = _patiently(lambda some=some: store.cat(some))
        found = {some[0]: found} if isinstance(found, bytes) else found
        contents += [found[store._strip_protocol(file)] if file not in found else found[file] for file in some]
    return contents


def make_folder(folder: Address) -> None:
    """Make a folder and those above it; in an object store there are none."""
    if is_local(folder):
        with naming(folder):
            os.makedirs(folder, exist_ok=True)


def create(address: Address, content: bytes) -> bool:
    """Write a small file unless there is one of this name, and return whether it was written. Of several processes that
    do this at the same time one succeeds."""
    if is_local(address):
        aside = f"{address}.{secrets.token_hex(4)}.new"
        with naming(address):
            Path(aside).write_bytes(content)
            try:
                os.link(aside, address)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                if os.path.exists(address):
                    return False
                os.replace(aside, address)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(aside)
        return True
    store = store_of(address)
    try:
        _patiently(lambda: store.pipe_file(str(address), content, mode="create"))
    except FileExistsError:
        return False
    return True


def write(address: Address, content: bytes) -> None:
    """Write a small file, which replaces an older one at once."""
    if is_local(address):
        aside = Path(f"{address}.{secrets.token_hex(4)}.new")
        with naming(address):
            aside.write_bytes(content)
            os.replace(aside, address)
        return
    store = store_of(address)
    _patiently(lambda: store.pipe_file(str(address), content))


def put(file: Path, address: Address) -> None:
    """Move a file of this machine to an address, where a file of the same content may be."""
    if is_local(address):
        with naming(address):
            shutil.move(file, address)
        return
    store = store_of(address)
    _patiently(lambda: store.put_file(str(file), str(address)))
    file.unlink()


def publish(file: Address, output: Address) -> None:
    """Copy a file to its final address on the same file system, where it replaces an older one at once; on this machine
    both names then lead to one file."""
    if not is_local(output):
        store = store_of(output)
        if is_local(file):
            _patiently(lambda: store.put_file(str(file), str(output)))
        else:
            _patiently(lambda: store.copy(str(file), str(output)))
        return
    target = Path(os.path.realpath(output))
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with naming(output):
        aside.unlink(missing_ok=True)
        try:
            if not is_local(file):
                raise OSError
            os.link(file, aside)
        except OSError:  # a file system without hard links
            with opened(file) as content, open(aside, "wb") as copy:
                shutil.copyfileobj(content, copy)
        replace_file(aside, target)


def remove(address: Address) -> None:
    """Remove a file or a folder with all that is in it; nothing may be there."""
    if not is_local(address):
        store = store_of(address)
        store.invalidate_cache()
        with suppress(FileNotFoundError):
            _patiently(lambda: store.rm(str(address), recursive=True))
    elif os.path.isdir(address) and not os.path.islink(address):
        shutil.rmtree(address)
    else:
        Path(address).unlink(missing_ok=True)


@contextmanager
def opened(address: Address) -> Iterator[IO[bytes]]:
    """Context manager that yields a file to read from the beginning."""
    with open(address, "rb") if is_local(address) else store_of(address).open(str(address), "rb") as file:
        yield file


class Bytes:
    """A file of which any part can be read: one with an address, or one that this process writes."""

    def __init__(self, file: Address | IO[bytes]) -> None:
        local = not isinstance(file, str | Path) or is_local(file)
        self._file = open(file, "rb", buffering=0) if isinstance(file, str | Path) and local else file
        self._store: Any = None if local else store_of(str(file))

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``start`` to ``stop`` - 1."""
        content = bytearray(stop - start)
        self.fill(start, memoryview(content))
        return bytes(content)

    def fill(self, start: int, content: memoryview) -> None:
        """Read as many bytes as ``content`` has, from ``start`` on."""
        while len(content):  # the system reads at most 2 GB at a time
            if isinstance(self._file, str | Path):
                place, stop = str(self._file), start + len(content)
                found = _patiently(lambda start=start, stop=stop, place=place: self._store.cat_file(place, start, stop))
                content[: len(found)] = found
                done = len(found)
            else:
                done = os.preadv(self._file.fileno(), [content], start)
            if not done:
                raise UserError("a file was truncated while it was read", cure="make it again")
            start, content = start + done, content[done:]
