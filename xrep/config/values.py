"""Layers of configuration: flat dicts of dotted keys, which YAML files and the command line set.

``{"criterion.name": "dual_moco", "criterion.queue_size": 512, "seed": 1}``. Two keys hold lists of names: ``parts``
(several tasks and criteria in one run) and ``stages`` (a course of training); the values of an item have its name as a
prefix: ``{"parts": ["a", "b"], "parts.a.weight": 2}``.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from xrep.errors import UserError
from xrep.registry import one_line

Layer = dict[str, Any]
LISTS = ("parts", "stages")
CHOICES = ("task", "model", "criterion", "optimizer", "lr_scheduler", "validation")
"""Sections whose part is chosen by name."""
_CHOICE = re.compile(rf"(stages\.\w+\.)?(parts\.\w+\.)?({'|'.join(CHOICES)})")


def flat(values: Mapping[Any, Any], above: str = "") -> Layer:
    """Return nested values as a layer, with short forms written out; a layer stays as it is.

    ``task: bitext`` is ``task.name``. A part without a name is named after its criterion (``dual_moco``, the next one
    ``dual_moco_2``), a stage after its number. ``validate_with`` chooses the validation ``several``, unless the same
    layer names another. A UserError names an option that has two values, in different forms.
    """
    layer: Layer = {}
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            found = flat(value, f"{key}.")
        elif name in LISTS and isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            found: Layer = {key: _names(name, value)}
            for item_name, item in zip(found[key], value, strict=True):
                found |= flat({inner: each for inner, each in item.items() if inner != "name"}, f"{key}.{item_name}.")
        else:
            found = {f"{key}.name" if _CHOICE.fullmatch(key) else key: value}
        if twice := [each for each in found if each in layer]:
            raise UserError(f"{twice[0]} is given twice", cure="leave one of them out")
        layer |= found
    for key in [] if above else [*layer]:
        if key.endswith("validation.validate_with"):
            layer.setdefault(f"{key.removesuffix('validate_with')}name", "several")
    return layer


def _names(kind: str, items: list[Mapping[Any, Any]]) -> list[str]:
    names = [str(item["name"]) if "name" in item else "" for item in items]
    for number, item in enumerate(items):
        if not names[number]:
            criterion = flat(item).get("criterion.name") if kind == "parts" else number + 1
            stem = re.sub(r"\W", "_", str(criterion)) if criterion else f"part_{number + 1}"
            free = [stem, *(f"{stem}_{n}" for n in range(2, len(items) + 2))]
            names[number] = next(name for name in free if name not in names)
    return names


def nested(layer: Layer) -> dict[str, Any]:
    """Return the values of a layer in the form of a configuration file."""
    values: dict[str, Any] = {}
    for key in layer:
        first = key.partition(".")[0]
        below = strip(layer, f"{first}.")
        if first in LISTS and isinstance(layer.get(first), list):
            values[first] = [{"name": name, **nested(strip(below, f"{name}."))} for name in layer[first]]
        else:
            values[first] = nested(below) if below else layer[first]
    return values


def strip(layer: Layer, prefix: str) -> Layer:
    """Return the values whose keys have a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in layer.items() if key.startswith(prefix)}


def over(lower: Layer, upper: Layer) -> Layer:
    """Return ``upper`` over ``lower``: a section whose name changes forgets its old options, and a list its items."""
    lists = [f"{key}." for key in upper if key.rpartition(".")[2] in LISTS]
    names = {key: value for key, value in upper.items() if key.endswith(".name")}
    renamed = [key.removesuffix("name") for key, name in names.items() if lower.get(key, name) != name]
    return {key: value for key, value in lower.items() if not key.startswith((*lists, *renamed))} | upper


def read_yaml(path: str | Path) -> Layer:
    """Return a configuration file as a layer. Raises UserError if the file is missing or is not a YAML mapping."""
    return flat(load_yaml(path))


def load_yaml(path: str | Path) -> Mapping[Any, Any]:
    """Return a YAML file as it is nested; its interpolations (``${trainer.max_steps}``) are resolved. Raises UserError
    if the file is missing or is not a YAML mapping."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure="name an existing YAML file") from None
    try:
        values = OmegaConf.to_container(OmegaConf.load(io.StringIO(content.decode("utf-8"))), resolve=True)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        problem = " ".join((error.problem or error.context or "").split())
        raise UserError(f"not a valid configuration: {problem}", path=path, line=line, cure="correct it") from error
    except Exception as error:  # YAML and OmegaConf raise nearly every type, such as IndexError for "!!int ''"
        raise UserError(f"not a valid configuration: {one_line(error)[:300]}", path=path, cure="correct it") from error
    if not isinstance(values, Mapping):
        raise UserError("is not a mapping of sections", path=path, cure="write for example 'task: bitext'")
    return values


class _Dumper(yaml.SafeDumper):
    """A YAML dumper for plain data. It quotes text that OmegaConf would read as a number although YAML 1.1 does not
    (``1e3``), and escapes what it would resolve (``${``)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        style = "'" if text[:1] in "+-.0123456789" else None
        return self.represent_scalar("tag:yaml.org,2002:str", re.sub(r"(\\*)\$\{", r"\1\1\\${", text), style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return a layer, or nested values, as the text of a configuration file."""
    return yaml.dump(nested(flat(values)), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
