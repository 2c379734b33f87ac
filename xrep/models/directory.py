"""Checkpoint directories: their files, the manifest with checksums, and the model inside.

Layout::

    manifest.json           schema version, step, facts about text and model, sha256 and size of every other file
    config.yaml             the resolved configuration of the run
    model.safetensors       the model, which is kept after training
    tokenizer/              the tokenizers, so that the directory can be used without other files
    criterion.safetensors   what is needed only in training (momentum encoders, queues, heads), for a later stage
    training_state.pt       optimizer, schedule, random generators, cursor (read with weights_only=True)

The last two are left out if they would be empty, as in an exported encoder. A checkpoint is written under a temporary
name and then renamed, so a directory with the final name is complete. Reading a checkpoint never runs code from it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xrep.config import still_known
from xrep.config.fields import fields_of_class
from xrep.config.values import load_yaml
from xrep.data.batch import TextSpec
from xrep.errors import UserError
from xrep.files import directory_aside, flush_to_disk, naming, sha256_of
from xrep.models.kinds import CONFIG, MANIFEST, expect
from xrep.models.model import Model
from xrep.nn.layers import quantise_layers
from xrep.nn.weights import fitting, read_tensors, read_torch, save_tensors
from xrep.registry import MODELS

SCHEMA = 5
MODEL, TOKENIZER = "model.safetensors", "tokenizer"
CRITERION, STATE = "criterion.safetensors", "training_state.pt"
PREFIX = "checkpoint-"
"""Prefix of the names of checkpoints in the directory of a run; the step follows."""
TRAINING_HASHES = "training_hashes*.npy"
"""Names of the files of the training sentences' hashes in the directory of a run, or of a checkpoint without one."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory whose manifest was compared with its checksum. A file is compared with its own checksum
    when it is first read.

    Attributes:
        mean: tensors of the model that take the place of those in the file: a mean over several checkpoints.
        intact: names of the files that were compared.
    """

    path: Path
    manifest: dict[str, Any]
    mean: dict[str, Tensor] | None = None
    intact: set[str] = field(default_factory=set)

    @property
    def step(self) -> int:
        return self.manifest["step"]

    @property
    def text(self) -> TextSpec:
        return TextSpec.from_dict(self.manifest["text"])

    @property
    def config(self) -> dict[str, Any]:
        return read_saved_config(self.file(CONFIG))

    @property
    def model_options(self) -> dict[str, Any]:
        """The name and the options of the model."""
        return dict(self.config["model"])

    @property
    def training_hashes(self) -> list[Path]:
        """Files of the training sentences' hashes (sorted uint64 ``.npy``), in the directory or beside it. Those in it
        are compared with their checksums."""
        real = self.path.resolve()
        if own := sorted(real.glob(TRAINING_HASHES)):
            self.check("training_hashes")
        return own or sorted(real.parent.glob(TRAINING_HASHES))

    @property
    def is_quantised(self) -> bool:
        """Whether the weights of transformer layers are saved in int8."""
        return self.manifest.get("precision") == "int8"

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizers."""
        return self.check(f"{TOKENIZER}/").path / TOKENIZER

    def file(self, name: str) -> Path:
        """Return the path of a file. Raises UserError if it differs from its checksum."""
        path = self.path / name
        if name not in self.intact and (not path.is_file() or file_facts(path) != self.manifest["files"].get(name)):
            raise _damaged(path)
        self.intact.add(name)
        return path

    def check(self, prefix: str = "") -> Checkpoint:
        """Compare all files whose names begin with ``prefix``, and return the checkpoint. Raises UserError if one is
        damaged."""
        for name in filter(lambda name: name.startswith(prefix), self.manifest["files"]):
            self.file(name)
        return self

    def tensors(self, name: str = MODEL, prefix: str = "", *, quantised: bool = False) -> dict[str, Tensor]:
        """Return the tensors of a file whose names begin with ``prefix``, under the names that follow it; empty if the
        file was left out.

        Raises:
            UserError: The file is damaged, or the weights are saved in int8, and the caller cannot use ``quantised``
                ones.
        """
        if self.is_quantised and not quantised:
            problem = "its weights are in int8, which serve to compute vectors or translations and nothing else"
            raise UserError(problem, path=self.path, cure="use the checkpoint that it was made from")
        if name == MODEL and self.mean is not None:
            return {own.removeprefix(prefix): mean for own, mean in self.mean.items() if own.startswith(prefix)}
        return read_tensors(self.file(name), prefix) if name in self.manifest["files"] else {}

    def training_state(self) -> dict[str, Any]:
        """Return the state of optimizer, schedule, random generators and cursor, with all tensors on the CPU. Raises
        UserError if there is none, or it contains something other than plain data and tensors, which might be code."""
        if STATE not in self.manifest["files"]:
            problem = "an encoder alone, not a run to go on with"
            raise UserError(problem, path=self.path, cure="set `init` to start from it")
        cure = "set `init` to start from the weights alone"
        return read_torch(self.file(STATE), "not a training state that is safe to read", cure)


def read_saved_config(path: Path) -> dict[str, Any]:
    """Return the configuration that a run saved, as plain data; ``to_yaml`` leaves nothing in it to be resolved. Raises
    UserError if the file is damaged."""
    return {str(key): value for key, value in load_yaml(path).items()}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint in memory, which does not change while training continues."""

    step: int
    config_yaml: str
    text: TextSpec
    save_tokenizers: Callable[[Path], object]
    """Function that writes the tokenizers into a folder; it may be called in another thread."""
    architecture: dict[str, Any]
    model: dict[str, Tensor]
    criterion: dict[str, Tensor] = field(default_factory=dict)
    training_state: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    """Further files to copy into the checkpoint, by their names in it."""
    precision: Literal["float32", "int8"] = "float32"

    @classmethod
    def of(
        cls,
        *,
        model: Any,
        criterion: nn.Module,
        training_state: dict[str, Any],
        spare: Snapshot | None = None,
        **facts: Any,
    ) -> Snapshot:
        """Copy everything that training changes to the CPU.

        Args:
            spare: A snapshot that is no longer needed, whose memory is reused. Allocating memory takes longer than the
                copy, especially the pinned memory to which tensors are copied from a GPU.
            facts: Values of the other fields.
        """
        live = {"model": model.state_dict(), "criterion": criterion.state_dict(), "training_state": training_state}
        copied = {name: _copied(value, getattr(spare, name, None)) for name, value in live.items()}
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # copies into pinned memory are asynchronous
        return cls(**facts, architecture=model.architecture(), **copied)


def write_checkpoint(path: Path, snapshot: Snapshot) -> None:
    """Write a checkpoint under a temporary name and rename it to ``path``; after a failure nothing is left behind.
    Raises OSError if the disk is full, or the directory cannot be written."""
    with naming(path):
        with directory_aside(path, MANIFEST) as aside:
            _fill(aside, snapshot)
        flush_to_disk(path.parent)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint directory. Raises UserError if this is not a checkpoint, it has another schema, or its manifest
    is damaged."""
    path = Path(path)
    if not path.exists():
        raise UserError("no such checkpoint", path=path, cure="name a directory such as RUN/best or RUN/last")
    expect(path, Model)
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        schema, digest = manifest["schema"], manifest.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        cure = "name a directory that xrep-train wrote, such as RUN/best"
        raise UserError(f"not a checkpoint (no valid {MANIFEST})", path=path, cure=cure) from None
    if schema != SCHEMA:
        problem = f"checkpoint schema {schema}, this version reads {SCHEMA}"
        raise UserError(problem, path=path, cure="use the version that wrote it")
    if digest != digest_of(manifest):
        raise _damaged(path / MANIFEST)
    return Checkpoint(path, manifest)


def _damaged(path: Path) -> UserError:
    problem = "damaged checkpoint: the file differs from its checksum"
    return UserError(problem, path=path, cure="use another checkpoint")


def checkpoints_in(run: Path) -> list[Path]:
    """Return the checkpoints in the directory of a run, in the order of their steps; some may be damaged. A folder that
    has only files of others, because the checkpoint in it was removed, is none."""
    steps = {path: path.name.removeprefix(PREFIX) for path in run.glob(f"{PREFIX}*") if path.is_dir()}
    ours = (path for path in steps if any((path / name).exists() for name in (MANIFEST, CONFIG, MODEL)))
    return sorted((path for path in ours if re.fullmatch("[0-9]{8,19}", steps[path])), key=lambda p: int(steps[p]))


def file_names(path: Path) -> list[str]:
    """Return the names of all files of an intact checkpoint, which are those of the other checkpoints of its run."""
    return [*json.loads((path / MANIFEST).read_text(encoding="utf-8"))["files"], MANIFEST]


def load_model(checkpoint: Checkpoint, random_weights: bool = False) -> Any:
    """Return the model of a checkpoint in evaluation mode.

    Args:
        random_weights: Whether to keep the random initialisation instead of loading the weights, as a baseline.

    Raises:
        UserError: The model belongs to a plugin that is not loaded.
    """
    values = checkpoint.model_options
    name = values.pop("name")
    if name not in MODELS:
        plugins = checkpoint.config.get("plugins")
        named = ", ".join(map(str, plugins)) if plugins and isinstance(plugins, list) else "of the package that has it"
        cure = f"import the plugin {named} first"
        raise UserError(f"its model {name!r} is not known here", path=checkpoint.path, cure=cure)
    kind: Any = MODELS.load(name)
    config = kind.Config(**still_known(kind.Config, values, checkpoint.path / CONFIG, "model"))
    model = kind(config, checkpoint.text, checkpoint.manifest["architecture"])
    if checkpoint.is_quantised:
        quantise_layers(model)
    if not random_weights:
        with fitting(checkpoint.path / MODEL):
            model.load_state_dict(checkpoint.tensors(quantised=True))
    return model.eval()


def fingerprint(model: Any, text: TextSpec) -> str:
    """Return a hex digest of the weights, the architecture, the data types, the options and the text specification.

    It depends neither on the path of the model, nor on options that have their defaults: so a new option changes no
    digest.
    """
    specs = [spec for spec in fields_of_class("", type(model.config)) if not spec.name.endswith("encoder")]
    given = {spec.name: getattr(model.config, spec.name) for spec in specs}
    options = {spec.name: given[spec.name] for spec in specs if given[spec.name] != spec.default}
    facts = [model.architecture(), text.as_dict(), options]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def load_matching(module: nn.Module, tensors: dict[str, Tensor]) -> list[str]:
    """Copy every tensor of the same name and shape into ``module``; return the names that keep their initialisation.

    The buffers of one submodule are copied together or not at all, because, for example, the fill count of one queue
    is not valid for the rows of another.
    """
    own = module.state_dict()
    matching = {name: tensor for name, tensor in tensors.items() if name in own and own[name].shape == tensor.shape}
    parameters = dict(module.named_parameters())
    partial = {name.rpartition(".")[0] for name in own if name not in parameters and name not in matching}
    whole = {name for name in matching if name in parameters or name.rpartition(".")[0] not in partial}
    module.load_state_dict({name: matching[name] for name in whole}, strict=False)
    return [name for name in own if name not in whole]


def _copied(value: Any, spare: Any) -> Any:
    if isinstance(value, Tensor):
        fits = isinstance(spare, Tensor) and (spare.shape, spare.dtype) == (value.shape, value.dtype)
        copy = spare if fits else torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        return copy.copy_(value.detach(), non_blocking=True)
    if isinstance(value, dict):
        olds = spare if isinstance(spare, dict) else {}
        return {key: _copied(inner, olds.get(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        olds = spare if isinstance(spare, (list, tuple)) and len(spare) == len(value) else [None] * len(value)
        return type(value)(_copied(inner, old) for inner, old in zip(value, olds, strict=True))
    return value


def _fill(folder: Path, snapshot: Snapshot) -> None:
    # Writing tensors and computing checksums release Python's global lock, so another thread can train meanwhile.
    (folder / CONFIG).write_text(snapshot.config_yaml, encoding="utf-8")
    save_tensors(snapshot.model, folder / MODEL)
    if snapshot.criterion:
        save_tensors(snapshot.criterion, folder / CRITERION)
    if snapshot.training_state:
        try:
            with open(folder / STATE, "wb") as file:
                torch.save(snapshot.training_state, file)
        except RuntimeError as error:  # if a write fails, torch's error about its archive follows that of the disk
            raise error.__context__ or error from None
    snapshot.save_tokenizers(folder / TOKENIZER)
    for name, source in snapshot.files.items():
        shutil.copyfile(source, folder / name)
    files = {str(path.relative_to(folder)): file_facts(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    facts: dict[str, Any] = {"text": snapshot.text.as_dict(), "architecture": snapshot.architecture}
    if snapshot.precision != "float32":
        facts["precision"] = snapshot.precision
    manifest = {"schema": SCHEMA, "step": snapshot.step, **facts, "files": files}
    manifest["sha256"] = digest_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in [*folder.rglob("*"), folder]:
        flush_to_disk(path)


def digest_of(manifest: dict[str, Any]) -> str:
    """Return the sha256 that a manifest has of its other entries."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def file_facts(path: Path) -> dict[str, Any]:
    """Return what a manifest says of a file."""
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size}
