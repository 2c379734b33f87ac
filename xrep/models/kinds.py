"""What a directory holds - a model of which kind, or something else - and the command that takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from xrep.errors import UserError
from xrep.interop.sentence_modules import MODULES
from xrep.models.model import Model
from xrep.nn import bert
from xrep.nn.weights import LAYOUTS
from xrep.registry import MODELS

MANIFEST, CONFIG = "manifest.json", "config.yaml"
WITH_HEAD = "pretrained model with a head for labels or answers"
PRETRAINED = ("pretrained encoder", WITH_HEAD)
"""Kinds of directories of Hugging Face and sentence-transformers. The head of the second predicts labels or answers,
not masked words."""
_HEAD = re.compile(r"For\w*(?:Classification|QuestionAnswering|MultipleChoice)")
"""What the names of transformers' classes with such a head have in them."""
COMMANDS = {
    "pretrained encoder": "encode sentences by xrep-encode --path {path}",
    WITH_HEAD: "predict by xrep-predict --path {path}, or encode sentences by xrep-encode --path {path}",
    "graph for ONNX Runtime, OpenVINO or CTranslate2": "name the model that it was exported from",
    "folder of two encoders": "name one of them: {path}/source or {path}/target",
    "folder of vectors": "measure them by xrep-eval TEST --path {path}",
    "folder of encoded lines": "mine in them by xrep-mine --source-vectors {path}",
    "search index": "search it by xrep-search query {path}",
    "data directory": "train on it by xrep-train {path}",
    "directory of a run": "did you mean {path}/{best}?",
}
"""What can be done with each kind of directory that is no checkpoint; of a checkpoint, its model's class says it."""
FILES = {
    "folder of two encoders": [f"source/{bert.HF_CONFIG}"],
    "folder of vectors": ["vectors.npy"],
    "directory of a run": [f"best/{MANIFEST}", f"last/{MANIFEST}"],
}
"""Files by which kinds of directories are known that describe themselves nowhere."""


def model_name(path: str | Path) -> str | None:
    """Return the registered name of the model of a checkpoint; None if this is no checkpoint."""
    path = Path(path)
    return _mapping(_mapping(path / CONFIG).get("model")).get("name") if _is_checkpoint(path) else None


def model_class(path: str | Path) -> type[Model] | None:
    """Return the class of the model of a checkpoint; None if this is no checkpoint, or nothing here has the class."""
    name = model_name(path)
    known: Any = MODELS.load(name) if name is not None and name in MODELS else None
    return known


def kind_of(path: str | Path) -> str | None:
    """Return what a directory holds, the ``kind`` of a model or a key of ``COMMANDS``; None if that is not known. Files
    are not checked."""
    path = Path(path)
    if _is_checkpoint(path):
        model = model_class(path)
        return model and model.kind
    manifest = _mapping(path / MANIFEST)
    if "parts" in manifest:
        return "folder of encoded lines" if "origin" in manifest else "search index"
    if str(manifest.get("format")).startswith("xrep-"):
        return "data directory"
    if _has(path, ("onnx", "openvino", "model.bin")) and not _has(path, LAYOUTS):
        return "graph for ONNX Runtime, OpenVINO or CTranslate2"
    if (path / MODULES).is_file():
        return "pretrained encoder"
    if (path / bert.HF_CONFIG).is_file():
        architectures = str(_mapping(path / bert.HF_CONFIG).get("architectures"))
        return PRETRAINED[_HEAD.search(architectures) is not None]
    return next((kind for kind, files in FILES.items() if any((path / file).is_file() for file in files)), None)


def expect(path: str | Path, wanted: type[Model] | None, *others: str) -> str | None:
    """Return what a directory holds, as ``kind_of`` does, if this is a checkpoint of a ``wanted`` model, one of the
    ``others``, or not known. Otherwise raises a UserError that names the right command."""
    kind, model = kind_of(path), model_class(path)
    fits = model is not None and wanted is not None and (issubclass(model, wanted) or kind == wanted.kind)
    if fits or kind in (None, *others):
        return kind
    best = next((name for name in ("best", "last") if (Path(path) / name / MANIFEST).is_file()), "")
    cures = [(COMMANDS[kind] if model is None else model.use).format(path=path, best=best)]
    if wanted is not None and (model is not None or kind in PRETRAINED):
        if _mapping(Path(path) / MANIFEST).get("precision") != "int8":  # from such weights, nothing is trained
            cures.append(wanted.start.format(path=path))
    raise UserError(f"a {kind}, not a {wanted.kind if wanted else others[0]}", path=path, cure=", or ".join(cures))


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a file of YAML or JSON as plain data, without interpolation or resolvers; None if there is
    none."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _is_checkpoint(path: Path) -> bool:
    return "architecture" in _mapping(path / MANIFEST)


def _has(path: Path, names: Iterable[str]) -> bool:
    """Return whether a directory of a pretrained encoder, or that of its transformer, has one of these files."""
    return any((path / folder / name).exists() for folder in ("", "0_Transformer", "source") for name in names)


def _mapping(value: Any) -> dict[str, Any]:
    values = read_mapping(value) if isinstance(value, Path) else value
    return values if isinstance(values, dict) else {}
