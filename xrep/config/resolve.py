"""Resolves and checks the options of one run, and makes the ``Config`` of each part."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xrep.config.fields import convert, fields_of_class
from xrep.config.sections import DEFAULT_NAMES, OF_A_PART, SECTIONS, TOP_LEVEL, Section, parts_of, sections_of
from xrep.config.yaml_files import to_yaml
from xrep.errors import UserError, shown
from xrep.registry import REGISTRIES, described, load_target, suggestion

MIXTURE = {"task": "xrep.tasks.mixture:MixtureTask", "criterion": "xrep.criteria.multitask:Multitask"}
"""The task and the criterion of a run with several parts, which combine those of the parts."""
_TOP_KEYS = [*SECTIONS, *TOP_LEVEL, "parts", "mixing"]


@dataclass(frozen=True)
class Part:
    """The task or the criterion of one of several parts."""

    name: str
    kind: type
    """Class of the task or criterion."""
    config: Any
    """Instance of the class's ``Config``."""
    weight: float
    proportion: float


@dataclass(frozen=True)
class RunConfig:
    """A resolved configuration, in which every option has a value. Its attributes follow from ``values``."""

    values: dict[str, Any]
    """All options as plain nested values, in the form of a configuration file."""
    stage: str = ""
    """Name of the stage in a course of training; empty for a single run."""

    @cached_property
    def classes(self) -> dict[str, type]:
        """Maps each section to the class of the chosen part. Several parts have the classes of ``MIXTURE``."""
        targets = {section.key: section.target for section in sections_of(self.values) if section.key in SECTIONS}
        return {key: load_target(target) for key, target in (targets | self._mixture).items()}

    @cached_property
    def configs(self) -> dict[str, Any]:
        """Maps each section to the options of the chosen part, an instance of its ``Config`` dataclass."""
        sections = {section.key: section for section in sections_of(self.values)}
        configs = {key: load_target(section.options)(**section.values) for key, section in sections.items()}
        chosen = {key: config for key, config in configs.items() if key in SECTIONS}
        for kind in self._mixture:
            parts = []
            for name in (part["name"] for part in self.values["parts"]):
                own, key = configs[f"parts.{name}"], f"parts.{name}.{kind}"
                cls = load_target(sections[key].target)
                parts.append(Part(name, cls, configs[key], own.weight, own.proportion or 1.0))
            chosen[kind] = self.classes[kind].Config(parts=parts, mixing=self.values["mixing"])
        return chosen

    @property
    def _mixture(self) -> dict[str, str]:
        return MIXTURE if "parts" in self.values else {}

    @property
    def seed(self) -> int:
        return self.values["seed"]

    @property
    def init(self) -> str | None:
        return self.values["init"]

    @property
    def label(self) -> str:
        """A short name for messages and folders: task and criterion, or the names of the parts."""
        if "parts" in self.values:
            return "+".join(part["name"] for part in self.values["parts"])
        return f"{self.values['task']['name']}-{self.values['criterion']['name']}"

    @property
    def data(self) -> list[str]:
        """The data that the run's tasks name."""
        tasks = [part["task"] for part in self.values.get("parts", [self.values])]
        return list(dict.fromkeys(task["data"] for task in tasks if task.get("data")))

    def to_yaml(self) -> str:
        return to_yaml(self.values)


def resolve(merged: Mapping[str, Any], problems: list[str], stage: str = "") -> RunConfig | None:
    """Return the run that the merged values of all layers describe.

    Args:
        problems: Everything that is wrong is added here, one line each; then the result is None.
    """
    own = _problems_of_form(merged)
    resolved = {section.key: _resolve(section, own) for section in sections_of(merged)}
    run = None
    if not own:
        run = RunConfig(assembled(merged, resolved), stage)
        if parts_of(merged):
            own = run.configs["criterion"].problems()
    problems += own
    return None if own else run


def assembled(merged: Mapping[str, Any], resolved: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the values of a run as nested values, from those of each of its sections.

    Args:
        merged: Values whose parts say their names and their order.
        resolved: Values of each section by its key; it is emptied of those of parts.
    """
    top, parts = resolved.pop(""), []
    for name in (part["name"] for part in parts_of(merged)):
        task_and_criterion = {kind: resolved.pop(f"parts.{name}.{kind}") for kind in OF_A_PART}
        parts.append({"name": name, **task_and_criterion, **resolved.pop(f"parts.{name}")})
    several = {"parts": parts, "mixing": top["mixing"]} if parts else {}
    return {**several, **resolved, **top}


def unknown_sections(values: Mapping[str, Any]) -> list[str]:
    """Return the keys at the top that are none of a configuration."""
    return [key for key in values if key not in _TOP_KEYS]


def _problems_of_form(values: Mapping[str, Any]) -> list[str]:
    several = "parts" in values
    problems = [f"unknown section {shown(key)}; {suggestion(key, _TOP_KEYS)}" for key in unknown_sections(values)]
    mappings = [(key, values[key]) for key in SECTIONS if key in values]
    parts = parts_of(values) if several else []
    mappings += [(f"parts.{part['name']}.{kind}", part[kind]) for part in parts for kind in OF_A_PART if kind in part]
    for key, value in mappings:
        if not isinstance(value, Mapping):
            problems.append(f"{key} must be a mapping of options, not {shown(value)}")
    if not several:
        cure = "name several parts, or remove it"
        return [*problems, *([f"mixing is for a run with several parts; {cure}"] if "mixing" in values else [])]
    if single := " and ".join(kind for kind in OF_A_PART if kind in values):
        problems.append(f"a run has either parts or one task and criterion, but {single} is given beside parts")
    if not parts or len(parts) < len(values["parts"]):
        problems.append("parts must be a list of {task: ..., criterion: ...}")
    allowed = "letters, digits and _, beginning with a letter or _"
    problems += problems_of_names("part", [part["name"] for part in parts], r"[A-Za-z_]\w*", allowed)
    for part in parts:
        key = f"parts.{part['name']}"
        if "batch_size" in part:
            problems.append(f"{key}.batch_size is short for {key}.task.batch_size; give only one of them")
        if part.get("proportion") is not None and values.get("mixing", "weight") == "weight":
            problems.append(f"{key}.proportion is given, but mixing is weight; set mixing to proportion")
    return problems


def problems_of_names(kind: str, names: list[str], pattern: str, allowed: str) -> list[str]:
    """Return what is wrong with the names of parts or stages, which become parts of keys and names of folders."""
    distinct = dict.fromkeys(names)
    wrong = [name for name in distinct if not re.fullmatch(pattern, name)]
    problems = [f"{shown(name)} cannot be the name of a {kind}; use {allowed}" for name in wrong]
    return problems + [f"two {kind}s are named {shown(name)}; rename one" for name in distinct if names.count(name) > 1]


def _resolve(section: Section, problems: list[str]) -> dict[str, Any]:
    """Return the value of every option of a section, and add to ``problems`` what is wrong."""
    if section.kind in DEFAULT_NAMES and section.name is None:
        known = ", ".join(REGISTRIES[section.kind].names())
        problems.append(f"no {section.key} is chosen; set `{section.key}` to one of {known}")
        return {}
    try:
        if section.kind in DEFAULT_NAMES:
            REGISTRIES[section.kind].load(str(section.name))  # checks its class
        cls: Any = load_target(section.options)
        specs = {spec.name: spec for spec in fields_of_class(section.key, cls)}
    except UserError as error:
        problems.append(str(error) if section.key == section.kind else f"{section.key}: {error}")
        return {}
    above = f"{section.key}." if section.key else ""
    for name in section.values:
        if name not in specs:
            problems.append(f"unknown key {above}{name}; {suggestion(str(name), list(specs))}")
    values, doubtful = {}, []
    for name, spec in specs.items():
        values[name] = spec.default
        try:
            if name in section.values:
                values[name] = convert(section.values[name], spec.annotation)
            elif spec.default is dataclasses.MISSING:
                raise ValueError("has no default; give it")
        except ValueError as error:
            problems.append(f"{spec.key} {error}")
            doubtful.append(name)
    if dataclasses.MISSING not in values.values():
        try:
            config = cls(**values)
            refused = config.problems() if hasattr(config, "problems") else []
            # What the part refuses about a doubtful option would concern its default, not the value given.
            problems += [above + problem for problem in refused if not any(name in problem for name in doubtful)]
        except Exception as error:  # the part may be somebody else's
            cure = "its `problems` must return a list of strings, and its constructor must take any values"
            problems.append(f"{section.options} cannot check its options: {described(error)}; {cure}")
    return values if section.name is None else {"name": section.name, **values}
