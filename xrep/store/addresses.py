"""Files by their address: a path of this machine, or the address of an object store that fsspec knows, such as
``s3://bucket/name``. A new file appears at once with all of its content."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError
from xrep.files import flush_to_disk, link_or_copy, naming, replace_file

Address = str | Path


def is_local(address: Address) -> bool:
    """Return whether an address is a path of this machine."""
    return "://" not in str(address)


def join(folder: Address, *names: str) -> str:
    """Return the address of something in a folder."""
    return "/".join([str(folder).rstrip("/"), *names]) if not is_local(folder) else os.path.join(folder, *names)


def store_of(address: Address) -> Any:
    """Return fsspec's file system of an address of an object store, which remembers no listing."""
    import fsspec

    protocol = str(address).partition("://")[0]
    options = {"auto_mkdir": True} if protocol == "file" else {}
    try:
        return fsspec.filesystem(protocol, use_listings_cache=False, **options)
    except ImportError as error:
        names = {"s3": "s3", "gs": "gcs", "gcs": "gcs"}
        cure = f"pip install 'xrep[{names[protocol]}]'" if protocol in names else "install the package that reads it"
        raise UserError(f"{protocol}:// needs another package ({error})", cure=cure) from None
    except ValueError:
        raise UserError(f"{protocol}:// is no store that fsspec knows", cure="give a path, s3:// or gs://") from None


@contextmanager
def asking(address: Address) -> Iterator[Any]:
    """Context manager that yields the file system of an address of an object store, whose errors then name the address.
    The packages of stores ask a busy one again themselves."""
    try:
        yield store_of(address)
    except (FileExistsError, UserError):
        raise
    except Exception as error:  # they have types of their own, such as for missing keys
        problem = " ".join(str(error).split()) or type(error).__name__
        number, said = errno.EIO, f"the store fails: {problem}; check its address and your keys"
        if isinstance(error, FileNotFoundError):
            number, said = errno.ENOENT, "no such file, or no such bucket; check the name"
        elif isinstance(error, PermissionError):
            said = f"the store refuses it ({problem}); check your keys, and what they may do in this bucket"
            number = errno.EACCES
        raise OSError(number, said, str(address)) from error


def exists(address: Address) -> bool:
    if is_local(address):
        return os.path.exists(address)
    with asking(address) as store:
        return store.exists(str(address))


def info_of(address: Address) -> dict[str, Any]:
    """Return what an object store knows of a file or a folder."""
    with asking(address) as store:
        return store.info(str(address))


def is_folder(address: Address) -> bool:
    """Return whether there is a folder at an address, and not a file; a FileNotFoundError says that neither is."""
    return os.path.isdir(address) if is_local(address) else info_of(address)["type"] == "directory"


def state_of(address: Address) -> list[Any]:
    """Return what changes when a file is written again: its size, and its time or its ETag."""
    if is_local(address):
        status = os.stat(address)
        return [status.st_size, status.st_mtime_ns]
    info = info_of(address)
    return [int(info["size"]), str(info.get("ETag") or info.get("etag") or info.get("created"))]


def names_in(folder: Address) -> list[str]:
    """Return the sorted names of what is in a folder; none if there is no such folder."""
    try:
        if is_local(folder):
            return sorted(os.listdir(folder))
        with asking(folder) as store:
            found = store.ls(str(folder), detail=False)
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found} - {""})
    except (FileNotFoundError, NotADirectoryError):
        return []


def matching_files(pattern: str) -> list[str]:
    """Return the sorted addresses of the files that match a pattern with ``*``, ``?`` or ``[``, each with the field if
    there is one (``*.jsonl:FIELD``); the pattern itself if it has none of them, or is the name of a file or of a data
    set (``hf:``). A UserError says that nothing matches."""
    if not glob.has_magic(pattern) or pattern.startswith("hf:"):
        return [pattern]
    folder, slash, name = pattern.rpartition("/")
    file, colon, field = name.rpartition(":")
    for place, ending in [(pattern, ""), *([(f"{folder}{slash}{file}", f":{field}")] if colon else [])]:
        if exists(place):
            return [pattern]
        if is_local(place):
            found = glob.glob(place)
        else:
            with asking(place) as store:
                found = [store.unstrip_protocol(path) for path in store.glob(place)]
        if found:
            return sorted(path + ending for path in found)
    raise UserError("no file matches", path=pattern, cure="check the name")


def read(address: Address) -> bytes:
    return Path(address).read_bytes() if is_local(address) else read_all([str(address)])[0]


def read_all(files: Sequence[str]) -> list[bytes]:
    """Return the content of many small files; an object store answers many requests at a time."""
    if not files or is_local(files[0]):
        return [read(file) for file in files]
    with asking(files[0]) as store:
        return store.cat_ranges(list(files), 0, None, on_error="raise")


def make_folder(folder: Address) -> None:
    """Make a folder and those above it; in an object store there are none."""
    if is_local(folder):
        os.makedirs(folder, exist_ok=True)


def create(address: Address, content: bytes) -> bool:
    """Write a small file unless there is one of this name, and return whether it was written. Of several processes that
    do this at the same time one succeeds."""
    return write(address, content, "create")


def write(address: Address, content: bytes, mode: Literal["overwrite", "create"] = "overwrite") -> bool:
    """Write a small file, which replaces an older one at once, or do what ``create`` does."""
    if not is_local(address):
        try:
            with asking(address) as store:
                store.pipe_file(str(address), content, mode=mode)
        except FileExistsError:
            return False
        return True
    target = Path(os.path.realpath(address))
    aside = target.with_name(f"{target.name}.{secrets.token_hex(4)}.new")
    with naming(address):
        aside.write_bytes(content)
        try:
            (os.link if mode == "create" else replace_file)(aside, target)
        except OSError:
            if mode == "create" and target.exists():
                return False
            replace_file(aside, target)  # on a file system without hard links
        finally:
            aside.unlink(missing_ok=True)
    return True


def publish(file: Address, output: Address) -> None:
    """Copy a file to its final address, where it replaces an older one at once: within a store, or from this machine to
    anywhere. On one file system of this machine both names then lead to one file, which is on disk."""
    if not is_local(output):
        with asking(output) as store:
            (store.put_file if is_local(file) else store.cp_file)(str(file), str(output))
        return
    target = Path(os.path.realpath(output))
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with naming(output):
        flush_to_disk(Path(file))
        try:
            link_or_copy(Path(file), aside)
            replace_file(aside, target)
        finally:
            aside.unlink(missing_ok=True)  # it stays if another process has linked the same file to the target already


def remove(address: Address) -> None:
    """Remove a file or a folder with all that is in it; nothing may be there, and others may remove it as well."""
    if not is_local(address):
        with suppress(FileNotFoundError), asking(address) as store:
            store.rm(str(address), recursive=True)
    elif os.path.isdir(address) and not os.path.islink(address):
        shutil.rmtree(address, ignore_errors=True)
    else:
        Path(address).unlink(missing_ok=True)
