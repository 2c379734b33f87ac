"""The structure of a configuration: sections, each with the options of one part, and layers that set their values.

Values of a layer are nested mappings: ``{"criterion": {"name": "dual_moco", "queue_size": 512}, "seed": 1}``. Two keys
hold lists of named items: ``parts`` (several tasks and criteria in one run) and ``stages`` (a course of training). A
list replaces the one of the layers below; a mapping ``{"NAME": {...}}`` changes the items of that name (parts can also
be given by index: ``{"0": {...}}``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from xrep.config.fields import FieldSpec, convert, read_fields
from xrep.config.ranges import out_of_range
from xrep.config.yaml_files import load_yaml
from xrep.registry import REGISTRIES, load_target

FIXED_SECTIONS = {
    "trainer": "xrep.training.trainer:Trainer",
    "checkpoint": "xrep.training.checkpoint:Checkpoints",
    "distributed": "xrep.training.distributed:Distributed",
    "logging": "xrep.training.log:Log",
}
"""Sections whose class is fixed instead of chosen by name."""

DEFAULT_NAMES: dict[str, str | None] = {
    "task": None,
    "model": "dual_encoder",
    "criterion": None,
    "optimizer": "adamw",
    "lr_scheduler": "cosine",
    "validation": "retrieval",
}
SECTIONS = [*DEFAULT_NAMES, *FIXED_SECTIONS]
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
    size is given by number or the run starts from trained weights. auto: small on a CPU, base on a GPU."""
    seed: int = 1
    """Seed of the random initialisation, the order of the data and dropout."""
    plugins: list[str] = field(default_factory=list)
    """Python modules to import, which register further parts."""

    def problems(self) -> list[str]:
        return [] if 0 <= self.seed < 2**63 else [f"seed must lie in [0, 2**63), not {self.seed}"]


@dataclass(kw_only=True)
class MixtureOptions(RunOptions):
    """Options of the run as a whole, which has several parts."""

    mixing: Mixing = "weight"
    """How the parts share the training. weight: each step has a batch of every part. proportion: each step has a batch
    of one part, which is drawn with a probability proportional to its proportion."""


@dataclass(kw_only=True)
class PartOptions:
    """Options of one of several parts, beside those of its task and its criterion."""

    weight: float = 1.0
    """Factor by which the losses of the part are multiplied. It must be above 0."""
    proportion: float | None = None
    """With mixing proportion: the share of the steps that this part gets, relative to the other parts. none: 1."""

    def problems(self) -> list[str]:
        return out_of_range(self, weight="(0, inf)", proportion="(0, inf)")


OWN_OPTIONS = {"run": RunOptions, "mixture": MixtureOptions, "part": PartOptions}
"""Options that belong to no registered part, by kind of section."""
TOP_LEVEL = [f.name for f in fields(RunOptions)]
"""Keys at the top of a configuration that set an option of the run."""


@dataclass(frozen=True)
class Section:
    """One section of a run and the values given to it."""

    key: str
    """``criterion``, ``parts.NAME.criterion``, ``parts.NAME``, or empty for the options of the run as a whole."""
    kind: str
    """``criterion``; a key of OWN_OPTIONS if the options belong to no registered part."""
    name: str | None
    """Name of the chosen part; None if none is chosen, or if there is no choice."""
    values: dict[str, Any]

    @property
    def is_chosen(self) -> bool:
        """Whether the section's class is known."""
        return self.kind not in DEFAULT_NAMES or self.name in REGISTRIES[self.kind].names()

    @property
    def target(self) -> str:
        """The class of the section, as ``module:Class``. Raises UserError if there is no part of that name."""
        if self.kind in OWN_OPTIONS:
            return f"{__name__}:{OWN_OPTIONS[self.kind].__name__}"
        return FIXED_SECTIONS[self.kind] if self.name is None else REGISTRIES[self.kind].target(self.name)

    @property
    def options(self) -> str:
        """The dataclass of the section's options, as ``module:Class``."""
        return self.target if self.kind in OWN_OPTIONS else f"{self.target}.Config"


def sections_of(values: Mapping[str, Any]) -> list[Section]:
    """Return the sections of one run; those of several parts have separate keys."""
    several, parts = "parts" in values, [(f"parts.{part['name']}", part) for part in parts_of(values)]
    sections = [_section(f"{key}.{kind}", kind, part) for key, part in parts for kind in OF_A_PART]
    sections += [_section(kind, kind, values) for kind in SECTIONS if not several or kind not in OF_A_PART]
    for key, part in parts:
        own = {k: v for k, v in part.items() if k not in ("name", "batch_size", *OF_A_PART)}
        sections.append(Section(key, "part", None, own))
    kind, cls = ("mixture", MixtureOptions) if several else ("run", RunOptions)
    top = {field.name: values[field.name] for field in fields(cls) if field.name in values}
    return [*sections, Section("", kind, None, top)]


def _section(key: str, kind: str, values: Mapping[str, Any]) -> Section:
    section = values.get(kind)
    own = dict(section) if isinstance(section, Mapping) else {}
    name = own.pop("name", _default_name(kind, values)) if kind in DEFAULT_NAMES else None
    return Section(key, kind, None if name is None else str(name), own)


def _default_name(kind: str, values: Mapping[str, Any]) -> str | None:
    """Return the name of the part of a kind that is chosen if none is named; the task, or the model, may declare it."""
    if kind not in ("model", "validation"):
        return DEFAULT_NAMES[kind]
    tasks = {_section("task", "task", run).name for run in (parts_of(values) if "parts" in values else [values])}
    models = {_section("model", "model", values).name} if kind == "validation" else set()
    for declaring, names in (("model", models), ("task", tasks)):
        if len(names) == 1 and (name := names.pop()) in REGISTRIES[declaring].names():
            declared = getattr(load_target(REGISTRIES[declaring].target(str(name))), f"default_{kind}", None)
            if declared:
                return declared
    return DEFAULT_NAMES[kind]


def parts_of(values: Mapping[str, Any], key: str = "parts") -> list[Mapping[str, Any]]:
    """Return the well-formed parts, or ``stages``, that values list."""
    items = values.get(key)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list) else []


def fields_of(values: Mapping[str, Any]) -> list[FieldSpec]:
    """Return every option of one run, for those sections whose class is known."""
    chosen = [section for section in sections_of(values) if section.is_chosen]
    return [spec for section in chosen for spec in read_fields(section.key, section.options)]


def plugins_of(values: Mapping[str, Any]) -> list[str]:
    """Return the modules that a layer of values names; anything but a list of names is reported later."""
    with suppress(ValueError):
        return convert(values.get("plugins") or [], list[str])
    return []


# -- layers -----------------------------------------------------------------------------------------------------------


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a configuration file as nested values, with short forms expanded (``expand``). Raises UserError if the file
    is missing or is not a YAML mapping, or it is larger than a configuration is."""
    return expand(load_yaml(path))


def expand(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Expand the short forms of a layer.

    ``task: bitext`` becomes ``task: {name: bitext}``; ``validate_with`` chooses the validation ``several`` unless
    another is named; ``batch_size`` of a part becomes that of its task; a part without a name is named after its
    criterion (``dual_moco``, the next one ``dual_moco_2``), a stage after its number (``1``, ``2``).
    """
    expanded: dict[str, Any] = {str(key): value for key, value in values.items()}
    for kind in DEFAULT_NAMES:
        if isinstance(expanded.get(kind), str):
            expanded[kind] = {"name": expanded[kind]}
    validation = expanded.get("validation")
    if isinstance(validation, Mapping) and "validate_with" in validation:
        expanded["validation"] = {"name": "several", **validation}
    for key, each in (("parts", _expand_part), ("stages", expand)):
        items = expanded.get(key)
        if isinstance(items, list):
            expanded[key] = _named(key, [each(item) if isinstance(item, Mapping) else item for item in items])
        elif isinstance(items, Mapping):
            expanded[key] = {str(k): each(v) if isinstance(v, Mapping) else v for k, v in items.items()}
    return expanded


def _expand_part(part: Mapping[Any, Any]) -> dict[str, Any]:
    expanded = expand(part)
    task = expanded.get("task", {})
    if "batch_size" in expanded and isinstance(task, Mapping) and "batch_size" not in task:
        expanded["task"] = {**task, "batch_size": expanded.pop("batch_size")}
    return expanded


def _named(key: str, items: list[Any]) -> list[Any]:
    mappings = [(number, item) for number, item in enumerate(items, 1) if isinstance(item, dict)]
    taken = {str(item["name"]) for _, item in mappings if "name" in item}
    for number, item in mappings:
        if "name" not in item:
            stem = str(number)
            if key == "parts":
                criterion = _section("criterion", "criterion", item).name
                stem = re.sub(r"\W", "_", criterion) if criterion else f"part_{number}"
            choices = [stem, *(f"{stem}_{n}" for n in range(2, len(items) + 2))]
            item["name"] = next(name for name in choices if name not in taken)
            taken.add(item["name"])
        item["name"] = str(item["name"])
    return items


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``upper`` over ``lower``, field by field. If the name of a section changes, the fields of the old part are
    dropped."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in lower.items()}
    for key, value in upper.items():
        old = merged.get(key)
        if key in ("parts", "stages") and isinstance(old, list) and isinstance(value, Mapping):
            by_index = key == "parts"
            merged[key] = [_changed(item, str(i) if by_index else None, value) for i, item in enumerate(old)]
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = "name" in old and value.get("name", old["name"]) != old["name"]
            merged[key] = dict(value) if renamed else {**old, **value}
        else:
            merged[key] = value
    return merged


def _changed(item: Any, index: str | None, changes: Mapping[Any, Any]) -> Any:
    if not isinstance(item, Mapping):
        return item
    for key in (index, item["name"]):
        if isinstance(changes.get(key), Mapping):
            item = merge(item, changes[key])
    return item
