"""The sizes that ``size`` chooses by name, as a layer of values below all others."""

from __future__ import annotations

from typing import Any

from xrep.config.layers import Layer
from xrep.config.sections import sections_of

_NAMES = ("layers", "hidden_size", "heads", "feedforward_size")
_NUMBERS = {
    "tiny": (1, 96, 2, 192),
    "small": (1, 192, 4, 256),  # the demo's
    "base": (12, 768, 12, 3072),  # BERT's
    "large": (24, 1024, 16, 4096),  # BERT's
}
_TRAINING = {
    "model": {"dropout": 0.0, "attention_dropout": 0.0},
    "adamw": {"lr": 3e-3},
    "cosine": {"warmup_steps": 100},
    "dual_moco": {"queue_size": 4096, "momentum": 0.997},
}
"""Options of sections, or of parts, that suit models of the sizes tiny and small, which are trained on a CPU: those of
the demo."""
_EPOCHS = 8.0
"""Epochs of such a training if nothing bounds it: the model learns little after that."""
_BOUNDS = tuple(f"trainer.max_{bound}" for bound in ("steps", "epochs", "minutes"))
_STARTS = ("model.encoder", "model.source_encoder", "model.target_encoder")


def with_size(values: Layer) -> Layer:
    """Return the values of a run, with what its ``size`` stands for below them.

    ``auto`` is small on a CPU and base on a GPU. The sizes tiny and small stand for some options of training, too,
    unless the run names a size of its own or starts from trained weights, which such options might not suit.
    """
    size = str(values.get("size", "auto"))
    if size == "auto":
        size = "base" if _trains_on_gpu(values.get("trainer.device", "auto")) else "small"
    if size not in _NUMBERS:
        return values  # it is refused later, as any other value that an option cannot have
    chosen: dict[str, dict[str, Any]] = {"model": dict(zip(_NAMES, _NUMBERS[size], strict=True))}
    own = any(values.get(key) is not None for key in (*(f"model.{name}" for name in _NAMES), *_STARTS))
    if size in ("tiny", "small") and not own and values.get("init") in (None, "none"):
        chosen = {**_TRAINING, "model": chosen["model"] | _TRAINING["model"]}
        if all(values.get(bound) is None for bound in _BOUNDS):
            chosen["trainer"] = {"max_epochs": _EPOCHS}
    layer: Layer = {}
    for section in sections_of(values):
        options = chosen.get(section.kind, {}) | chosen.get(str(section.name), {})
        layer |= {spec.key: options[spec.name] for spec in section.fields() if spec.name in options}
    return {**layer, **values, "size": size}


def without_numbers(values: Layer) -> Layer:
    """Return the resolved values of a run without those sizes of encoders that its ``size`` stands for."""
    numbers = {
        f"model.{n}": number for n, number in zip(_NAMES, _NUMBERS.get(str(values.get("size")), ()), strict=False)
    }
    return {key: value for key, value in values.items() if key not in numbers or numbers[key] != value}


def is_small(values: Layer) -> bool:
    """Return whether the resolved values of a run make encoders of the size small from random weights."""
    sizes = tuple(values.get(f"model.{name}") for name in _NAMES)
    return sizes == _NUMBERS["small"] and not any(values.get(key) for key in ("init", *_STARTS))


def _trains_on_gpu(device: Any) -> bool:
    import torch

    return torch.cuda.is_available() if device == "auto" else device != "cpu"
