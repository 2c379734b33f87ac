"""The command line of xrep-train: it has the options of the chosen parts, each in three spellings."""

from __future__ import annotations

import os
import re
import typing
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass
from inspect import cleandoc
from textwrap import dedent
from typing import Any

from xrep.config.fields import FieldSpec, choices, members
from xrep.config.recipes import RECIPES, read_recipe
from xrep.config.resolve import COMMAND_LINE, merged_layers, plugins_of, stages_of
from xrep.config.sections import SECTIONS, TOP_LEVEL, fields_of, sections_of
from xrep.config.values import CHOICES, LISTS, Layer, flat
from xrep.registry import REGISTRIES, import_plugin, nearest
from xrep_cli.command import VERSION, Parser, command_parser

ASSIGNMENT = re.compile(rf"({'|'.join([*SECTIONS, *TOP_LEVEL, *LISTS, 'mixing'])})(\.[\w-]+)*=")
"""The beginning of ``section.option=value``."""
DEMO_RECIPE = "demo"
"""The recipe of a run for which no data is named."""
METAVARS = {int: "INT", float: "FLOAT", bool: "BOOL", str: "STR", list[str]: "A,B,...", list[float]: "X,Y,..."}
USAGE = "xrep-train [DATA] --task NAME --criterion NAME [options] [section.option=value ...]"
DESCRIPTION = """\
Train a cross-lingual sentence encoder, a translator or a classifier.

  # Train on pairs of sentences of your own
  xrep-train corpus/ --task bitext --criterion dual_moco --save-dir run1 --max-steps 20000
  # Train by the recipe of a paper (xrep recipes lists them) with another learning rate
  xrep-train --config moco_bert/en-zh optimizer.lr=2e-5
  # Train a translator that starts from an encoder
  xrep-train corpus/ --task translation --criterion label_smoothed_cross_entropy --encoder run1/best --save-dir nmt

Without DATA, --task bitext trains on the demo corpus. --print-config prints the resolved configuration and stops.

DATA is a directory made by xrep-preprocess, or a directory of raw text with the files train.de-en.de and
train.de-en.en, or train.de-en.tsv (also .tmx, .jsonl and so on). The same command with the same --save-dir resumes a
run that was stopped.
Every option can be given in three ways: --queue-size 1024, criterion.queue_size=1024, or criterion: {queue_size: 1024}
in a YAML file given by --config. The command line overrides the file."""


@dataclass
class CommandLine:
    """A parsed command line."""

    layers: list[tuple[str, Layer]]
    """(origin, values), from lowest to highest: the demo recipe or YAML files, then the command line."""
    fields: list[FieldSpec]
    """Every option of the chosen parts, once, whatever the number of stages that have it."""
    problems: list[str]
    """What could not be understood; it is reported together with the problems of the configuration."""
    print_config: bool

    def option_names(self) -> dict[str, str]:
        """Map the name of each field to its option (``--queue-size``), without names that several parts have."""
        return {name: _dashed(name) for name in [*CHOICES, *unique_names(self.fields)]}


def parse(argv: Sequence[str]) -> CommandLine:
    """Read a command line. Options of parts are read last, when it is known what parts there are. ``--help`` prints the
    help of the chosen parts and exits.

    Raises:
        UserError: an option lacks its value, or a YAML file or a plugin cannot be read.
    """
    first = Parser("xrep-train", add_help=False, allow_abbrev=False)
    first.add_argument("--version", action="version", version=VERSION)
    first.add_argument("--config", action="append", default=[])
    first.add_argument("--plugin", "--plugins", action="append", default=[], dest="plugins")
    files, words = first.parse_known_args([_as_option(word) for word in argv])
    layers = [(name, read_recipe(name)) for name in files.config]
    values, _ = merged_layers(layers)
    plugins = plugins_of(values, {"plugins": ",".join(files.plugins)})
    for plugin in plugins:
        import_plugin(plugin)

    lists = [(key, names) for key, names in values.items() if key.split(".")[-1] in LISTS and isinstance(names, list)]
    selectors = Parser("xrep-train", add_help=False, allow_abbrev=False)
    for place in ("", *(f"{key}.{name}." for key, names in lists for name in names)):
        for kind in CHOICES:
            flags = [_dashed(kind)] if not place else [f"--{place}{kind}"]
            selectors.add_argument(*flags, f"--{place}{kind}.name", dest=f"{place}{kind}.name", default=SUPPRESS)
        several = f"{place}validation.validate_with"  # it chooses a part, too
        flags = ["--validate-with"] if not place else []
        selectors.add_argument(*flags, f"--{several}", dest=several, action="append", default=SUPPRESS)
    selected, words = selectors.parse_known_args(words)
    chosen = flat(_joined(vars(selected)))

    stages = stages_of(values, chosen)
    fields = list({spec.key: spec for _, run in reversed(stages) for spec in reversed(fields_of(run))}.values())[::-1]
    parser = train_parser(fields, stages)
    flags = {name for action in parser._actions for name in action.option_strings if action.metavar == "BOOL"}
    parsed, others = parser.parse_known_args(_with_values(words, flags))
    command = {**chosen, **_joined(vars(parsed))}
    print_config = bool(command.pop("print_config", False))
    if files.plugins:
        command["plugins"] = plugins
    line = CommandLine(layers, fields, [], print_config)
    if unknown := [word for word in others if re.match(r"-.|[A-Za-z_][\w.]*=", word) and not _is_data(word)]:
        if all(section.options for _, run in stages for section in sections_of(run)):  # otherwise that is reported
            line.problems += [_unknown(word.partition("=")[0], fields, parser.options()) for word in unknown]
        others = [word for word in others if word not in unknown and _is_data(word)][:1]  # others are values
    line.problems += _read_data(others, [spec.key for spec in fields if spec.name == "data"], command)
    if not layers and command.get("task.name") == "bitext" and not command.get("task.data"):
        line.layers.append((DEMO_RECIPE, read_recipe(RECIPES / f"{DEMO_RECIPE}.yaml")))
    line.layers.append((COMMAND_LINE, command))
    return line


def train_parser(fields: Sequence[FieldSpec], stages: Sequence[tuple[str, Layer]]) -> Parser:
    """Return a parser of the options of the parts that the stages choose."""
    parser = command_parser("xrep-train", DESCRIPTION)
    parser.usage, parser.allow_abbrev = USAGE, False
    config = "A recipe, by its name (xrep recipes), or a YAML file. Of several, later ones override earlier ones."
    parser.add_argument("--config", metavar="RECIPE", default=SUPPRESS, help=config)
    plugin = "Import a Python module that registers further parts. Can be given several times."
    parser.add_argument("--plugin", metavar="MODULE", default=SUPPRESS, help=plugin)
    printing = "Print the resolved configuration as YAML and stop."
    parser.add_argument("--print-config", action="store_true", default=SUPPRESS, help=printing)
    sections = [(stage, section) for stage, values in stages for section in sections_of(values)]
    group = parser.add_argument_group("parts to choose", "The options below are those of the chosen parts.")
    for kind in CHOICES:
        names = dict.fromkeys(section.name or "none yet" for _, section in sections if section.kind == kind)
        text = f"{', '.join(REGISTRIES[kind].names())} (chosen: {', '.join(names)})"
        group.add_argument(_dashed(kind), metavar="NAME", default=SUPPRESS, help=text)
    groups = {}
    for key in dict.fromkeys(section.key for _, section in sections if section.cls):
        classes = {section.name: section.cls for _, section in sections if section.key == key and section.cls}
        summaries = [_summary(cls) for cls in classes.values()]
        title = f"{key or 'run'} {', '.join(filter(None, classes))}".strip()
        groups[key] = parser.add_argument_group(title, "\n".join(summaries))
    unique, names = unique_names(fields), [name for name, _ in stages if name]
    for spec in fields:
        _add(groups[spec.section], spec, spec.name in unique, names)
    return parser


def _summary(cls: type) -> str:
    """Return the first line of the docstring of a part, and when to use it."""
    doc = cleandoc(cls.__doc__ or "")
    use = re.search(r"^Use:\n((?: .*\n?)+)", doc, re.MULTILINE)
    return "\n\n".join([doc.partition("\n")[0], *([dedent(use[1]).strip()] if use else [])])


def _add(group: Any, spec: FieldSpec, is_unique: bool, stages: Iterable[str]) -> None:
    """Add an option under its name, or its key if several parts have the name; its other spellings are not shown."""
    allowed = choices(spec.annotation)
    metavar = next((METAVARS[member] for member in members(spec.annotation) if member in METAVARS), "VALUE")
    how: dict[str, Any] = {"dest": spec.key, "default": SUPPRESS, "action": "store"}
    how["metavar"] = "{" + ",".join(map(str, allowed)) + "}" if allowed else metavar
    if typing.get_origin(members(spec.annotation)[0]) is list:
        how["action"] = "append"
    shown = _dashed(spec.name) if is_unique else f"--{spec.key}"
    default = ",".join(map(str, spec.default)) if isinstance(spec.default, list) else str(spec.default)
    default = "required" if spec.default is MISSING else f"default: {default.replace('None', 'none') or 'none'}"
    group.add_argument(shown, **how, help=f"{spec.help} ({default})".replace("%", "%%"))
    keys = {f"--{spec.key}"} - {shown} if "." in spec.key else set()
    for name in (*keys, *(f"--stages.{stage}.{spec.key}" for stage in stages)):
        key = name.removeprefix("--") if name.startswith("--stages.") else spec.key
        group.add_argument(name, **{**how, "dest": key}, help=SUPPRESS)
    if how["metavar"] == "BOOL":
        no = shown.replace("--", "--no-", 1)
        group.add_argument(no, dest=spec.key, default=SUPPRESS, action="store_const", const="false", help=SUPPRESS)


def unique_names(fields: Sequence[FieldSpec]) -> list[str]:
    """Return the names of fields that one part alone has."""
    taken = Counter([*(spec.name for spec in fields), *CHOICES, "config", "plugin", "print_config", "version", "help"])
    return [spec.name for spec in fields if taken[spec.name] == 1]


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _as_option(word: str) -> str:
    """Return ``section.option=value`` as an option ``--section.option=value``; options have - in names, keys have _."""
    if ASSIGNMENT.match(word) and not os.path.exists(word):
        word = f"--{word}"
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return "--" + (name.replace("-", "_") if "." in name else name.replace("_", "-")) + equals + value


def _with_values(words: Sequence[str], flags: set[str]) -> list[str]:
    """Give each flag its value: ``--pack`` is ``--pack=true``, and ``--pack false`` is ``--pack=false``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in flags and word.lower() in ("true", "false"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return [f"{word}=true" if word in flags else word for word in joined]


def _joined(values: dict[str, Any]) -> Layer:
    """Return the values with a list of ``a,b`` and ``c`` as ``a,b,c``."""
    return {key: ",".join(value) if isinstance(value, list) else value for key, value in values.items()}


def _unknown(name: str, fields: Sequence[FieldSpec], known: list[str]) -> str:
    """Return the problem of an option that there is not."""
    same = [f"{spec.key}=..." for spec in fields if _dashed(spec.name) == f"--{name.strip('-')}"]
    if len(same) > 1:
        return f"{name} is an option of several parts; write {' or '.join(same)}"
    cure = f"write {same[0]}" if same else nearest(name, known) or "--help lists the options of the chosen parts"
    return f"unknown option {name}; {cure}"


def _is_data(word: str) -> bool:
    """Return whether a word is the name of a file or folder, or ``de=FILE,en=FILE`` with one that is there."""
    return any(map(os.path.exists, (word, re.sub(r"[A-Za-z]{2,3}=([^,]*).*", r"\1", word))))


def _read_data(words: Sequence[str], keys: Sequence[str], command: Layer) -> list[str]:
    """Set what names data, an argument without an option, and return the problems."""
    problems = []
    for word in words:
        if len(keys) > 1:
            written = " or ".join(f"{key}={word}" for key in keys)
            problems.append(f"{word!r}: several tasks read data; write {written}")
        elif command.setdefault(keys[0] if keys else "task.data", word) is not word:
            problems.append(f"{word!r}: data is given twice")
    return problems
