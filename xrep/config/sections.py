"""The sections of a run: which part each has, and the dataclass of its options."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from xrep.config.fields import FieldSpec, Positive, Seed, fields_of_class
from xrep.config.values import CHOICES, Layer
from xrep.registry import FIXED_SECTIONS, REGISTRIES, load_target

_DEFAULT_NAMES = {"model": "dual_encoder", "optimizer": "adamw", "lr_scheduler": "cosine", "validation": "retrieval"}
SECTIONS = [*CHOICES, *FIXED_SECTIONS]
OF_A_PART = ("task", "criterion")
"""Sections that each of several parts has separately."""
Mixing = Literal["weight", "proportion"]


@dataclass(kw_only=True)
class RunOptions:
    """Options of the run as a whole."""

    init: str | None = None
    """Checkpoint directory to start from. The model and all criterion tensors of the same name and shape are loaded."""
    size: Literal["auto", "tiny", "small", "base", "large"] = "auto"
    """Size of encoders that are not pretrained. tiny: 1 layer of width 96. small: 1 layer of width 192, for CPUs. base
    and large: those of BERT (12 layers of width 768, 24 of 1024). tiny and small also change the defaults of dropout
    (0), lr (0.003), warmup_steps (100), epochs (8), and queue_size and momentum of dual_moco (4096, 0.997), unless a
    size is given by number or the run starts from trained weights. Translators of both get vocab_size 6,000, max_tokens
    1,024, decoder_layers 2, norm pre and max_sentences 200, also those that start from a trained encoder. auto: small
    on a CPU, base on a GPU."""
    seed: Seed = 1
    """Seed of the random initialisation, the order of the data and dropout."""
    plugins: list[str] = field(default_factory=list)
    """Python modules to import, which register further parts."""


@dataclass(kw_only=True)
class MixtureOptions(RunOptions):
    """Options of the run as a whole, which has several parts."""

    mixing: Mixing = "weight"
    """How the parts share the training. weight: each step has a batch of every part. proportion: each step has a batch
    of one part, which is drawn with a probability proportional to its proportion."""


@dataclass(kw_only=True)
class PartOptions:
    """Options of one of several parts, beside those of its task and its criterion."""

    weight: Positive = 1.0
    """Factor by which the losses of the part are multiplied."""
    proportion: Positive | None = None
    """With mixing proportion: the share of the steps that this part gets, relative to the other parts. none: 1."""


TOP_LEVEL = [each.name for each in fields(RunOptions)]
"""Keys at the top of a configuration that set an option of the run."""


@dataclass(frozen=True)
class Section:
    """One section of a run."""

    key: str
    """``criterion``, ``parts.NAME.criterion``, ``parts.NAME``, or empty for the options of the run as a whole."""
    name: str | None
    """Name of the chosen part; None if none is chosen, or if there is no choice."""
    cls: Any
    """The class of the part; None if there is no part of that name."""
    options: Any
    """The dataclass of its options; None if there is no part of that name."""

    @property
    def kind(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def above(self) -> str:
        """What the keys of its options begin with."""
        return f"{self.key}." if self.key else ""

    def fields(self) -> list[FieldSpec]:
        return fields_of_class(self.key, self.options) if self.options else []


def sections_of(values: Layer) -> list[Section]:
    """Return the sections of one run; those of several parts have separate keys. Raises UserError if the class of a
    part cannot be loaded."""
    parts = [f"parts.{name}" for name in values.get("parts", [])]
    sections = [_chosen(f"{part}.{kind}", values) for part in parts for kind in OF_A_PART]
    sections += [_chosen(kind, values) for kind in CHOICES if not parts or kind not in OF_A_PART]
    for key, target in FIXED_SECTIONS.items():
        sections.append(Section(key, None, load_target(target), load_target(f"{target}.Config")))
    others = [*((part, PartOptions) for part in parts), ("", MixtureOptions if parts else RunOptions)]
    return sections + [Section(key, None, options, options) for key, options in others]


def _chosen(key: str, values: Layer) -> Section:
    kind, name = key.rpartition(".")[2], values.get(f"{key}.name")
    if name is None:
        name = _default_name(kind, values)
    cls: Any = REGISTRIES[kind].load(str(name)) if name in REGISTRIES[kind].names() else None
    options = load_target(f"{cls.__module__}:{cls.__qualname__}.Config") if cls else None
    return Section(key, None if name is None else str(name), cls, options)


def _default_name(kind: str, values: Layer) -> str | None:
    """Return the name of the part of a kind that is chosen if none is named; the model, or the task, may declare it."""
    if kind in ("model", "validation"):
        tasks = {str(values[key]) for key in values if re.fullmatch(r"(parts\.\w+\.)?task\.name", key)}
        models = {_chosen("model", values).name} if kind == "validation" else set()
        for registry, names in ((REGISTRIES["model"], models), (REGISTRIES["task"], tasks)):
            if len(names) == 1 and (name := names.pop()) in registry.names():
                if declared := getattr(registry.load(str(name)), f"default_{kind}", None):
                    return declared
    return _DEFAULT_NAMES.get(kind)


def fields_of(values: Layer) -> list[FieldSpec]:
    """Return every option of one run, for those sections whose part is known."""
    return [spec for section in sections_of(values) for spec in section.fields()]
