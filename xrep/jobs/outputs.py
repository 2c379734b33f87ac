"""The folder of a job beside its output, inputs that can be read only once, and how the output appears."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from xrep.errors import UserError
from xrep.files import is_stream, naming
from xrep.jobs.plan import BESIDE, COPY, FINISHED, LOCK_FILE, PLAN
from xrep.store import addresses
from xrep.store.addresses import is_local, join
from xrep.store.vectors import VECTORS_MANIFEST
from xrep.text.hf_datasets import is_dataset, state_of_dataset
from xrep.text.lines import container_of
from xrep.text.records import split_field


def job_address(output: str | Path) -> str:
    """Return the address of the folder of a job that makes ``output``."""
    return (os.path.realpath(output) if is_local(output) else str(output).rstrip("/")) + ".job"


def prepare_job(output: str | Path) -> str:
    """Make the folder of a job, and return its address. Only its owner can read it, unless all can read the output that
    will be replaced. A UserError says that something else than a job is there."""
    job = job_address(output)
    names = addresses.names_in(job)
    known = PLAN in names or all(name in (FINISHED, LOCK_FILE) or name.startswith(BESIDE) for name in names)
    if not known or (is_local(job) and os.path.exists(job) and not os.path.isdir(job)):
        raise UserError("not the folder of an unfinished command", path=job, cure="rename it, or write elsewhere")
    addresses.make_folder(job)
    if is_local(job) and os.path.exists(output) and os.stat(output).st_mode & 0o044 != 0o044:
        os.chmod(job, 0o700)
    return job


def repeatable(path: str | Path | Iterable[bytes], output: str | Path) -> str:
    """Return a path with what a file has that can be read once only (``-`` is standard input), or what these blocks
    are: a copy in the folder of the job that makes ``output``, whose name has a checksum. Other files are returned as
    they are."""
    if not isinstance(path, str | Path):
        return _copied(path, "", prepare_job(output))
    path = "/dev/stdin" if str(path) == "-" else str(path)
    if not is_local(path) or not is_stream(path):
        return path
    with open(path, "rb") as content:
        return _copied(iter(partial(content.read, 1 << 20), b""), "".join(Path(path).suffixes), prepare_job(output))


def _copied(blocks: Iterable[bytes], ending: str, job: str) -> str:
    digest, folder = hashlib.sha256(), job if is_local(job) else None
    try:
        with naming(job), NamedTemporaryFile(prefix=COPY, dir=folder) as copy:
            for block in blocks:
                digest.update(block)
                copy.write(block)
            copy.flush()
            named = join(job, f"{COPY}{digest.hexdigest()[:16]}{ending}")
            if not addresses.exists(named):  # a plan has the time of a copy that an interrupted command has made
                addresses.publish(copy.name, named)
    finally:
        if folder is not None:
            with suppress(OSError):  # the folder has the copy, or what another command has left
                os.rmdir(folder)
    return named


def states_of(files: Sequence[str | Path]) -> list[list[Any]]:
    """Return what changes when one of these files changes: its path with its size and its time or ETag. A folder with a
    manifest is known by it, a field (``FILE:FIELD``) and a file in an archive by their file, a data set as
    ``state_of_dataset`` says. A UserError names a file that is missing."""
    return [_state_of(str(file)) for file in files]


def _state_of(file: str) -> list[Any]:
    place, real = str(split_field(file)[0]), file
    if is_dataset(file):
        return state_of_dataset(place)
    if is_local(file):
        place, real = str(container_of(Path(place))), os.path.realpath(file)
    manifest = join(place, VECTORS_MANIFEST)
    try:
        known = manifest if addresses.is_folder(place) and addresses.exists(manifest) else place
        return [real, *addresses.state_of(known)]
    except FileNotFoundError:
        raise UserError("no such file", path=file, cure="check the name") from None


def publish_parts(files: Mapping[str, str], folder: str) -> None:
    """Give files of a job their names in a folder of the output."""
    addresses.make_folder(folder)
    for name, file in files.items():
        addresses.publish(file, join(folder, name))
