"""One run's configuration: defaults < YAML < command line, every problem reported together.

A part's options are the fields of the ``Config`` dataclass nested in its class; the string under a field is its help.
They are read from the source text, without importing it, so that ``--help`` need not wait for torch.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from xrep.errors import ConfigError, UserError
from xrep.registry import REGISTRIES, class_node, import_plugin, load_target, one_line, suggestion

FIXED_SECTIONS = {
    "trainer": "xrep.training.trainer:Trainer",
    "checkpoint": "xrep.training.checkpoint:Checkpoints",
    "logging": "xrep.training.progress:Progress",
}
"""Sections whose class is not chosen by name."""

DEFAULT_NAMES: dict[str, str | None] = {
    "task": None,
    "model": "dual_encoder",
    "criterion": None,
    "optimizer": "adamw",
    "lr_scheduler": "cosine",
    "validation": "retrieval",
}
SECTIONS = [*DEFAULT_NAMES, *FIXED_SECTIONS]
TOP_LEVEL: dict[str, tuple[str, Any, str]] = {
    "init": (
        "str | None",
        None,
        "Checkpoint directory to start from: the model, and every criterion tensor of the same name and shape.",
    ),
    "seed": ("int", 1, "Seed of initialisation, order of data and dropout."),
    "plugins": ("list[str]", [], "Python modules that register further parts (same as --plugin)."),
}


@dataclass(frozen=True)
class FieldSpec:
    """One option: a field of a ``Config`` dataclass as its source text gives it."""

    section: str
    name: str
    annotation: str
    default: Any
    help: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


@dataclass(frozen=True)
class RunConfig:
    """A resolved configuration: plain nested values plus the objects made from them."""

    values: dict[str, Any]
    configs: dict[str, Any]
    """Section -> instance of that part's ``Config`` dataclass."""
    classes: dict[str, type]
    """Section -> class of the chosen part."""

    @property
    def seed(self) -> int:
        return self.values["seed"]

    @property
    def init(self) -> str | None:
        return self.values["init"]

    def to_yaml(self) -> str:
        return to_yaml(self.values)


class _Dumper(yaml.SafeDumper):
    """Plain data only; text stays text where OmegaConf reads a number that YAML 1.1 does not (``1e3``)."""

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'" if text[:1] in "+-.0123456789" else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def to_yaml(values: Mapping[str, Any]) -> str:
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def part_target(section: str, name: str | None) -> str | None:
    """``module:Class`` of a section's part, None while none is chosen."""
    if section in FIXED_SECTIONS:
        return FIXED_SECTIONS[section]
    return None if name is None else REGISTRIES[section].target(name)


def read_fields(section: str, target: str) -> list[FieldSpec]:
    """The options of a part, read from its module's source text without running it.

    A ``Config`` that inherits options (or a class that inherits its ``Config``) is imported to find the rest of them.

    Raises:
        UserError: the module or its class has no readable ``Config``.
    """
    module, _, class_name = target.partition(":")
    node = class_node(module, f"{class_name}.Config")
    if node is not None and not node.bases:
        return _fields_of(section, node)
    config = getattr(load_target(target), "Config", None)
    if not dataclasses.is_dataclass(config):
        raise UserError(f"{target} has no nested dataclass Config", cure="every part declares its options there")
    assert isinstance(config, type)
    fields: dict[str, FieldSpec] = {}
    for base in reversed(config.__mro__[:-1]):
        node = class_node(base.__module__, base.__qualname__)
        fields |= {spec.name: spec for spec in _fields_of(section, node)} if node is not None else {}
    return list(fields.values())


def _fields_of(section: str, node: ast.ClassDef) -> list[FieldSpec]:
    fields = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        documented = (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        )
        text = " ".join(following.value.value.split()) if documented else ""
        name = statement.target.id
        try:
            default = _default_of(statement.value)
        except ValueError as error:
            raise UserError(f"the default of {section}.{name} is not a literal", cure="write it out") from error
        fields.append(FieldSpec(section, name, ast.unparse(statement.annotation), default, text))
    return fields


def _default_of(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "dataclasses.field"):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return ast.literal_eval(keyword.value)
            if keyword.arg == "default_factory":
                if isinstance(keyword.value, ast.Lambda):
                    return ast.literal_eval(keyword.value.body)
                if ast.unparse(keyword.value) == "list":
                    return []
    return dataclasses.MISSING if node is None else ast.literal_eval(node)


def convert(value: Any, annotation: str) -> Any:
    """``value`` (of a YAML file, or a string of the command line) as the type the annotation names.

    Raises:
        ValueError: it is not one.
    """
    options = _union(annotation)
    if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
        if "None" in options:
            return None
        raise ValueError(f"must be {annotation}")
    for option in options:
        try:
            return _convert_one(value, option)
        except (ValueError, TypeError, OverflowError):
            continue
    raise ValueError(f"must be {annotation}, not {value!r}")


def _union(annotation: str) -> list[str]:
    node = ast.parse(annotation, mode="eval").body
    parts = []
    while isinstance(node, ast.BinOp):
        parts.append(ast.unparse(node.right))
        node = node.left
    return [ast.unparse(node), *reversed(parts)]


def _convert_one(value: Any, kind: str) -> Any:
    if kind.startswith("Literal["):
        for choice in _elements(kind):
            if str(value) == str(ast.literal_eval(choice)):
                return ast.literal_eval(choice)
    elif kind.startswith("list["):
        if isinstance(value, str):
            value = [item.strip() for item in value.strip("[] ").split(",") if item.strip()]
        if isinstance(value, list | tuple):
            return [convert(item, _elements(kind)[0]) for item in value]
    elif kind == "bool":
        text = str(value).lower()
        if text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text in ("true", "yes", "on", "1")
    elif kind == "int" and not isinstance(value, bool):
        number = float(value) if not isinstance(value, int) else value
        if number == int(number):
            return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
    elif kind == "float" and not isinstance(value, bool):
        return float(value)
    elif kind == "str" and isinstance(value, str | int | float):
        return str(value)
    raise ValueError(kind)


def _elements(kind: str) -> list[str]:
    node = ast.parse(kind, mode="eval").body
    assert isinstance(node, ast.Subscript)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [ast.unparse(element) for element in inner]


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A configuration file as nested values; ``task: bitext`` is short for ``task: {name: bitext}``.

    Raises:
        UserError: the file is missing or is not a YAML mapping.
    """
    try:
        loaded = OmegaConf.load(path)
        values = OmegaConf.to_container(loaded, resolve=True)
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure="name an existing YAML file") from None
    except (OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"not a valid configuration: {one_line(error)}", path=path) from error
    if not isinstance(values, dict):
        raise UserError("holds no mapping of sections", path=path, cure="write for example 'task: bitext'")
    return {str(k): {"name": v} if k in DEFAULT_NAMES and isinstance(v, str) else v for k, v in values.items()}


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """``upper`` over ``lower``, field by field. A section whose name changes forgets the fields of the old part."""
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in lower.items()}
    for key, value in upper.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = value.get("name", old.get("name")) != old.get("name")
            merged[key] = dict(value) if renamed else {**old, **value}
        else:
            merged[key] = value
    return merged


def fields_of_sections(names: Mapping[str, str | None]) -> list[FieldSpec]:
    """Every option of the chosen parts, in the order of ``SECTIONS``, top-level ones last."""
    fields = []
    for section in SECTIONS:
        target = part_target(section, names.get(section))
        if target is not None:
            fields += read_fields(section, target)
    return fields + [FieldSpec("", name, *rest) for name, rest in TOP_LEVEL.items()]


def chosen_names(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Section -> name of its part, defaults filled in."""
    names = {}
    for section, default in DEFAULT_NAMES.items():
        given = values.get(section)
        name = given.get("name", default) if isinstance(given, Mapping) else default
        names[section] = None if name is None else str(name)
    return names


def plugins_of(values: Mapping[str, Any]) -> list[str]:
    """The modules that a layer of values names; what is no list of names is reported where options are converted."""
    try:
        return convert(values.get("plugins") or [], "list[str]")
    except ValueError:
        return []


def compose(layers: list[tuple[str, Mapping[str, Any]]], problems: list[str] | None = None) -> RunConfig:
    """Resolve layers of values, lowest first, each with the name that messages give it.

    Raises:
        ConfigError: with every problem found: unknown sections, parts and keys (with the nearest known one), values of
            the wrong type, values that the parts themselves refuse.
    """
    problems = list(problems or [])
    values: dict[str, Any] = {}
    for origin, layer in layers:
        values = merge(values, _known_sections(origin, layer, problems))
    for plugin in plugins_of(values):
        import_plugin(plugin)
    resolved, doubtful = _resolve(values, problems)
    classes, configs = _instantiate(resolved, doubtful, problems)
    if problems:
        raise ConfigError(problems)
    return RunConfig(resolved, configs, classes)


def _known_sections(origin: str, layer: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    known = {}
    for key, value in layer.items():
        if key not in SECTIONS and key not in TOP_LEVEL:
            problems.append(f"{origin}: unknown section {key!r}; {suggestion(key, [*SECTIONS, *TOP_LEVEL])}")
        elif key in SECTIONS and not isinstance(value, Mapping):
            problems.append(f"{origin}: {key} must hold options, not {value!r}")
        else:
            known[key] = value
    return known


def _resolve(values: Mapping[str, Any], problems: list[str]) -> tuple[dict[str, Any], set[str]]:
    """The values of each section whose part is known, and the keys that keep their default for want of a good one."""
    names = chosen_names(values)
    resolved: dict[str, Any] = {}
    doubtful: set[str] = set()
    for section in SECTIONS:
        name = names.get(section)
        if section in DEFAULT_NAMES and name is None:
            choices = ", ".join(REGISTRIES[section].names())
            problems.append(f"no {section} chosen; name one: --{section.replace('_', '-')} ({choices})")
            continue
        try:
            target = part_target(section, name)
        except UserError as error:
            problems.append(str(error))
            continue
        assert target is not None
        given = dict(values.get(section) or {})
        if section in DEFAULT_NAMES:
            given.pop("name", None)
        section_values = _resolve_fields(section, read_fields(section, target), given, doubtful, problems)
        resolved[section] = {"name": name, **section_values} if section in DEFAULT_NAMES else section_values
    top = [FieldSpec("", name, *rest) for name, rest in TOP_LEVEL.items()]
    resolved.update(_resolve_fields("", top, {k: values[k] for k in TOP_LEVEL if k in values}, doubtful, problems))
    if not 0 <= resolved["seed"] < 2**63:
        problems.append(f"seed must lie in [0, 2**63), not {resolved['seed']}")
    return resolved, doubtful


def _resolve_fields(
    section: str, fields: list[FieldSpec], given: dict[str, Any], doubtful: set[str], problems: list[str]
) -> dict[str, Any]:
    known = {field.name: field for field in fields}
    for key in given:
        if key not in known:
            problems.append(f"unknown key {section}.{key}; {suggestion(str(key), list(known))}")
    resolved = {}
    for name, field in known.items():
        if name not in given:
            if field.default is dataclasses.MISSING:
                problems.append(f"{field.key} has no default; give it")
                doubtful.add(field.key)
            resolved[name] = field.default
            continue
        try:
            resolved[name] = convert(given[name], field.annotation)
        except ValueError as error:
            problems.append(f"{field.key} {error}")
            resolved[name] = field.default
            doubtful.add(field.key)
    return resolved


def _instantiate(
    resolved: dict[str, Any], doubtful: set[str], problems: list[str]
) -> tuple[dict[str, type], dict[str, Any]]:
    """Build the ``Config`` of every part and add what it refuses, but for what it says of a doubtful value."""
    classes, configs = {}, {}
    for section in (section for section in SECTIONS if section in resolved):
        target = part_target(section, resolved[section].get("name"))
        assert target is not None
        classes[section] = load_target(target)
        fields = {k: v for k, v in resolved[section].items() if k != "name"}
        if any(value is dataclasses.MISSING for value in fields.values()):
            continue
        configs[section] = classes[section].Config(**fields)
        check = getattr(configs[section], "problems", None)
        unsure = [key.removeprefix(f"{section}.") for key in doubtful if key.startswith(f"{section}.")]
        refused = [problem for problem in (check() if check else []) if not any(name in problem for name in unsure)]
        problems += [f"{section}.{problem}" for problem in refused]
    return classes, configs
