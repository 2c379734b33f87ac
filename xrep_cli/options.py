"""The command line of xrep-train: it has the options of the chosen parts, each in three spellings."""

from __future__ import annotations

import copy
import dataclasses
import importlib.resources
import itertools
import os
import re
import shutil
import textwrap
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xrep.config.course import COMMAND_LINE, stages_of
from xrep.config.fields import FieldSpec, choices, docstring, members
from xrep.config.sections import (
    DEFAULT_NAMES,
    FIXED_SECTIONS,
    SECTIONS,
    TOP_LEVEL,
    Section,
    expand,
    fields_of,
    merge,
    plugins_of,
    read_yaml,
    sections_of,
)
from xrep.errors import shortened, shown
from xrep.registry import REGISTRIES, import_plugin
from xrep_cli.suggestions import suggestion

SELECTORS = {section.replace("_", "-"): section for section in DEFAULT_NAMES}
FLAGS = ("help", "print-config", "version")
FILES = ("config", "plugin", "plugins")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\.[\w-]+)*)=(.*)", re.DOTALL)
"""``section.option=value`` (``./a=b`` and ``../a=b`` are paths)."""
OF_A_STAGE = re.compile(r"^stages\.\w+\.")
"""The beginning of the key of an option that is given to one stage alone."""
_VALIDATE_WITH = re.compile(r"(?:(?:stages\.(\w+)\.)?validation\.)?validate[_-]with")
"""The key of the option that chooses the validation ``several``, too, unless another is named."""
DEMO_RECIPE = Path(str(importlib.resources.files("xrep"))) / "recipes" / "demo.yaml"
"""The options of a run for which no data is named."""
METAVARS = {int: "INT", float: "FLOAT", bool: "BOOL", str: "STR", list[str]: "A,B,...", list[float]: "X,Y,..."}


@dataclass
class CommandLine:
    """A parsed command line."""

    layers: list[tuple[str, dict[str, Any]]]
    """(origin, nested values), from lowest to highest: the demo recipe or YAML files, then the command line."""
    stages: list[tuple[str, dict[str, Any]]]
    """Name and values of each stage; without stages those of the one run, whose name is empty."""
    fields: list[FieldSpec]
    """Every option of the chosen parts, once, whatever the number of stages that have it."""
    problems: list[str] = field(default_factory=list)
    """What could not be understood; it is reported together with the problems of the configuration."""
    flags: set[str] = field(default_factory=set)

    def sections(self) -> list[Section]:
        return [section for _, values in self.stages for section in sections_of(values)]

    def named(self, name: str) -> list[FieldSpec]:
        """Return the options of a name, which several parts may have."""
        return [spec for spec in self.fields if spec.name == name.replace("-", "_")]

    def spelling(self, spec: FieldSpec) -> str:
        """Return how an option is written: ``--queue-size``, or with its key if several parts have the name."""
        return self.option_names().get(spec.name, f"{spec.key}=")

    def option_names(self) -> dict[str, str]:
        """Map the name of each field to its option (``--queue-size``), without names that several parts have."""
        counts = Counter(spec.name for spec in self.fields)
        names = [*DEFAULT_NAMES, *(name for name, count in counts.items() if count == 1)]
        return {name: "--" + name.replace("_", "-") for name in names}


def parse(argv: Sequence[str]) -> CommandLine:
    """Split a command line into layers of configuration. Raises UserError if a YAML file or a plugin cannot be read."""
    selected, files = _first_look(argv)
    layers = [(path, read_yaml(path)) for path in files["config"]]
    plugins = [plugin for _, layer in layers for plugin in plugins_of(layer)] + files["plugin"]
    for plugin in plugins:
        import_plugin(plugin)
    merged: dict[str, Any] = {}
    for _, layer in layers:
        merged = merge(merged, layer)
    stages = stages_of(merged, selected)
    line = CommandLine(layers, stages, _fields_once([fields_of(values) for _, values in stages]))
    values = expand(_Reader(line, selected).read(argv))
    if files["plugin"]:
        values["plugins"] = list(dict.fromkeys(plugins))
    if not files["config"] and selected.get("task") == {"name": "bitext"} and not values["task"].get("data"):
        line.layers.append((str(DEMO_RECIPE), read_yaml(DEMO_RECIPE)))
    line.layers.append((COMMAND_LINE, values))
    return line


def _fields_once(runs: list[list[FieldSpec]]) -> list[FieldSpec]:
    """Return the options of several runs, each once, section by section, with the default of the first run that has
    it. Those of the run as a whole are last."""
    once = {spec.key: spec for fields in reversed(runs) for spec in reversed(fields)}
    places = list(dict.fromkeys(spec.section for fields in runs for spec in fields if spec.section))
    return sorted(reversed(once.values()), key=lambda spec: [*places, ""].index(spec.section))


def _words(argv: Sequence[str], is_flag: Callable[[str], bool]) -> Iterator[tuple[str, str, str | None]]:
    """Yield the form (option, assignment or data), the name and the value of each argument. The value of an option
    is behind ``=`` or the next argument, which a flag takes only if it is ``true`` or ``false``, or else None."""
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token.startswith("--") or token == "-h":
            name, equals, value = ("--help" if token == "-h" else token)[2:].partition("=")
            if equals:
                yield "option", name, value
            elif rest and (rest[0].lower() in ("true", "false") if is_flag(name) else not rest[0].startswith("--")):
                yield "option", name, rest.pop(0)
            else:
                yield "option", name, None
        elif token.startswith("-") and token != "-":
            yield "dash", token, None
        elif (assignment := ASSIGNMENT.fullmatch(token)) and not os.path.exists(token):
            yield "assignment", assignment[1], assignment[2]
        else:
            yield "data", token, None


def _first_look(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the chosen parts, the YAML files and the plugins, which decide what other options there are."""
    selected: dict[str, Any] = {}
    files: dict[str, list[str]] = {"config": [], "plugin": []}
    for form, name, value in _words(
        argv, lambda name: name not in FILES and not _selected_section(name) and not _VALIDATE_WITH.fullmatch(name)
    ):
        if not value:
            continue
        if name in ("plugin", "plugins"):
            files["plugin"] += [module for module in value.split(",") if module]
        elif name == "config" and form == "option":
            files["config"].append(value)
        elif path := _selected_section(name):
            _place(selected, [*path, "name"], value)
        elif match := _VALIDATE_WITH.fullmatch(name):
            run = selected.setdefault("stages", {}).setdefault(match[1], {}) if match[1] else selected
            run.setdefault("validation", {}).setdefault("name", "several")
    return selected, files


def _selected_section(key: str) -> list[str] | None:
    """Return the path of the section whose part a key chooses (``parts.nli.criterion.name``); None for other keys."""
    *above, section = key.removesuffix(".name").split(".")
    section = section.replace("-", "_")
    if section not in DEFAULT_NAMES or above and above[0] not in ("parts", "stages"):
        return None
    return [*above, section]


def _place(values: dict[str, Any], path: Sequence[str], value: Any) -> bool:
    """Set a nested value; return False if something on its path is not a mapping."""
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return False
    values[path[-1]] = value
    return True


class _Reader:
    """Reads the options of a command line, given the fields of the chosen parts."""

    def __init__(self, line: CommandLine, selected: dict[str, Any]) -> None:
        self.line = line
        self.values: dict[str, Any] = copy.deepcopy(selected)
        self.by_key = {spec.key: spec for spec in line.fields}
        self.all_chosen = all(section.is_chosen for section in line.sections())

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the values that the command line sets, as nested mappings of text."""
        for form, name, value in _words(argv, self._is_flag):
            if form == "option":
                self._option(name, value)
            elif form == "assignment":
                self._assign(name, value or "")
            elif form == "dash":
                self.line.problems.append(f"unknown option {shortened(name)}; options begin with --")
            else:
                self._data(name)
        return self.values

    def _option(self, name: str, value: str | None) -> None:
        key, kind = self._find(name)
        if name in FLAGS and value in (None, "true"):
            self.line.flags.add(name)
        elif name in FLAGS:
            self.line.problems.append(f"--{name} takes no value")
        elif kind is bool:
            self._set(key, "true" if value is None else value)
        elif value is None and self._is_flag(name):
            self._set(self._find(name.removeprefix("no-"))[0], "false")
        elif kind is None and _selected_section(name) is None and name not in FILES:
            known = [*(spec.name.replace("_", "-") for spec in self.line.fields), *SELECTORS, *FILES, *FLAGS]
            self._refuse("option", f"--{name}", [f"--{each}" for each in known])
        elif value is None or not value and name in FILES:
            self.line.problems.append(f"--{shortened(name)} needs a value")
        elif kind is not None and key != "plugins":
            self._set(key, value)

    def _assign(self, key: str, value: str) -> None:
        """Read ``section.option=value``; the first look has read those that choose a part or a plugin."""
        if "." in key and not _selected_section(key) or key in (*FIXED_SECTIONS, *TOP_LEVEL, "mixing"):
            self._set(key, value)
        elif not value and _selected_section(key):
            self.line.problems.append(f"{shortened(key)}= needs a value")
        elif not _selected_section(key) and key not in ("plugin", "plugins"):
            self._refuse("key", key, [*SECTIONS, *TOP_LEVEL, *self.by_key])

    def _data(self, token: str) -> None:
        keys = [spec.key for spec in self.line.named("data")] or ["task.data"]
        if len(keys) > 1:
            written = " or ".join(f"{key}={token}" for key in keys)
            self.line.problems.append(f"{shown(token)}: several tasks read data; write {written}")
        elif self._get(keys[0]) is not None:
            self.line.problems.append(f"{shown(token)}: data is given twice")
        else:
            self._set(keys[0], token)

    def _refuse(self, kind: str, name: str, known: list[str]) -> None:
        specs = self.line.named(name.removeprefix("--"))
        cure = suggestion(name, known) or "--help lists the options of the chosen parts"
        if specs:
            cure = "write " + " or ".join(f"{spec.key}=..." for spec in specs)
        if len(specs) > 1:
            self.line.problems.append(f"{name} is an option of several parts; {cure}")
        elif self.all_chosen:  # otherwise it may be an option of a part that is misspelt, which is reported
            self.line.problems.append(f"unknown {kind} {shortened(name)}; {cure}")

    def _find(self, name: str) -> tuple[str, Any]:
        """Return the key and the type of the option of a name or key; the type is None if there is none, or several."""
        key = name.replace("-", "_")
        spec = self.by_key.get(OF_A_STAGE.sub("", key, count=1))
        if spec is None and len(specs := self.line.named(name)) == 1:
            key, spec = specs[0].key, specs[0]
        return key, spec and spec.annotation

    def _is_flag(self, name: str) -> bool:
        kinds = [self._find(each)[1] for each in (name, name.removeprefix("no-"))]
        return name in FLAGS or kinds[0] is bool or kinds == [None, bool]

    def _get(self, key: str) -> Any:
        values: Any = self.values
        for name in key.split("."):
            values = values.get(name) if isinstance(values, dict) else None
        return values

    def _set(self, key: str, value: str) -> None:
        path = key.split(".")
        if typing.get_origin(self._find(key)[1]) is list and (given := self._get(key)) is not None:
            value = f"{given},{value}"
        if not _place(self.values, path, value):
            self.line.problems.append(
                f"{shortened(f'{key}={value}')}: {path[0]} already has a value, which is no mapping"
            )


HELP = """\
usage: xrep-train [DATA] --task NAME --criterion NAME [options] [section.option=value ...]

Train a cross-lingual sentence encoder, or a translator.

  xrep-train --task bitext --criterion dual_moco                      trains on the demo corpus with its recipe
  xrep-train corpus/ --task bitext --criterion dual_moco --save-dir run1 --max-steps 20000
  xrep-train corpus/ --task translation --criterion label_smoothed_cross_entropy --encoder run2/best --save-dir nmt
  xrep-train --config examples/moco_bert/en-zh.yaml optimizer.lr=2e-5
  xrep-train ... --print-config                                       prints the resolved configuration and stops

DATA is a directory made by xrep-preprocess, or a directory of raw text with the files train.de-en.de and
train.de-en.en, or train.de-en.tsv (also .tmx, .jsonl and so on). The same command with the same --save-dir resumes a
run that was stopped.
Every option can be given in three ways: --queue-size 1024, criterion.queue_size=1024, or criterion: {queue_size: 1024}
in the file given by --config. The command line overrides the file.

Parts to choose (the options below are those of the chosen parts):
"""


def help_text(line: CommandLine) -> str:
    """Return the help: every option of the chosen parts with its type, default and help."""
    width = max(60, min(shutil.get_terminal_size((120, 24)).columns, 120))
    out = [HELP]
    chosen = line.sections()
    for option, kind in SELECTORS.items():
        known = ", ".join(REGISTRIES[kind].names())
        names = dict.fromkeys(section.name or "none yet" for section in chosen if section.kind == kind)
        out.append(_entry(f"--{option} NAME", f"{known} (chosen: {', '.join(names)})", width))
    general = {
        "--config FILE": "YAML file of options. If several are given, later ones override earlier ones.",
        "--plugin MODULE": "Import a Python module that registers further parts. Can be given several times.",
        "--print-config": "Print the resolved configuration as YAML and stop.",
        "--version": "Print the version of xrep and stop.",
    }
    if line.stages[0][0]:
        names = ", ".join(name for name, _ in line.stages)
        general["stages.NAME.KEY=VALUE"] = f"Set an option of one stage only. The stages are {names}."
    out += [_entry(option, text, width) for option, text in general.items()]
    for key, specs in itertools.groupby(line.fields, lambda spec: spec.section):
        out += ["\n" + textwrap.fill(title, width, subsequent_indent="  ") for title in _titles(line, key)]
        for spec in specs:
            default = "required" if spec.default is dataclasses.MISSING else f"default: {_show(spec.default)}"
            option = f"{line.spelling(spec)} {_metavar(spec.annotation)}"
            out.append(_entry(option, f"{spec.help} ({default})", width))
    return "\n".join(out)


def _titles(line: CommandLine, key: str) -> list[str]:
    """Return what is chosen in a section, with the stages that choose it where they differ."""
    stages: dict[str, list[str]] = {}
    targets: dict[str, str] = {}
    for stage, values in line.stages:
        for section in sections_of(values):
            if section.key == key and section.is_chosen:
                stages.setdefault(section.name or "", []).append(stage)
                targets[section.name or ""] = section.target
    titles = []
    for name, choosing in stages.items():
        where = "" if len(choosing) == len(line.stages) else f" (stage {', '.join(choosing)})"
        summary = docstring(targets[name]).partition("\n")[0]
        titles.append(f"{key or 'run'} {name}".rstrip() + f"{where}: {summary}")
    return titles


def _metavar(annotation: Any) -> str:
    allowed = choices(annotation)
    if allowed:
        return "{" + ",".join(map(str, allowed)) + "}"
    return next((METAVARS[member] for member in members(annotation) if member in METAVARS), "VALUE")


def _show(default: Any) -> str:
    if isinstance(default, list):
        return ",".join(map(str, default)) or "none"
    return "none" if default is None else str(default)


def _entry(left: str, right: str, width: int) -> str:
    lines = textwrap.wrap(right, width - 34) or [""]
    head = f"  {left:<31} " if len(left) <= 31 else f"  {left}\n{'':34}"
    return head + f"\n{'':34}".join(lines)
