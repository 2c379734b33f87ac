"""The sizes that ``size`` chooses by name, as a layer of values below all others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from xrep.config.sections import sections_of
from xrep.config.values import Layer, flat, load_yaml

_SIZES = {
    "tiny": {"layers": 1, "hidden_size": 96, "heads": 2, "feedforward_size": 192},
    "small": {"layers": 1, "hidden_size": 192, "heads": 4, "feedforward_size": 256},  # the demo's
    "base": {"layers": 12, "hidden_size": 768, "heads": 12, "feedforward_size": 3072},  # BERT's
    "large": {"layers": 24, "hidden_size": 1024, "heads": 16, "feedforward_size": 4096},  # BERT's
}
_TRAINING = {
    "model": {"dropout": 0.0, "attention_dropout": 0.0},
    "adamw": {"lr": 3e-3},
    "cosine": {"warmup_steps": 100},
    "dual_moco": {"queue_size": 4096, "momentum": 0.997},
}
"""Options of sections, or of parts, that suit models of the sizes tiny and small, which are trained on a CPU: those of
the demo."""
_TRANSLATION = {"vocab_size": 6000, "max_tokens": 1024, "decoder_layers": 2, "norm": "pre", "max_sentences": 200}
"""Options of translators on a CPU, also of those that start from a trained encoder: most of the work of a step is the
softmax over the vocabulary, and in the same time many small steps teach more than a few large ones."""
_EPOCHS = 8.0
"""Epochs of such a training if nothing bounds it: the model learns little after that."""
_BOUNDS = tuple(f"trainer.max_{bound}" for bound in ("steps", "epochs", "minutes"))
_TEACHER = re.compile(r"(parts\.\w+\.)?criterion\.teacher")
_STARTS = ("model.encoder", "model.source_encoder", "model.target_encoder")


def with_size(values: Layer) -> Layer:
    """Return the values of a run, with what its ``size`` stands for below them.

    ``auto`` is small on a CPU and base on a GPU. The sizes tiny and small stand for some options of training, too,
    unless the run names a size of its own or starts from trained weights, which such options might not suit. They do
    suit a translator whose encoder was trained in this size, because its decoder is new. A student that shares its
    tower starts from its teacher unless an encoder is named.
    """
    teachers = {str(value) for key, value in values.items() if _TEACHER.fullmatch(key) and _is_given(value)}
    if len(teachers) == 1 and values.get("model.towers") == "shared":
        values = {"model.encoder": teachers.pop(), **values}
    size = str(values.get("size", "auto"))
    if size == "auto":
        import torch  # not with this module, which the help of every command imports

        device = values.get("trainer.device", "auto")
        on_gpu = torch.cuda.is_available() if device == "auto" else device != "cpu"
        size = "base" if on_gpu else "small"
    if size not in _SIZES:
        return values  # it is refused later, as any other value that an option cannot have
    chosen: dict[str, dict[str, Any]] = {"model": dict(_SIZES[size])}
    keys = [*(f"model.{name}" for name in _SIZES[size]), *_STARTS]
    if values.get("task.name") == "translation" and _was_small(values.get("model.encoder")):
        keys.remove("model.encoder")
    is_sized = any(_is_given(values.get(key)) for key in (*keys, "init"))
    if size in ("tiny", "small") and not is_sized:
        chosen = {**_TRAINING, "model": chosen["model"] | _TRAINING["model"]}
        if not any(_is_given(values.get(bound)) for bound in _BOUNDS):
            chosen["trainer"] = {"max_epochs": _EPOCHS}
    if size in ("tiny", "small"):
        chosen["translation"] = _TRANSLATION
    layer: Layer = {}
    for section in sections_of(values):
        options = chosen.get(section.kind, {}) | chosen.get(str(section.name), {})
        layer |= {spec.key: options[spec.name] for spec in section.fields() if spec.name in options}
    return {**layer, **values, "size": size}


def _is_given(value: Any) -> bool:
    """Return whether an option that may be none has another value."""
    return value is not None and str(value).lower() not in ("none", "null")


def _was_small(encoder: Any) -> bool:
    """Return whether an encoder is that of a run, ``RUN/best`` or ``RUN/best/TOWER``, which had the size small."""
    place = Path(str(encoder))
    files = [folder / "config.yaml" for folder in (place, place.parent)] if _is_given(encoder) else []
    return any(is_small(flat(load_yaml(file))) for file in files if file.is_file())


def without_numbers(values: Layer) -> Layer:
    """Return the resolved values of a run without those sizes of encoders that its ``size`` stands for."""
    numbers = {f"model.{name}": number for name, number in _SIZES.get(str(values.get("size")), {}).items()}
    return dict(item for item in values.items() if item not in numbers.items())


def is_small(values: Layer) -> bool:
    """Return whether the resolved values of a run make encoders of the size small from random weights."""
    are_small = all(values.get(f"model.{name}") == number for name, number in _SIZES["small"].items())
    return are_small and not any(values.get(key) for key in ("init", *_STARTS))
