"""The tensors of a model directory by name, from safetensors or torch files, whole or sharded; no code in them runs."""

from __future__ import annotations

import json
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from xrep.errors import UserError
from xrep.registry import one_line

SAFETENSORS = "model.safetensors"
LAYOUTS = (SAFETENSORS, f"{SAFETENSORS}.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
AGAIN = "fetch the file again"


class Weights(Mapping[str, Tensor]):
    """The tensors of a directory, each read when it is accessed, so that only those that are needed are read.

    The layouts are tried in the order of ``LAYOUTS``. Tensors are on the CPU, and floating-point ones are converted to
    float32. A tensor may be mapped from the file (copy-on-write).

    Attributes:
        path: the file of the weights, or the index of the shards.

    Raises:
        UserError: there are no weights, a file is missing or damaged, or a file holds more than tensors.
    """

    def __init__(self, directory: Path) -> None:
        layouts = [directory / name for name in LAYOUTS if (directory / name).is_file()]
        if not layouts:
            problem = f"no weights: none of {', '.join(LAYOUTS)}"
            raise UserError(problem, path=directory, cure="give a directory with weights for PyTorch")
        self.path = layouts[0]
        files = _shards(self.path) if self.path.suffix == ".json" else [self.path]
        self._read = {name: read for file in files for name, read in _open(file).items()}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._read[name]()
        return tensor.float() if tensor.is_floating_point() else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


def _shards(index: Path) -> list[Path]:
    """Return the files that an index of weights names."""
    where = read_json(index, needed=["weight_map"])["weight_map"]
    files = [inside(index.parent, name, index) for name in sorted(set(where.values()))]
    for file in files:
        if not file.is_file():
            raise UserError("this part of the weights is missing", path=file, cure="fetch it, too")
    return files


def _open(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each tensor of a file that reads it."""
    with open(path, "rb") as stream:
        if stream.read(64).startswith(b"version https://git-lfs"):
            raise UserError("a pointer of Git LFS, not the weights", path=path, cure="run git lfs pull there")
    if path.suffix == ".safetensors":
        try:
            file = safe_open(str(path), framework="pt")
        except SafetensorError as error:  # the library opens no file whose name is not UTF-8, either
            raise UserError(f"not a safetensors file, or a damaged one ({error})", path=path, cure=AGAIN) from None
        return {name: partial(file.get_tensor, name) for name in file.keys()}
    cure = "fetch it again, or use model.safetensors"
    problem = "damaged, or it holds more than tensors, which might run code"
    # Files written by torch before 1.6 are not zip archives and cannot be mapped into memory.
    content = read_torch(path, problem, cure, mmap=zipfile.is_zipfile(path))
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise UserError("not a table of names and tensors", path=path, cure=cure)
    return {str(name): tensor.detach for name, tensor in content.items()}


def read_torch(path: Path, problem: str, cure: str, *, mmap: bool = False) -> Any:
    """Read what torch saved, with all tensors on the CPU; ``mmap`` maps them from the file. Raises UserError if the
    file is damaged, or holds something other than plain data and tensors, which might be code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual files, which are refused or read all the same
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError:
        raise
    except Exception:  # the unpickler may raise nearly any exception on a damaged file
        raise UserError(problem, path=path, cure=cure) from None


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file whose names begin with ``prefix``, under the names that follow it. Raises UserError
    if the file is damaged."""
    return {name.removeprefix(prefix): read() for name, read in _open(path).items() if name.startswith(prefix)}


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Context manager that reports what torch says of weights that do not fit a module as a UserError of ``path``."""
    try:
        yield
    except RuntimeError as error:
        problem, cure = f"the weights do not fit: {one_line(error)[:300]}", "use weights that belong to the model"
        raise UserError(problem, path=path, cure=cure) from None


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file, with the permissions that new files have by default. Raises OSError if the disk is
    full, or the file cannot be written."""
    path.touch()  # save_file makes a file that only its owner may read
    mode = path.stat().st_mode
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(content, path, metadata={"format": "pt"})  # transformers requires this entry
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
    path.chmod(mode)


def read_json(path: Path, kind: type[dict] | type[list] = dict, needed: Iterable[str] = ()) -> Any:
    """Read a JSON file that holds an object, or a list if ``kind`` is list. Raises UserError if the file does not exist
    or holds something else, or the object lacks one of the ``needed`` entries."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure="fetch the whole directory") from None
    except (ValueError, RecursionError, IsADirectoryError):
        content = None
    if not isinstance(content, kind):
        wanted = "an object" if kind is dict else "a list"
        raise UserError(f"damaged: not {wanted} in JSON", path=path, cure=AGAIN)
    check_entries(cast(Any, content), needed, path)
    return content


def check_entries(content: Mapping[str, Any], needed: Iterable[str], path: Path) -> None:
    """Raise UserError if the content of a JSON file lacks one of the ``needed`` entries."""
    for key in needed:
        if content.get(key) is None:
            raise UserError(f"no {key}", path=path, cure=AGAIN)


def inside(directory: Path, name: str, source: Path) -> Path:
    """Return ``directory / name``, where ``name`` was read from the file ``source``. Raises UserError if it lies
    outside of the directory."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"it names {name!r}, outside of its directory", path=source, cure=AGAIN)
    return directory / name


def some(names: set[str] | list[str], shown: int = 6) -> str:
    """Return the first few names as text, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - shown
    return ", ".join(ordered[:shown]) + (f" and {more} more" if more > 0 else "")
