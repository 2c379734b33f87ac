"""Text of the library ``datasets``: data sets of the Hugging Face Hub, and folders in which it keeps them on disk.

Rows are streamed, so that memory does not grow with their number. No code of a data set is executed: ``datasets`` knows
no scripts since its version 4, and refuses a data set that needs one.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from xrep.errors import UserError

Numbered = Iterator[tuple[int, dict[str, Any]]]
_NAMED = re.compile(r"hf:([^:]+):([\w.+-]+)(?:\[([0-9]*):([0-9]*)\])?")
_FORM = "write hf:NAME:SPLIT, hf:NAME/CONFIG:SPLIT or hf:NAME:SPLIT[0:1000], of pairs with :COLUMN,COLUMN behind it"


def is_dataset(path: str | Path) -> bool:
    """Return whether a path is ``hf:NAME:SPLIT``."""
    return str(path).startswith("hf:")


def read_dataset(named: str, read_parquet: Callable[[str], Numbered]) -> Numbered:
    """Yield the number, from 1, and the values of each row.

    Args:
        read_parquet: What reads a file of Parquet, because memory grows with the rows where ``datasets`` does it.
        named: ``hf:NAME:SPLIT``, where the name is a folder (of ``save_to_disk``, or of files of Parquet, JSON, CSV or
            Arrow) or ``organisation/name`` of the Hub, with ``/CONFIG`` behind it if it has configurations (a folder
            then begins with ``/`` or ``.``). The split may be several (``train+test``), or rows (``train[0:1000]``).

    Raises:
        UserError: The notation is wrong, there is no such data set, configuration or split, the network fails, a file
            is damaged, or the package is not installed.
    """
    name, config, split, first, last = _parse(named)
    with _library(named) as datasets:
        if saved := _saved_files(Path(name), split):
            builder = datasets.load_dataset_builder("arrow", data_files={split: saved})
        else:
            builder = datasets.load_dataset_builder(name, config)
        builder.config.keep_default_na, builder.config.na_values = False, [""]  # of CSV, where NA and null are text
        files = (builder.config.data_files or {}).get(split)
        if files and "Parquet" in [kind.__name__ for kind in type(builder).__mro__]:
            rows = (row for file in files for _, row in read_parquet(file))
        else:
            rows = builder.as_streaming_dataset(split=split)
        yield from itertools.islice(enumerate(rows, 1), first, last)


def state_of_dataset(named: str) -> list[Any]:
    """Return what changes when a data set changes: the files in a folder with their sizes and times, or the commit on
    the Hub. Raises UserError as ``read_dataset``."""
    name, config, *_ = _parse(named)
    if (folder := Path(name)).is_dir():
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        return [named, *([str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files)]
    with _library(named) as datasets:
        return [named, datasets.load_dataset_builder(name, config).hash]


@contextmanager
def _library(named: str) -> Iterator[Any]:
    """Context manager that yields ``datasets``, whose errors become one line."""
    try:
        import datasets
    except ModuleNotFoundError:
        raise UserError("a data set of the library datasets", path=named, cure="pip install 'xrep[datasets]'") from None
    for logger in ("datasets", "huggingface_hub"):  # what they say of an attempt that failed is in the error, too
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        yield datasets
    except UserError:
        raise
    except Exception as error:  # datasets, the Hub and each format have their own
        problem, cure = " ".join(str(error).split())[:200], "check the name, the configuration, the split and the files"
        if isinstance(error, ConnectionError):
            cure = "check the network and the name, or copy the data set to a folder and name that"
        raise UserError(f"datasets cannot read it ({problem or type(error).__name__})", path=named, cure=cure) from None


def _parse(named: str) -> tuple[str, str | None, str, int, int | None]:
    """Return the folder or name, the configuration, the split, and the numbers of its first and last row."""
    if not (match := _NAMED.fullmatch(named)):
        raise UserError("not the name of a data set", path=named, cure=_FORM)
    name, config = match[1].rstrip("/"), None
    (parent, _, last), is_path = name.rpartition("/"), name.startswith(("/", "."))
    has_configs = Path(parent, "README.md").is_file() if is_path else name.count("/") == 2  # which the file names
    if has_configs and not Path(name).is_dir():
        name, config = parent, last
    if is_path and not Path(name).is_dir():
        raise UserError("no such folder", path=name, cure="check the name")
    return name, config, match[2], int(match[3] or 0), int(match[4]) if match[4] else None


def _saved_files(folder: Path, split: str) -> list[str] | None:
    """Return the files of a split that ``save_to_disk`` wrote, or None if the folder is not of that kind. Raises
    UserError if the folder is of another split alone; without a name it is train, as ``datasets`` names it."""
    for place in (folder / split, folder):
        if (file := place / "state.json").is_file():
            state = json.loads(file.read_bytes())
            own = str(state.get("_split") or "train").partition("[")[0]  # datasets also writes train[:10%]
            if place == folder and own != split:
                raise UserError(f"it has the split {own}, not {split}", path=folder, cure=f"name hf:{folder}:{own}")
            return [str(place / file["filename"]) for file in state["_data_files"]]
    return None
