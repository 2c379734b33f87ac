"""A checkpoint directory: its files, its manifest with checksums, and the model inside it.

Layout::

    manifest.json           schema version, step, facts about text and model, sha256 and size of every other file
    config.yaml             the resolved configuration of the run
    model.safetensors       what is kept: the encoder
    tokenizer/              so that the directory alone is a usable encoder
    criterion.safetensors   what training throws away (momentum encoders, queues, heads), for a later stage
    training_state.pt       optimizer, schedule, random generators, cursor (read with weights_only=True)

It is written aside and renamed into place, so a directory of that name is whole. Nothing in it can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import naming
from xrep.registry import MODELS

SCHEMA = 2
MANIFEST, CONFIG, MODEL, CRITERION, STATE = (
    "manifest.json",
    "config.yaml",
    "model.safetensors",
    "criterion.safetensors",
    "training_state.pt",
)
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint directory."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        return self.manifest["step"]

    @property
    def text(self) -> TextSpec:
        return TextSpec.from_dict(self.manifest["text"])

    @property
    def config(self) -> dict[str, Any]:
        """The run's resolved configuration, as plain data."""
        return read_saved_config(self.path / CONFIG)

    def tensors(self, name: str = MODEL) -> dict[str, Tensor]:
        return load_file(self.path / name)

    def training_state(self) -> dict[str, Any]:
        """Optimizer, random generators and cursor; tensors on the CPU, wherever they were trained.

        Raises:
            UserError: it holds anything but plain data and tensors, which might be code.
        """
        try:
            return torch.load(self.path / STATE, weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, EOFError):
            problem, cure = "not a training state that is safe to read", "use --init to start from the weights alone"
            raise UserError(problem, path=self.path / STATE, cure=cure) from None


def read_saved_config(path: Path) -> dict[str, Any]:
    """The configuration that a run saved, as plain data: no interpolation, no resolver.

    Raises:
        UserError: the file is damaged.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        values = None
    if not isinstance(values, dict):
        raise UserError("not the configuration of a run", path=path, cure="choose another --save-dir")
    return {str(key): value for key, value in values.items()}


def write_checkpoint(
    path: Path,
    *,
    step: int,
    config_yaml: str,
    text: TextSpec,
    save_tokenizers: Callable[[Path], None],
    model: nn.Module,
    criterion: nn.Module,
    training_state: dict[str, Any],
) -> None:
    """Write a checkpoint aside and rename it to ``path``; on any failure nothing is left behind.

    Raises:
        OSError: the disk is full, or the directory cannot be written.
    """
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with naming(path):
            aside.mkdir(parents=True)
            (aside / CONFIG).write_text(config_yaml, encoding="utf-8")
            _save_tensors(model.state_dict(), aside / MODEL)
            _save_tensors(criterion.state_dict(), aside / CRITERION)
            _save_state(training_state, aside / STATE)
            save_tokenizers(aside / TOKENIZER)
            files = {name: _describe(aside / name) for name in _files_below(aside)}
            facts = {"text": text.as_dict(), "architecture": model.architecture()}
            manifest = {"schema": SCHEMA, "step": step, **facts, "files": files}
            manifest["sha256"] = _digest_of(manifest)
            (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            for name in [*files, MANIFEST]:
                _flush(aside / name)
            if path.exists():
                shutil.rmtree(path)
            os.replace(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def open_checkpoint(path: str | Path) -> Checkpoint:
    """A checkpoint directory, after every file was compared with its checksum.

    Raises:
        UserError: not a checkpoint, another schema, or a damaged file.
    """
    path = Path(path)
    if not path.exists():
        raise UserError("no such checkpoint", path=path, cure="name a directory such as RUN/best or RUN/last")
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        schema, digest = manifest["schema"], manifest.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        hint = [name for name in ("best", "last") if (path / name / MANIFEST).exists()]
        cure = f"did you mean {path / hint[0]}?" if hint else "name a directory that xrep-train wrote, such as RUN/best"
        raise UserError(f"not a checkpoint (no valid {MANIFEST})", path=path, cure=cure) from None
    if schema != SCHEMA:
        raise UserError(
            f"checkpoint schema {schema}, this version reads {SCHEMA}", path=path, cure="use the version that wrote it"
        )
    damaged = [MANIFEST] if digest != _digest_of(manifest) else []
    for name in damaged or manifest["files"]:
        if damaged or not (path / name).is_file() or _describe(path / name) != manifest["files"][name]:
            problem = "damaged checkpoint: the file differs from its checksum"
            raise UserError(problem, path=path / name, cure="use another checkpoint")
    return Checkpoint(path, manifest)


def load_model(checkpoint: Checkpoint, random_weights: bool = False) -> nn.Module:
    """The model of a checkpoint, in evaluation mode; ``random_weights`` keeps a fresh initialisation (a baseline).

    Raises:
        UserError: the model is of a plugin that is not loaded.
    """
    values = dict(checkpoint.config["model"])
    name = values.pop("name")
    if name not in MODELS.names():
        plugins = checkpoint.config.get("plugins") or ["of the package that has it"]
        cure = f"import the plugin {', '.join(plugins)} first"
        raise UserError(f"its model {name!r} is not known here", path=checkpoint.path, cure=cure)
    model_class = MODELS.load(name)
    model = model_class(model_class.Config(**values), checkpoint.text, checkpoint.manifest["architecture"])
    if not random_weights:
        model.load_state_dict(checkpoint.tensors(), strict=True)
    return model.eval()


def load_matching(module: nn.Module, tensors: dict[str, Tensor]) -> list[str]:
    """Copy every tensor of the same name and shape into ``module``; return the names that keep their initialisation.

    The buffers of one submodule are copied together or not at all: the fill count of a queue says nothing of another
    queue's rows.
    """
    own = module.state_dict()
    matching = {name: tensor for name, tensor in tensors.items() if name in own and own[name].shape == tensor.shape}
    parameters = dict(module.named_parameters())
    partial = {name.rpartition(".")[0] for name in own if name not in parameters and name not in matching}
    matching = {
        name: tensor
        for name, tensor in matching.items()
        if name in parameters or name.rpartition(".")[0] not in partial
    }
    module.load_state_dict(matching, strict=False)
    return [name for name in own if name not in matching]


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
    path.chmod(path.with_name(CONFIG).stat().st_mode)  # save_file leaves it readable to its owner alone


def _save_state(state: dict[str, Any], path: Path) -> None:
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        # Torch hides a failed write behind an error about its own archive.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _digest_of(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _files_below(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def _describe(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"sha256": digest.hexdigest(), "bytes": path.stat().st_size}


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
