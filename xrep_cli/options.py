"""The command line of xrep-train: three spellings of one option; --help shows every option of the chosen parts."""

from __future__ import annotations

import ast
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
    DEFAULT_NAMES,
    SECTIONS,
    TOP_LEVEL,
    FieldSpec,
    chosen_names,
    fields_of_sections,
    merge,
    part_target,
    plugins_of,
    read_yaml,
)
from xrep.registry import REGISTRIES, class_node, import_plugin, suggestion

SELECTORS = {section.replace("_", "-"): section for section in DEFAULT_NAMES}
FLAGS = ("help", "print-config")
FILES = ("config", "plugin")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*(?:\.[\w-]+)*)=(.*)", re.DOTALL)
"""``section.option=value`` (``./a=b`` and ``../a=b`` are paths)."""


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
        fields: every option of the chosen parts.
        names: section -> chosen part; None while none that is known is chosen.
        problems: what could not be understood, to be reported together with what the configuration finds.
        flags: the flags given (help, print-config).
    """

    layers: list[tuple[str, dict[str, Any]]]
    fields: list[FieldSpec]
    names: dict[str, str | None]
    problems: list[str] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)


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
    for _, layer in [*layers, ("", selected)]:
        merged = merge(merged, layer)
    chosen = chosen_names(merged)
    names = {section: name if name in REGISTRIES[section].names() else None for section, name in chosen.items()}
    line = CommandLine(layers, fields_of_sections(names), names)
    values = _Reader(line).read(argv, selected)
    if files["plugin"]:
        values["plugins"] = list(dict.fromkeys(plugins))
    merged = merge(merged, values)
    if names["task"] == "bitext" and not files["config"] and not merged.get("task", {}).get("data"):
        line.layers.append((str(demo_recipe()), read_yaml(demo_recipe())))
    line.layers.append(("command line", values))
    return line


def _first_look(argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The chosen parts, the YAML files and the plugins, which decide what other options there are."""
    selected: dict[str, Any] = {}
    files: dict[str, list[str]] = {name: [] for name in FILES}
    for position, token in enumerate(argv):
        name, equals, value = token.removeprefix("--").partition("=")
        name = "plugin" if name == "plugins" else name.removesuffix(".name")
        if token.startswith("--") and not equals:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            value = "" if following.startswith("--") else following
        elif not token.startswith("--") and not (equals and name in (*DEFAULT_NAMES, "plugin")):
            continue
        if name == "plugin":
            files[name] += [module for module in value.split(",") if module]
        elif name in FILES and value:
            files[name].append(value)
        elif name.replace("_", "-") in SELECTORS and value:
            selected[SELECTORS[name.replace("_", "-")]] = {"name": value}
    return selected, files


class _Reader:
    """Reads the options of a command line, given the fields of the chosen parts."""

    def __init__(self, line: CommandLine) -> None:
        self.line = line
        self.by_key = {spec.key: spec for spec in line.fields}
        self.by_name: dict[str, list[FieldSpec]] = {}
        for spec in line.fields:
            self.by_name.setdefault(spec.name, []).append(spec)

    def read(self, argv: Sequence[str], selected: dict[str, Any]) -> dict[str, Any]:
        self.values: dict[str, Any] = {section: dict(part) for section, part in selected.items()}
        rest = list(argv)
        while rest:
            token = rest.pop(0)
            if token in ("-h", "--help"):
                self.line.flags.add("help")
            elif token.startswith("--"):
                self._option(token[2:], rest)
            elif (assignment := ASSIGNMENT.fullmatch(token)) and not Path(token).exists():
                self._assign(*assignment.groups())
            elif "data" not in self.values.get("task", {}):
                self._set("task.data", token)
            else:
                self.line.problems.append(f"{token!r}: data is named twice")
        return self.values

    def _assign(self, key: str, value: str) -> None:
        """``section.option=value``; parts and plugins were read by the first look."""
        if key.removesuffix(".name") in DEFAULT_NAMES or key in ("plugin", "plugins"):
            return
        if "." in key or key in (*SECTIONS, *TOP_LEVEL):
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
        found = self._find(name)
        negated = self._find(name[3:]) if found is None and name.startswith("no-") else None
        if negated is not None and negated.annotation == "bool" and not equals:
            self._set(negated.key, "false")
            return
        if found is not None and found.annotation == "bool" and not equals:
            said = bool(rest) and rest[0].lower() in ("true", "false")
            self._set(found.key, rest.pop(0) if said else "true")
            return
        if not equals and (not rest or rest[0].startswith("--")):
            missing = True
        else:
            missing, value = False, value if equals else rest.pop(0)
        if found is None and name.replace("_", "-") not in SELECTORS and name not in FILES:
            self._refuse(name)
        elif missing:
            self.line.problems.append(f"--{name} needs a value")
        elif found is not None and found.key != "plugins":
            self._set(found.key, value)

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
        if None not in self.line.names.values():
            self.line.problems.append(f"{problem}; {cure}")

    def _find(self, name: str) -> FieldSpec | None:
        """The option of that name or key; None if there is none, or several."""
        key = name.replace("-", "_")
        specs = [self.by_key[key]] if key in self.by_key else self._named(name)
        return specs[0] if len(specs) == 1 else None

    def _named(self, name: str) -> list[FieldSpec]:
        return self.by_name.get(name.replace("-", "_"), [])

    def _set(self, key: str, value: str) -> None:
        section, _, name = key.rpartition(".")
        target = self.values.setdefault(section, {}) if section else self.values
        spec = self.by_key.get(key)
        if spec is not None and spec.annotation.startswith("list[") and name in target:
            target[name] = f"{target[name]},{value}"
        else:
            target[name] = value


def _nearest(name: str, known: list[str]) -> str:
    cure = suggestion(name, known)
    return cure if cure.startswith("did you mean") else "see --help for the options of the chosen parts"


def option_name(spec: FieldSpec) -> str:
    return "--" + spec.name.replace("_", "-")


HELP = """\
usage: xrep-train [DATA] --task NAME --criterion NAME [options] [section.option=value ...]

Train a cross-lingual sentence encoder.

  xrep-train --task bitext --criterion dual_moco                      the demo corpus and its recipe
  xrep-train corpus/ --task bitext --criterion dual_moco --save-dir run1 --max-steps 20000
  xrep-train --config examples/moco_bert/en-zh.yaml optimizer.lr=2e-5
  xrep-train ... --print-config                                       print the resolved configuration and stop

DATA is a directory made by xrep-preprocess, or of raw text: train.de-en.de and train.de-en.en, or train.de-en.tsv
(.gz too). The same command on the same --save-dir goes on where it stopped.
Every option has three spellings: --queue-size 1024, criterion.queue_size=1024, and criterion: {queue_size: 1024} in
the file given by --config; the command line wins.

choose parts (the options below are those of the chosen ones):
"""


def help_text(line: CommandLine) -> str:
    """Every option of the chosen parts with type, default and help."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    out = [HELP]
    for option, section in SELECTORS.items():
        known = ", ".join(REGISTRIES[section].names())
        out.append(_entry(f"--{option} NAME", f"{known} (chosen: {line.names[section] or 'none yet'})", width))
    out.append(_entry("--config FILE", "YAML file of options; several are merged, later ones win.", width))
    out.append(_entry("--plugin MODULE", "Import a Python module that registers further parts; repeatable.", width))
    out.append(_entry("--print-config", "Print the resolved configuration as YAML and stop.", width))
    section = None
    for spec in line.fields:
        if spec.section != section:
            section = spec.section
            out.append("\n" + textwrap.fill(_title(section, line.names.get(section)), width, subsequent_indent="  "))
        names = [other.name for other in line.fields].count(spec.name)
        shown = option_name(spec) if names == 1 else f"{spec.key}="
        default = "required" if spec.default is dataclasses.MISSING else f"default: {_show(spec.default)}"
        out.append(_entry(f"{shown} {_kind(spec.annotation)}", f"{spec.help} ({default})", width))
    return "\n".join(out)


def _title(section: str, name: str | None) -> str:
    if not section:
        return "run:"
    target = part_target(section, name)
    assert target is not None
    module, _, class_name = target.partition(":")
    node = class_node(module, class_name)
    summary = ((ast.get_docstring(node) if node is not None else None) or "").split("\n")[0]
    return f"{section}{' ' + name if name else ''}: {summary}"


def _kind(annotation: str) -> str:
    if annotation.startswith("Literal["):
        return "{" + ",".join(str(v) for v in ast.literal_eval(f"({annotation[8:-1]},)")) + "}"
    return annotation.replace(" | None", "").replace("list[str]", "A,B,...").replace("list[float]", "X,Y,...").upper()


def _show(default: Any) -> str:
    if isinstance(default, list):
        return ",".join(map(str, default)) or "none"
    return "none" if default is None else str(default)


def _entry(left: str, right: str, width: int) -> str:
    lines = textwrap.wrap(right, width - 34) or [""]
    head = f"  {left:<31} " if len(left) <= 31 else f"  {left}\n{'':34}"
    return head + f"\n{'':34}".join(lines)
