"""Resolves and checks the options of one run, and makes the ``Config`` of each part."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xrep.config.fields import FieldSpec, convert
from xrep.config.sections import (
    DEFAULT_NAMES,
    MIXING,
    OF_A_PART,
    PART_LEVEL,
    SECTIONS,
    TOP_LEVEL,
    Section,
    parts_of,
    sections_of,
    specs,
    to_yaml,
)
from xrep.errors import UserError
from xrep.registry import REGISTRIES, load_target, suggestion

MIXTURE = {"task": "xrep.tasks.mixture:MixtureTask", "criterion": "xrep.criteria.multitask:Multitask"}
"""The task and the criterion of a run with several parts, which combine those of the parts."""


@dataclass(frozen=True)
class RunConfig:
    """A resolved configuration: plain nested values and the objects made from them.

    With several parts, ``values`` has ``parts`` and ``mixing`` instead of ``task`` and ``criterion``. ``configs`` and
    ``classes`` still have one task and one criterion, which are those of ``MIXTURE``.
    """

    values: dict[str, Any]
    configs: dict[str, Any]
    """Maps each section to the instance of its part's ``Config`` dataclass."""
    classes: dict[str, type]
    """Maps each section to the class of the chosen part."""
    stage: str = ""
    """Name of the stage in a course of training; empty for a single run."""

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


class Resolver:
    """Turns the merged values of one run into a ``RunConfig``, and collects all problems.

    Attributes:
        problems: what is wrong, one line each; if there are any, there is no ``RunConfig``.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._doubtful: set[str] = set()
        """Keys that keep their default because no valid value was given."""
        self._check_form(values)
        self._sections = sections_of(values)
        self._parts = parts_of(values)
        self._given = values

    def run(self, stage: str = "") -> RunConfig | None:
        """Return the resolved run, or None if there are problems."""
        resolved = {section.key: self._resolve(section) for section in self._sections}
        values: dict[str, Any] = {}
        if "parts" in self._given:
            values["parts"] = [self._resolve_part(part, resolved) for part in self._parts]
            values |= self._fields("", specs("", MIXING), {k: self._given[k] for k in MIXING if k in self._given})
            self._check_proportions(values["parts"], values["mixing"])
        values |= {kind: resolved[kind] for kind in SECTIONS if resolved.get(kind) is not None}
        top = {key: self._given[key] for key in TOP_LEVEL if key in self._given}
        values |= self._fields("", specs("", TOP_LEVEL), top)
        if not 0 <= values["seed"] < 2**63:
            self.problems.append(f"seed must lie in [0, 2**63), not {values['seed']}")
        classes, configs = self._instantiate({key: fields for key, fields in resolved.items() if fields is not None})
        if self.problems:
            return None
        if "parts" in values:
            self._mix(values, classes, configs)
        return None if self.problems else RunConfig(values, configs, classes, stage)

    def _check_form(self, values: Mapping[str, Any]) -> None:
        if "parts" not in values:
            if "mixing" in values:
                self.problems.append("mixing is for several parts, and there are none; name them under parts")
            return
        single = [kind for kind in OF_A_PART if kind in values]
        if single:
            given = " and ".join(single)
            self.problems.append(f"a run has either parts or one task and criterion, but {given} is given beside parts")
        parts = values["parts"]
        if not isinstance(parts, list) or not parts or not all(isinstance(part, Mapping) for part in parts):
            self.problems.append("parts must be a list of {task: ..., criterion: ...}")
        names = [part["name"] for part in parts_of(values)]
        check_names("part", names, r"[A-Za-z_]\w*", "letters, digits and _, no digit in front", self.problems)

    def _resolve(self, section: Section) -> dict[str, Any] | None:
        """Return the values of a section, or None if its part is not known."""
        if section.kind in DEFAULT_NAMES and section.name is None:
            choices = ", ".join(REGISTRIES[section.kind].names())
            how = f"--{section.kind}" if section.key == section.kind else f"{section.key}="
            self.problems.append(f"no {section.key} chosen; name one: {how} ({choices})")
            return None
        try:
            fields = self._fields(section.key, section.fields(), section.given)
        except UserError as error:
            where = "" if section.key == section.kind else f"{section.key}: "
            self.problems.append(f"{where}{error}")
            return None
        return {"name": section.name, **fields} if section.kind in DEFAULT_NAMES else fields

    def _resolve_part(self, part: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
        key = f"parts.{part['name']}"
        if "batch_size" in part:
            self.problems.append(f"{key}.batch_size is short for {key}.task.batch_size; give one of them")
        own = {k: v for k, v in part.items() if k not in ("name", "batch_size", *OF_A_PART)}
        for kind in OF_A_PART:
            if kind in part and not isinstance(part[kind], Mapping):
                self.problems.append(f"{key}.{kind} must hold options, not {part[kind]!r}")
        options = self._fields(key, specs(key, PART_LEVEL), own, [*OF_A_PART, "batch_size"])
        for name, value in options.items():
            if value is not None and not value > 0:
                self.problems.append(f"{key}.{name} must be above 0, not {value}")
        return {"name": part["name"], **{kind: resolved[f"{key}.{kind}"] for kind in OF_A_PART}, **options}

    def _check_proportions(self, parts: list[dict[str, Any]], mixing: str) -> None:
        given = [part["name"] for part in parts if part["proportion"] is not None]
        if given and mixing == "weight":
            self.problems.append(f"parts.{given[0]}.proportion is given, but mixing is weight; add mixing: proportion")

    def _fields(
        self, section: str, fields: list[FieldSpec], given: Mapping[str, Any], others: list[str] | None = None
    ) -> dict[str, Any]:
        known = {field.name: field for field in fields}
        for key in given:
            if key not in known:
                near = suggestion(str(key), [*(others or []), *known])
                self.problems.append(f"unknown key {section}.{key}; {near}")
        resolved = {}
        for name, field in known.items():
            resolved[name] = field.default
            if name in given:
                try:
                    resolved[name] = convert(given[name], field.annotation)
                except ValueError as error:
                    self.problems.append(f"{field.key} {error}")
                    self._doubtful.add(field.key)
            elif field.default is dataclasses.MISSING:
                self.problems.append(f"{field.key} has no default; give it")
                self._doubtful.add(field.key)
        return resolved

    def _instantiate(self, resolved: Mapping[str, dict[str, Any]]) -> tuple[dict[str, type], dict[str, Any]]:
        """Build the ``Config`` of every section and add what it refuses to ``problems``, except messages about keys in
        ``_doubtful``."""
        classes, configs = {}, {}
        for section in (section for section in self._sections if section.key in resolved):
            key = section.key
            classes[key] = load_target(section.target)
            fields = {k: v for k, v in resolved[key].items() if k != "name"}
            if any(value is dataclasses.MISSING for value in fields.values()):
                continue
            configs[key] = classes[key].Config(**fields)
            check = getattr(configs[key], "problems", None)
            unsure = [name.removeprefix(f"{key}.") for name in self._doubtful if name.startswith(f"{key}.")]
            refused = [problem for problem in (check() if check else []) if not any(name in problem for name in unsure)]
            self.problems += [f"{key}.{problem}" for problem in refused]
        return classes, configs

    def _mix(self, values: dict[str, Any], classes: dict[str, type], configs: dict[str, Any]) -> None:
        """Replace the tasks and criteria of the parts by one task and one criterion."""
        for kind, target in MIXTURE.items():
            mixed = []
            for part in values["parts"]:
                key = f"parts.{part['name']}.{kind}"
                share = 1.0 if part["proportion"] is None else part["proportion"]
                mixed.append(Part(part["name"], classes.pop(key), configs.pop(key), part["weight"], share))
            classes[kind] = load_target(target)
            configs[kind] = classes[kind].Config(parts=mixed, mixing=values["mixing"])
            self.problems += configs[kind].problems()


def check_names(kind: str, names: list[str], pattern: str, allowed: str, problems: list[str]) -> None:
    """Add to ``problems`` names of parts or stages that are given twice, or that cannot be used in a key or as a folder
    name."""
    for name in dict.fromkeys(names):
        if not re.fullmatch(pattern, name):
            problems.append(f"{name!r} is no name of a {kind}; use {allowed}")
        if names.count(name) > 1:
            problems.append(f"two {kind}s are named {name!r}; rename one")
