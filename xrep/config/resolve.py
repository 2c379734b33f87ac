"""Resolves and checks the options of one run, and makes the ``Config`` of each part."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xrep.config.fields import convert, fields_of_class
from xrep.config.sections import (
    DEFAULT_NAMES,
    OF_A_PART,
    Mixing,
    MixtureOptions,
    RunOptions,
    Section,
    parts_of,
    sections_of,
    to_yaml,
)
from xrep.errors import UserError
from xrep.registry import REGISTRIES, load_target, suggestion

MIXTURE = {"task": "xrep.tasks.mixture:MixtureTask", "criterion": "xrep.criteria.multitask:Multitask"}
"""The task and the criterion of a run with several parts, which combine those of the parts."""


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
    """A resolved configuration: the chosen parts and their options.

    A run with several parts has one task and one criterion, too, which are those of ``MIXTURE``.
    """

    configs: dict[str, Any]
    """Maps each section to the instance of its part's ``Config`` dataclass."""
    classes: dict[str, type]
    """Maps each section to the class of the chosen part."""
    names: dict[str, str]
    """Maps each section, also those of several parts (``parts.NAME.task``), to the name of the chosen part."""
    options: RunOptions
    stage: str = ""
    """Name of the stage in a course of training; empty for a single run."""

    @property
    def seed(self) -> int:
        return self.options.seed

    @property
    def init(self) -> str | None:
        return self.options.init

    @property
    def label(self) -> str:
        """A short name for messages and folders: task and criterion, or the names of the parts."""
        if isinstance(self.options, MixtureOptions):
            return "+".join(part.name for part in self.configs["task"].parts)
        return f"{self.names['task']}-{self.names['criterion']}"

    @property
    def data(self) -> list[str]:
        """The data that the run's tasks name."""
        config = self.configs["task"]
        tasks = [part.config for part in config.parts] if isinstance(self.options, MixtureOptions) else [config]
        return list(dict.fromkeys(task.data for task in tasks if getattr(task, "data", None)))

    @property
    def values(self) -> dict[str, Any]:
        """All options as plain nested values, in the form of a configuration file."""
        configs, values = dict(self.configs), {}
        if isinstance(self.options, MixtureOptions):
            tasks, criteria = (configs.pop(kind).parts for kind in OF_A_PART)
            values["parts"] = [self._part_values(*pair) for pair in zip(tasks, criteria, strict=True)]
            values["mixing"] = self.options.mixing
        values |= {key: self._values(key, config) for key, config in configs.items()}
        return values | dataclasses.asdict(self.options)

    def _part_values(self, task: Part, criterion: Part) -> dict[str, Any]:
        assert isinstance(self.options, MixtureOptions)
        key = f"parts.{task.name}"
        return {
            "name": task.name,
            "task": self._values(f"{key}.task", task.config),
            "criterion": self._values(f"{key}.criterion", criterion.config),
            "weight": task.weight,
            "proportion": task.proportion if self.options.mixing == "proportion" else None,
        }

    def _values(self, key: str, config: Any) -> dict[str, Any]:
        name = {"name": self.names[key]} if key in self.names else {}
        return name | dataclasses.asdict(config)

    def to_yaml(self) -> str:
        return to_yaml(self.values)


def resolve(values: Mapping[str, Any], problems: list[str], stage: str = "") -> RunConfig | None:
    """Return the run that the merged values of all layers describe.

    Args:
        problems: Everything that is wrong is added here, one line each; then the result is None.
    """
    found = _problems_of_form(values)
    sections = sections_of(values)
    configs = {section.key: _configure(section, found) for section in sections}
    if found:
        problems += found
        return None
    options = configs.pop("")
    classes = {section.key: load_target(section.target) for section in sections if section.key in configs}
    names = {section.key: section.name for section in sections if section.name is not None}
    if isinstance(options, MixtureOptions):
        found = _mix([part["name"] for part in parts_of(values)], options.mixing, configs, classes)
        problems += found
    return None if found else RunConfig(configs, classes, names, options, stage)


def _problems_of_form(values: Mapping[str, Any]) -> list[str]:
    if "parts" not in values:
        wrong = "mixing" in values
        return ["mixing is for several parts, and there are none; name them under parts"] if wrong else []
    problems = []
    single = " and ".join(kind for kind in OF_A_PART if kind in values)
    if single:
        problems.append(f"a run has either parts or one task and criterion, but {single} is given beside parts")
    parts = values["parts"]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
        problems.append("parts must be a list of {task: ..., criterion: ...}")
    names = [part["name"] for part in parts_of(values)]
    check_names("part", names, r"[A-Za-z_]\w*", "letters, digits and _, and do not begin with a digit", problems)
    for key, part in ((f"parts.{part['name']}", part) for part in parts_of(values)):
        if "batch_size" in part:
            problems.append(f"{key}.batch_size is short for {key}.task.batch_size; give one of them")
        for kind in OF_A_PART:
            if kind in part and not isinstance(part[kind], Mapping):
                problems.append(f"{key}.{kind} must be a mapping of options, not {part[kind]!r}")
        if part.get("proportion") is not None and values.get("mixing", "weight") == "weight":
            problems.append(f"{key}.proportion is given, but mixing is weight; add mixing: proportion")
    return problems


def _configure(section: Section, problems: list[str]) -> Any:
    """Return the ``Config`` of a section, made from the values given; None after adding to ``problems``."""
    if section.kind in DEFAULT_NAMES and section.name is None:
        known = ", ".join(REGISTRIES[section.kind].names())
        how = f"--{section.kind}" if section.key == section.kind else f"{section.key}="
        problems.append(f"no {section.key} chosen; name one: {how} ({known})")
        return None
    try:
        cls: Any = load_target(section.options)
        specs = {spec.name: spec for spec in fields_of_class(section.key, cls)}
    except UserError as error:
        problems.append(str(error) if section.key == section.kind else f"{section.key}: {error}")
        return None
    above = f"{section.key}." if section.key else ""
    for name in section.given:
        if name not in specs:
            problems.append(f"unknown key {above}{name}; {suggestion(str(name), list(specs))}")
    values, doubtful = {}, []
    for name, spec in specs.items():
        try:
            if name in section.given:
                values[name] = convert(section.given[name], spec.annotation)
            elif spec.default is dataclasses.MISSING:
                raise ValueError("has no default; give it")
        except ValueError as error:
            problems.append(f"{spec.key} {error}")
            doubtful.append(name)
    if any(specs[name].default is dataclasses.MISSING for name in doubtful):
        return None
    config = cls(**values)
    # What the part refuses about a doubtful option would concern its default, not the value given.
    refused = config.problems() if hasattr(config, "problems") else []
    problems += [above + problem for problem in refused if not any(name in problem for name in doubtful)]
    return config


def _mix(names: list[str], mixing: Mixing, configs: dict[str, Any], classes: dict[str, type]) -> list[str]:
    """Replace the tasks and criteria of the parts by one task and one criterion; return what these refuse."""
    problems = []
    options = {name: configs.pop(f"parts.{name}") for name in names}
    for name in names:
        del classes[f"parts.{name}"]
    for kind, target in MIXTURE.items():
        mixed = []
        for name, own in options.items():
            key = f"parts.{name}.{kind}"
            mixed.append(Part(name, classes.pop(key), configs.pop(key), own.weight, own.proportion or 1.0))
        classes[kind] = load_target(target)
        configs[kind] = classes[kind].Config(parts=mixed, mixing=mixing)
        problems += configs[kind].problems()
    return problems


def check_names(kind: str, names: list[str], pattern: str, allowed: str, problems: list[str]) -> None:
    """Add to ``problems`` names of parts or stages that are given twice, or that cannot be used in a key or as a folder
    name."""
    for name in dict.fromkeys(names):
        if not re.fullmatch(pattern, name):
            problems.append(f"{name!r} cannot be the name of a {kind}; use {allowed}")
        if names.count(name) > 1:
            problems.append(f"two {kind}s are named {name!r}; rename one")
