"""What a run prints before its first step: the data, the model, and each encoder with where its weights come from."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from xrep.config import RunConfig
from xrep.config.sizes import is_small
from xrep.data.batch import TextSpec
from xrep.models.model import EncoderOrigin, Model
from xrep.nn.decoder import TransformerDecoder
from xrep.nn.encoder import Encoder
from xrep.tasks.task import Task
from xrep.training.trainer import Trainer


def introduction(run: RunConfig, task: Task, trainer: Trainer) -> list[str]:
    """Return the lines that say what is trained on what, where, and how."""
    model, world = trainer.pair.model, trainer.world
    ranks = f"{world.size} ranks, " if world.size > 1 else ""
    data = ", ".join(run.data) or "the demo corpus (no data was named)"
    precision = str(trainer.step.dtype).removeprefix("torch.")
    if precision == "float32" and world.device.type == "cuda":
        precision = "float32 with TF32 products"
    return [
        f"{run.label}: {task.examples:,} training examples of {data}",
        *(
            f"hard negatives: {part.statistics()['negatives']['pairs']:,} of {part.examples:,} training pairs have some"
            for part in task.parts.values()
            if part.has_hard_negatives
        ),
        f"{run.values['model.name']}: {_millions(sum(p.numel() for p in model.parameters()))} on {world.device}, "
        f"{ranks}{torch.get_num_threads()} threads, {precision}",
        *(["a small model for CPUs; size base is that of BERT"] if is_small(run.values) else []),
        *(_encoder_line(name, model, task.text, trainer) for name in _encoders(model)),
    ]


def say_origin(model: Model, text: TextSpec, path: Path, details: str, new: list[str]) -> None:
    """Note in ``model.origins`` that the encoders come from a checkpoint of a text, except those whose tensors are all
    ``new``."""
    for name in _encoders(model):
        if any(own not in new for own in model.state_dict() if own.startswith(f"{name}.")):
            model.origins[name] = EncoderOrigin(path=path, languages=_languages(name, text), details=details)


def _encoders(model: Model) -> list[str]:
    """Return the names of the encoders of a model, and of its decoder if it has one."""
    return [name for name, part in model.named_modules() if isinstance(part, Encoder | TransformerDecoder)]


def _languages(name: str, text: TextSpec) -> list[str]:
    last = name.rpartition(".")[2]  # the encoder of a classifier reads languages that are on both sides
    return text.languages_of({"encoder": "source", "decoder": "target"}.get(last, last))


def _encoder_line(name: str, model: Model, text: TextSpec, trainer: Trainer) -> str:
    """Return a line such as ``tower source (de): frozen, 22.7M parameters, from minilm (en; 101 tensors)``."""
    # The projection of a tower belongs to it.
    places = tuple(f"model.{place}." for place in (name, name.replace("encoders.", "projections.")))
    sizes = {key: p.numel() for key, p in trainer.pair.named_parameters() if key.startswith(places)}
    thaw = trainer.step.freezing.thaw
    steps = sorted({thaw.get(key, math.inf) for key in sizes})
    later = [step for step in steps if 0 < step < math.inf]
    trained = sum(size for key, size in sizes.items() if thaw.get(key, math.inf) < math.inf)
    lora = trainer.step.update.lora
    factors = zip(lora.targets, lora.a, lora.b, strict=True) if lora else ()
    adapted = {f"model.{target}": a.numel() + b.numel() for target, a, b in factors if f"model.{target}" in sizes}
    if lora is not None and adapted:
        trained += sum(count - sizes[key] for key, count in adapted.items())
        state = f"LoRA of rank {lora.rank} ({_millions(trained)} trained)"
    elif later:
        state = f"frozen until step {later[0]:.0f}"
    elif steps[0] == 0 < steps[-1]:
        state = f"partly frozen ({_millions(trained)} trained)"
    else:
        state = "trained" if steps == [0] else "frozen"
    origin, start = model.origins.get(name), "random weights"
    if origin is not None:
        start = f"from {origin.path} ({', '.join([*origin.languages, origin.details])})"
    shown = _languages(name, text)
    languages = ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
    return f"{name.replace('encoders.', 'tower ')} ({languages}): {state}, {_millions(sum(sizes.values()))}, {start}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M parameters"
