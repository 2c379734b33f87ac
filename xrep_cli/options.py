"""The command line of xrep-train: three spellings of one option; --help shows every option of the chosen parts."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib.util
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xrep.config import (
    COMMAND_LINE,
    DEFAULT_NAMES,
    MIXING,
    SECTIONS,
    TOP_LEVEL,
    FieldSpec,
    Section,
    expand,
    fields_of,
    merge,
    plugins_of,
    read_yaml,
    sections_of,
    stages_of,
)
from xrep.registry import REGISTRIES, class_node, import_plugin, suggestion

SELECTORS = {section.replace("_", "-"): section for section in DEFAULT_NAMES}
FLAGS = ("help", "print-config", "version")
FILES = ("config", "plugin")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\.[\w-]+)*)=(.*)", re.DOTALL)
"""``section.option=value`` (``./a=b`` and ``../a=b`` are paths)."""
OF_A_STAGE = re.compile(r"^stages\.\w+\.")
"""What stands before the key of an option that is given to one stage alone."""


def demo_recipe() -> Path:
    """The recipe that applies when no data is named."""
    spec = importlib.util.find_spec("xrep")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "recipes" / "demo.yaml"


@dataclass
class CommandLine:
    """A parsed command line.

    Attributes:
        layers: (origin, nested values), lowest first: the demo recipe or YAML files, then the command line.
        stages: name and values of each stage; without stages those of the one run, whose name is empty.
        fields: every option of the chosen parts, once, whatever the number of stages that have it.
        problems: what could not be understood, to be reported together with what the configuration finds.
        flags: the flags given, of FLAGS.
    """

    layers: list[tuple[str, dict[str, Any]]]
    stages: list[tuple[str, dict[str, Any]]]
    fields: list[FieldSpec]
    problems: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)

    def sections(self) -> list[Section]:
        return [section for _, values in self.stages for section in sections_of(values)]


def parse(argv: Sequence[str]) -> CommandLine:
    """Split a command line into layers of configuration.

    Raises:
        UserError: a YAML file or a plugin cannot be read.
    """
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
    values = expand(_Reader(line).read(argv, selected))
    if files["plugin"]:
        values["plugins"] = list(dict.fromkeys(plugins))
    if not files["config"] and _wants_the_demo(line, values):
        line.layers.append((str(demo_recipe()), read_yaml(demo_recipe())))
    line.layers.append((COMMAND_LINE, values))
    return line


def _fields_once(runs: list[list[FieldSpec]]) -> list[FieldSpec]:
    """The options of several runs, each once, section by section; the first run that has one tells its default."""
    sections: dict[str, dict[str, FieldSpec]] = {}
    for spec in (spec for fields in runs for spec in fields):
        sections.setdefault(spec.section, {}).setdefault(spec.name, spec)
    sections[""] = sections.pop("")  # last
    return [spec for fields in sections.values() for spec in fields.values()]


def _wants_the_demo(line: CommandLine, values: dict[str, Any]) -> bool:
    task = next(section for section in line.sections() if section.kind == "task")
    return task.name == "bitext" and not values["task"].get("data")


def _first_look(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The chosen parts, the YAML files and the plugins, which decide what other options there are."""
    selected: dict[str, Any] = {}
    files: dict[str, list[str]] = {name: [] for name in FILES}
    for position, token in enumerate(argv):
        name, equals, value = token.removeprefix("--").partition("=")
        name = "plugin" if name == "plugins" else name
        if token.startswith("--") and not equals:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            value = "" if following.startswith("--") else following
        elif not token.startswith("--") and not (equals and (name == "plugin" or _selected_section(name))):
            continue
        if name == "plugin":
            files[name] += [module for module in value.split(",") if module]
        elif name in FILES and value:
            files[name].append(value)
        elif (path := _selected_section(name)) and value:
            _place(selected, [*path, "name"], value)
    return selected, files


def _selected_section(key: str) -> list[str] | None:
    """Path of the section whose part a key chooses (``criterion``, ``parts.nli.criterion.name``); None for others."""
    *above, section = key.removesuffix(".name").split(".")
    section = section.replace("-", "_")
    if section not in DEFAULT_NAMES or above and above[0] not in ("parts", "stages"):
        return None
    return [*above, section]


def _place(values: dict[str, Any], path: Sequence[str], value: Any) -> bool:
    """Set a nested value; False if something on its way is no mapping."""
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return False
    values[path[-1]] = value
    return True


class _Reader:
    """Reads the options of a command line, given the fields of the chosen parts."""

    def __init__(self, line: CommandLine) -> None:
        self.line = line
        self.by_key = {spec.key: spec for spec in line.fields}
        self.by_name: dict[str, list[FieldSpec]] = {}
        for spec in line.fields:
            self.by_name.setdefault(spec.name, []).append(spec)
        self.all_chosen = all(section.is_chosen for section in line.sections())

    def read(self, argv: Sequence[str], selected: dict[str, Any]) -> dict[str, Any]:
        self.values: dict[str, Any] = copy.deepcopy(selected)
        self.data: str | None = None
        rest = list(argv)
        while rest:
            token = rest.pop(0)
            if token in ("-h", "--help"):
                self.line.flags.add("help")
            elif token.startswith("--"):
                self._option(token[2:], rest)
            elif (assignment := ASSIGNMENT.fullmatch(token)) and not Path(token).exists():
                self._assign(*assignment.groups())
            else:
                self._data(token)
        return self.values

    def _data(self, token: str) -> None:
        """An argument that is no option: what the task reads."""
        keys = [spec.key for spec in self._named("data")] or ["task.data"]
        if len(keys) > 1:
            written = " or ".join(f"{key}={token}" for key in keys)
            self.line.problems.append(f"{token!r}: several tasks read data; write {written}")
        elif self._get(keys[0]) is not None:
            self.line.problems.append(f"{token!r}: data is named twice")
        else:
            self._set(keys[0], token)

    def _get(self, key: str) -> Any:
        """The value that a key has so far; None if none."""
        values: Any = self.values
        for name in key.split("."):
            values = values.get(name) if isinstance(values, dict) else None
        return values

    def _assign(self, key: str, value: str) -> None:
        """``section.option=value``; parts and plugins were read by the first look."""
        if _selected_section(key) or key in ("plugin", "plugins"):
            return
        if "." in key or key in (*SECTIONS, *TOP_LEVEL, *MIXING):
            self._set(key, value)
            return
        keys = [spec.key for spec in self._named(key)]
        known = [*SECTIONS, *TOP_LEVEL, *self.by_key]
        self._unknown(f"unknown key {key}", f"write {' or '.join(keys)}=..." if keys else _nearest(key, known))

    def _option(self, text: str, rest: list[str]) -> None:
        name, equals, value = text.partition("=")
        if name in FLAGS:
            self.line.flags.add(name)
            return
        key = self._key(name)
        kind = self._annotation(key)
        if kind is None and name.startswith("no-") and not equals:
            negated = self._key(name[3:])
            if self._annotation(negated) == "bool":
                self._set(negated, "false")
                return
        if kind == "bool" and not equals:
            said = bool(rest) and rest[0].lower() in ("true", "false")
            self._set(key, rest.pop(0) if said else "true")
            return
        missing = not equals and (not rest or rest[0].startswith("--"))
        if not equals and not missing:
            value = rest.pop(0)
        if kind is None and _selected_section(name) is None and name not in FILES:
            self._refuse(name)
        elif missing:
            self.line.problems.append(f"--{name} needs a value")
        elif kind is not None and key != "plugins":
            self._set(key, value)

    def _refuse(self, name: str) -> None:
        keys = [spec.key for spec in self._named(name)]
        if keys:
            cure = f"write {' or '.join(f'{key}=...' for key in keys)}"
            self.line.problems.append(f"--{name} is an option of several parts; {cure}")
            return
        known = [option_name(spec) for spec in self.line.fields] + [f"--{s}" for s in (*SELECTORS, *FILES, *FLAGS)]
        self._unknown(f"unknown option --{name}", _nearest(f"--{name}", known))

    def _unknown(self, problem: str, cure: str) -> None:
        # While a part is not chosen, or misspelt, the option may be one of its own; that is reported first.
        if self.all_chosen:
            self.line.problems.append(f"{problem}; {cure}")

    def _key(self, name: str) -> str:
        """The key that an option's name stands for: itself, or that of the only option of that name."""
        key = name.replace("-", "_")
        specs = self._named(name)
        return specs[0].key if key not in self.by_key and len(specs) == 1 else key

    def _annotation(self, key: str) -> str | None:
        """Type of the option of that key, which may be that of one stage; None if there is none."""
        spec = self.by_key.get(OF_A_STAGE.sub("", key, count=1))
        return None if spec is None else spec.annotation

    def _named(self, name: str) -> list[FieldSpec]:
        return self.by_name.get(name.replace("-", "_"), [])

    def _set(self, key: str, value: str) -> None:
        kind = self._annotation(key)
        path = key.split(".")
        if kind is not None and kind.startswith("list[") and (given := self._get(key)) is not None:
            value = f"{given},{value}"
        if not _place(self.values, path, value):
            self.line.problems.append(f"{key}={value}: {path[0]} holds a value already, not options")


def _nearest(name: str, known: list[str]) -> str:
    cure = suggestion(name, known)
    return cure if cure.startswith("did you mean") else "see --help for the options of the chosen parts"


def option_name(spec: FieldSpec) -> str:
    return "--" + spec.name.replace("_", "-")


HELP = """\
usage: xrep-train [DATA] --task NAME --criterion NAME [options] [section.option=value ...]

Train a cross-lingual sentence encoder, or a translator.

  xrep-train --task bitext --criterion dual_moco                      the demo corpus and its recipe
  xrep-train corpus/ --task bitext --criterion dual_moco --save-dir run1 --max-steps 20000
  xrep-train corpus/ --task translation --criterion label_smoothed_cross_entropy --encoder run2/best --save-dir nmt
  xrep-train --config examples/moco_bert/en-zh.yaml optimizer.lr=2e-5
  xrep-train ... --print-config                                       print the resolved configuration and stop

DATA is a directory made by xrep-preprocess, or of raw text: train.de-en.de and train.de-en.en, or train.de-en.tsv
(.gz and .xz too). The same command on the same --save-dir goes on where it stopped.
Every option has three spellings: --queue-size 1024, criterion.queue_size=1024, and criterion: {queue_size: 1024} in
the file given by --config; the command line wins.

choose parts (the options below are those of the chosen ones):
"""


def help_text(line: CommandLine) -> str:
    """Every option of the chosen parts with type, default and help."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    out = [HELP]
    chosen = line.sections()
    for option, kind in SELECTORS.items():
        known = ", ".join(REGISTRIES[kind].names())
        names = dict.fromkeys(section.name or "none yet" for section in chosen if section.kind == kind)
        out.append(_entry(f"--{option} NAME", f"{known} (chosen: {', '.join(names)})", width))
    out.append(_entry("--config FILE", "YAML file of options; several are merged, later ones win.", width))
    out.append(_entry("--plugin MODULE", "Import a Python module that registers further parts; repeatable.", width))
    out.append(_entry("--print-config", "Print the resolved configuration as YAML and stop.", width))
    out.append(_entry("--version", "Print the version of xrep and stop.", width))
    if line.stages[0][0]:
        out.append(_entry("stages.NAME.KEY=VALUE", f"For one stage: {', '.join(n for n, _ in line.stages)}.", width))
    titles = _titles(line)
    section = None
    for spec in line.fields:
        if spec.section != section:
            section = spec.section
            for title in titles.get(section) or [f"{section or 'run'}:"]:
                out.append("\n" + textwrap.fill(title, width, subsequent_indent="  "))
        shown = option_name(spec) if len([o for o in line.fields if o.name == spec.name]) == 1 else f"{spec.key}="
        default = "required" if spec.default is dataclasses.MISSING else f"default: {_show(spec.default)}"
        out.append(_entry(f"{shown} {_kind(spec.annotation)}", f"{spec.help} ({default})", width))
    return "\n".join(out)


def _titles(line: CommandLine) -> dict[str, list[str]]:
    """Section -> what is chosen there, with the stages that choose it where they differ."""
    chosen: dict[str, dict[str, tuple[Section, list[str]]]] = {}
    for stage, values in line.stages:
        for section in sections_of(values):
            if section.is_chosen:
                name = section.name or ""
                chosen.setdefault(section.key, {}).setdefault(name, (section, []))[1].append(stage)
    titles: dict[str, list[str]] = {}
    for key, named in chosen.items():
        for section, stages in named.values():
            where = "" if len(stages) == len(line.stages) else f" (stage {', '.join(stages)})"
            titles.setdefault(key, []).append(_title(section, where))
    return titles


def _title(section: Section, where: str) -> str:
    module, _, class_name = section.target.partition(":")
    node = class_node(module, class_name)
    summary = ((ast.get_docstring(node) if node is not None else None) or "").split("\n")[0]
    return f"{section.key}{' ' + section.name if section.name else ''}{where}: {summary}"


def _kind(annotation: str) -> str:
    annotation = annotation.replace(" | None", "")
    if annotation.startswith("Literal["):
        return "{" + ",".join(str(v) for v in ast.literal_eval(f"({annotation[8:-1]},)")) + "}"
    return annotation.replace("list[str]", "A,B,...").replace("list[float]", "X,Y,...").upper()


def _show(default: Any) -> str:
    if isinstance(default, list):
        return ",".join(map(str, default)) or "none"
    return "none" if default is None else str(default)


def _entry(left: str, right: str, width: int) -> str:
    lines = textwrap.wrap(right, width - 34) or [""]
    head = f"  {left:<31} " if len(left) <= 31 else f"  {left}\n{'':34}"
    return head + f"\n{'':34}".join(lines)
