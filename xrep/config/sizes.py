"""The sizes that ``size`` chooses by name, as a layer of values below all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xrep.config.fields import read_fields
from xrep.config.sections import OF_A_PART, SECTIONS, merge, sections_of

_NAMES = ("layers", "hidden_size", "heads", "feedforward_size")
_NUMBERS = {
    "tiny": (1, 96, 2, 192),
    "small": (1, 192, 4, 256),  # the demo's
    "base": (12, 768, 12, 3072),  # BERT's
    "large": (24, 1024, 16, 4096),  # BERT's
}
_TRAINING = {
    "model": {"dropout": 0.0, "attention_dropout": 0.0},
    "optimizer adamw": {"lr": 3e-3},
    "lr_scheduler cosine": {"warmup_steps": 100},
    "criterion dual_moco": {"queue_size": 4096, "momentum": 0.997},
}
"""Options that suit models of the sizes tiny and small, which are trained on a CPU: those of the demo."""
_EPOCHS = 8.0
"""Epochs of such a training if nothing bounds it: the model learns little after that."""
_BOUNDS = ("max_steps", "max_epochs", "max_minutes")
_STARTS = ("encoder", "source_encoder", "target_encoder")


def with_size(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged values of all layers of a run, with what its ``size`` stands for below them.

    ``auto`` is small on a CPU and base on a GPU. The sizes tiny and small stand for some options of training, too,
    unless the run names a size of its own or starts from trained weights, which such options might not suit.
    """
    sections = (values.get(key) for key in ("model", "trainer"))
    model, trainer = (section if isinstance(section, Mapping) else {} for section in sections)
    size = str(values.get("size", "auto"))
    if size == "auto":
        size = "base" if _trains_on_gpu(trainer.get("device", "auto")) else "small"
    if size not in _NUMBERS:
        return dict(values)  # it is refused later, as any other value that an option cannot have
    chosen = {"model": dict(zip(_NAMES, _NUMBERS[size], strict=True))}
    own = any(model.get(name) is not None for name in (*_NAMES, *_STARTS)) or values.get("init") not in (None, "none")
    if size in ("tiny", "small") and not own:
        chosen = merge(chosen, _TRAINING)
        if all(trainer.get(bound) is None for bound in _BOUNDS):
            chosen["trainer"] = {"max_epochs": _EPOCHS}
    layer: dict[str, dict[str, Any]] = {}
    for section in sections_of(values):
        if section.is_chosen:
            options = {**chosen.get(section.kind, {}), **chosen.get(f"{section.kind} {section.name}", {})}
            known = {spec.name for spec in read_fields(section.key, section.options)} if options else {}
            layer[section.key] = {name: value for name, value in options.items() if name in known}
    sized = merge({key: own for key, own in layer.items() if key in SECTIONS}, values)
    if isinstance(values.get("parts"), list):
        sized["parts"] = [_over_its_size(part, layer) for part in values["parts"]]
    return {**sized, "size": size}


def _over_its_size(part: Any, layer: Mapping[str, Any]) -> Any:
    """Return one of several parts with the values of ``layer``, by the keys of sections, below its own."""
    if not isinstance(part, Mapping):
        return part
    keys = {kind: f"parts.{part['name']}.{kind}" for kind in OF_A_PART}
    return merge({kind: layer[key] for kind, key in keys.items() if key in layer}, part)


def without_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved values of a run without those sizes of encoders that its ``size`` stands for."""
    numbers = dict(zip(_NAMES, _NUMBERS.get(str(values.get("size")), ()), strict=False))
    model = values.get("model")
    if not isinstance(model, Mapping):
        return dict(values)
    return {**values, "model": {key: value for key, value in model.items() if numbers.get(key, ...) != value}}


def is_small(values: Mapping[str, Any]) -> bool:
    """Return whether the resolved values of a run make encoders of the size small from random weights."""
    model = values["model"]
    sizes = tuple(model.get(name) for name in _NAMES)
    return sizes == _NUMBERS["small"] and values["init"] is None and not any(model.get(name) for name in _STARTS)


def _trains_on_gpu(device: Any) -> bool:
    if device != "auto":
        return device != "cpu"
    import torch  # the options are read for --help, too, which must be quick

    return torch.cuda.is_available()
