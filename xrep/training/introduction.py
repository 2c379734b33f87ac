"""What a run prints before its first step: the data, the model, and each encoder with where its weights come from."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from xrep.config import RunConfig
from xrep.config.sizes import is_small
from xrep.data.batching import TextSpec
from xrep.models.model import Model, Origin
from xrep.nn.decoder import TransformerDecoder
from xrep.nn.encoder import Encoder
from xrep.tasks.task import Task
from xrep.training.trainer import Trainer

DEMO = "the demo corpus (no data was named)"


def introduction(run: RunConfig, task: Task, trainer: Trainer) -> list[str]:
    """Return the lines that say what is trained on what, where, and how."""
    model, world = trainer.module.model, trainer.world
    ranks = f"{world.size} ranks, " if world.size > 1 else ""
    data = run.data or [DEMO]
    precision = trainer.engine.precision
    if precision == "float32" and world.device.type == "cuda":
        precision = "float32 with TF32 products"
    return [
        f"{run.label}: {task.examples:,} training examples of {', '.join(data)}",
        *(_negatives_line(part) for part in task.parts.values() if part.has_hard_negatives),
        f"{run.values['model.name']}: {_millions(sum(p.numel() for p in model.parameters()))} on {world.device}, "
        f"{ranks}{torch.get_num_threads()} threads, {precision}",
        *(["a small model for CPUs; size base is that of BERT"] if is_small(run.values) else []),
        *(_encoder_line(name, model, task.text, trainer) for name in _encoders(model)),
    ]


def say_origin(model: Model, text: TextSpec, path: Path, details: str, new: list[str]) -> None:
    """Note in ``model.origins`` that the encoders come from a checkpoint, except those that are all ``new``.

    Args:
        text: The text of the checkpoint.
        new: Names of the tensors of the model that do not come from it.
    """
    for name in _encoders(model):
        if any(own not in new for own in model.state_dict() if own.startswith(f"{name}.")):
            model.origins[name] = Origin(path=path, languages=_languages(name, text), details=details)


def _encoders(model: Model) -> list[str]:
    """Return the names of the encoders of a model, and of its decoder if it has one."""
    return [name for name, part in model.named_modules() if isinstance(part, Encoder | TransformerDecoder)]


def _languages(name: str, text: TextSpec) -> list[str]:
    """Return the languages that an encoder or a decoder reads."""
    last = name.rpartition(".")[2]
    # The encoder of a classifier reads languages that are on both sides.
    return text.languages_of({"encoder": "source", "decoder": "target"}.get(last, last))


def _encoder_line(name: str, model: Model, text: TextSpec, trainer: Trainer) -> str:
    """Return a line such as ``tower source (de): frozen, 22.7M parameters, from minilm (en; 101 tensors)``."""
    # The projection of a tower belongs to it.
    places = tuple(f"model.{place}." for place in (name, name.replace("encoders.", "projections.")))
    sizes = {key: p.numel() for key, p in trainer.module.named_parameters() if key.startswith(places)}
    thaw = trainer.engine.freezing.thaw_steps(trainer.module)
    steps = {thaw.get(key, math.inf) for key in sizes}
    trained = sum(size for key, size in sizes.items() if thaw.get(key, math.inf) < math.inf)
    state = "trained" if steps == {0.0} else "frozen"
    if 0 < trained and state == "frozen":
        later = sorted(step for step in steps if 0 < step < math.inf)
        state = f"frozen until step {later[0]:.0f}" if later else f"partly frozen ({_millions(trained)} trained)"
    lora = trainer.engine.lora
    targets = [(f"model.{name}", *own) for name, *own in zip(lora.targets, lora.a, lora.b, strict=True)] if lora else []
    if lora is not None and any(key in sizes for key, *_ in targets):
        trained += sum(a.numel() + b.numel() - sizes[key] for key, a, b in targets if key in sizes)
        state = f"LoRA of rank {lora.rank} ({_millions(trained)} trained)"
    origin, start = model.origins.get(name), "random weights"
    if origin is not None:
        start = f"from {origin.path} ({', '.join([*origin.languages, origin.details])})"
    shown = _languages(name, text)
    languages = ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
    return f"{name.replace('encoders.', 'tower ')} ({languages}): {state}, {_millions(sum(sizes.values()))}, {start}"


def _negatives_line(task: Task) -> str:
    counts = task.statistics()["negatives"]
    return f"hard negatives: {counts['pairs']:,} of {task.examples:,} training pairs have some"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M parameters"
