"""Turns layers of values into runs: converts and checks the options of every section."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xrep.config.fields import convert
from xrep.config.sections import OF_A_PART, SECTIONS, Mixing, Section, fields_of, sections_of
from xrep.config.sizes import with_size
from xrep.config.values import CHOICES, LISTS, Layer, flat, over, strip, to_yaml
from xrep.errors import ConfigError, shown
from xrep.registry import MIXTURE, REGISTRIES, import_plugin, load_target, nearest, suggestion

COMMAND_LINE = "command line"
"""Name of the layer that overrides the stages; stages override all other layers."""
PREVIOUS = "previous"


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


@dataclass(kw_only=True)
class Parts:
    """The parts of a mixture: the options of its task, and those of its criterion."""

    parts: list[Part]
    mixing: Mixing
    """weight: each batch has all parts. proportion: each batch has one part."""


@dataclass(frozen=True)
class RunConfig:
    """A resolved configuration, in which every option has a value. Its attributes follow from ``values``."""

    values: Layer
    """All options by their keys."""
    stage: str = ""
    """Name of the stage in a course of training; empty for a single run."""

    @cached_property
    def classes(self) -> dict[str, type]:
        """Maps each section to the class of the chosen part. Several parts have the classes of ``MIXTURE``."""
        classes = {section.key: section.cls for section in self._sections.values() if section.key in SECTIONS}
        return classes | {kind: load_target(target) for kind, target in self._mixture.items()}

    @cached_property
    def configs(self) -> dict[str, Any]:
        """Maps each section to the options of the chosen part, an instance of its ``Config`` dataclass."""
        configs: dict[str, Any] = {}
        for key, section in self._sections.items():
            configs[key] = section.options(**{spec.name: self.values[spec.key] for spec in section.fields()})
        chosen = {key: config for key, config in configs.items() if key in SECTIONS}
        for kind in self._mixture:
            parts = []
            for name in self.values["parts"]:
                options, key = configs[f"parts.{name}"], f"parts.{name}.{kind}"
                part = Part(name, self._sections[key].cls, configs[key], options.weight, options.proportion or 1.0)
                parts.append(part)
            chosen[kind] = self.classes[kind].Config(parts=parts, mixing=self.values["mixing"])
        return chosen

    @cached_property
    def _sections(self) -> dict[str, Section]:
        return {section.key: section for section in sections_of(self.values)}

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
    def directory(self) -> Path:
        """The directory for the files of the run."""
        return Path(self.values["checkpoint.save_dir"] or f"runs/{self.label}")

    @property
    def label(self) -> str:
        """A short name for messages and folders: task and criterion, or the names of the parts."""
        names = self.values.get("parts")
        return "+".join(names) if names else f"{self.values['task.name']}-{self.values['criterion.name']}"

    @property
    def data(self) -> list[str]:
        """The data that the run's tasks name."""
        keys = [f"{section.key}.data" for section in self._sections.values() if section.kind == "task"]
        return list(dict.fromkeys(self.values[key] for key in keys if self.values.get(key)))

    def to_yaml(self) -> str:
        return to_yaml(self.values)


# -- from layers to runs ----------------------------------------------------------------------------------------------

Layers = Sequence[tuple[str, Layer]]


def runs_of(layers: Layers, problems: Sequence[str] = ()) -> list[RunConfig]:
    """Resolve layers of values, given from lowest to highest, each with the name that messages use for it.

    The values of a stage are those of all layers, overridden by the stage's own; the command line overrides both. Each
    stage trains in SAVE_DIR/NAME and starts from ``best`` of the previous stage, unless its ``init`` is something else:
    a checkpoint directory, ``previous/last``, or ``none`` for a fresh start. The top-level ``init`` is that of the
    first stage.

    Args:
        problems: Problems found earlier, which are reported together with those of the layers.

    Returns:
        One run per stage; without stages one run, whose ``stage`` is empty.

    Raises:
        ConfigError: lists every problem of every stage: unknown sections, parts and keys, values of the wrong type,
            values that the parts themselves refuse.
    """
    values, command = merged_layers(layers)
    for plugin in plugins_of(values, command):
        import_plugin(plugin)
    found, stages = [*problems], stages_of(values, command)
    for key in {**values, **command}:
        if key.startswith("stages.") and (name := key.split(".")[1]) not in values.get("stages", []):
            found.append(f"there is no stage {shown(name)}; list the stages in a configuration file")
        elif re.fullmatch(r"stages\.\w+\.checkpoint\.save_dir", key):
            cure = "a stage trains in SAVE_DIR/NAME; set checkpoint.save_dir of the whole course"
            found.append(f"{key} is given, but {cure}")
    resolved = []
    for name, stage in stages:
        run, wrong = resolve(stage)
        resolved.append((name, run, [_with_origin(problem, layers, name) for problem in wrong]))
    for name, _, wrong in resolved:  # what is wrong in all stages is told once
        everywhere = [problem for problem in wrong if all(problem in others for *_, others in resolved)]
        found += [problem for problem in everywhere if problem not in found]
        found += [f"stage {name}: {problem}" for problem in wrong if problem not in everywhere]
    if found:
        raise ConfigError(found)
    runs = [RunConfig(run, name) for name, run, _ in resolved]
    return _placed(runs) if runs[0].stage else runs


def _with_origin(problem: str, layers: Layers, stage: str) -> str:
    """Return a problem with the name of the file that has its key, unless the command line has it, too."""
    key = problem.removeprefix("unknown key ").split(" ")[0].rstrip(";")
    for origin, layer in reversed(layers):
        if not {key, f"stages.{stage}.{key}"}.isdisjoint(flat(layer)):
            return problem if origin == COMMAND_LINE else f"{origin}: {problem}"
    return problem


def merged_layers(layers: Layers) -> tuple[Layer, Layer]:
    """Return the values of all layers but the command line, and those of the command line. Raises ConfigError if parts
    or stages have names that they cannot have."""
    below = functools.reduce(over, (flat(layer) for origin, layer in layers if origin != COMMAND_LINE), {})
    lists = {key: names for key, names in below.items() if key.rpartition(".")[2] in LISTS}
    if problems := [problem for key, names in lists.items() for problem in _problems_of_names(key, names)]:
        raise ConfigError(problems)
    return below, functools.reduce(over, (flat(layer) for origin, layer in layers if origin == COMMAND_LINE), {})


def _problems_of_names(key: str, names: Any) -> list[str]:
    """Return what is wrong with the names of parts or stages, which become parts of keys and names of folders."""
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return [f"{key} must be a list of the values of each item: [{{task: ..., criterion: ...}}, ...]"]
    distinct = dict.fromkeys(names)
    wrong = [name for name in distinct if not re.fullmatch(r"(?!(best|last)$)\w+", name)]
    problems = [f"{shown(name)} cannot be one of the {key}; use letters, digits and _" for name in wrong]
    return problems + [f"two {key} are named {shown(name)}; rename one" for name in distinct if names.count(name) > 1]


def plugins_of(*layers: Layer) -> list[str]:
    """Return the modules that layers name, also in stages; anything but a list of names is reported later."""
    named = [value for layer in layers for key, value in layer.items() if re.fullmatch(r"(stages\.\w+\.)?plugins", key)]
    texts = [value.split(",") if isinstance(value, str) else value for value in named]
    return list(dict.fromkeys(str(name) for text in texts if isinstance(text, list) for name in text if name))


def stages_of(values: Layer, command: Layer) -> list[tuple[str, Layer]]:
    """Return the name and the values of each stage; without stages those of the one run, whose name is empty.

    Args:
        values: Values of all layers except the command line.
        command: Values of the command line. One goes to every stage that has the option, or to all if none has it.
    """
    base, general = ({k: v for k, v in each.items() if k.split(".")[0] != "stages"} for each in (values, command))
    names = values.get("stages", [])
    if not names:
        return [("", over(base, general))]
    later = {**base, "init": f"{PREVIOUS}/best"}
    stages = [over_stage(later if i else base, strip(values, f"stages.{name}.")) for i, name in enumerate(names)]
    chosen = {key: value for key, value in general.items() if key.endswith(".name")}
    known = [_keys_of(over(stage, chosen)) for stage in stages]
    everywhere = set().union(*known)
    for number, name in enumerate(names):
        taken = {k: v for k, v in general.items() if k in known[number] or k not in everywhere}
        if number:
            taken.pop("init", None)
        stages[number] = over_stage(over(stages[number], taken), strip(command, f"stages.{name}."))
    return list(zip(names, stages, strict=True))


def over_stage(base: Layer, stage: Layer) -> Layer:
    """Return the values of a stage, or of a recipe, over those of its ``base``.

    Its own parts replace the task and criterion of ``base``; its own task or criterion replaces the parts of ``base``.
    A part that does not name both its task and its criterion has the rest from the part of ``base`` of that name, or
    else from the task and criterion of ``base``.
    """
    if "parts" in stage:
        replaced, stage = OF_A_PART, _with_rest(base, stage)
    else:
        replaced = ("parts", "mixing") if any(f"{kind}.name" in stage for kind in OF_A_PART) else ()
    return over({key: value for key, value in base.items() if key.split(".")[0] not in replaced}, stage)


def _with_rest(base: Layer, stage: Layer) -> Layer:
    rest: Layer = {}
    single = {key: value for key, value in base.items() if key.split(".")[0] in OF_A_PART}
    for name in stage["parts"] if isinstance(stage["parts"], list) else ():
        above = f"parts.{name}."
        if not {f"{above}{kind}.name" for kind in OF_A_PART} <= {*stage}:
            rest |= {above + key: value for key, value in (strip(base, above) or single).items()}
    return {**over(rest, {key: value for key, value in stage.items() if key != "parts"}), "parts": stage["parts"]}


def _keys_of(values: Layer) -> set[str]:
    return {spec.key for spec in fields_of(values)} | {f"{section.above}name" for section in sections_of(values)}


def _placed(runs: list[RunConfig]) -> list[RunConfig]:
    """Return the stages with the folder of each, and the checkpoint of the previous stage that it starts from."""
    labels = "+".join(dict.fromkeys(run.label for run in runs))
    root = Path(runs[0].values["checkpoint.save_dir"] or f"runs/{labels}")
    placed = []
    for number, run in enumerate(runs):
        init = run.init
        if number and init is not None and init.split("/")[0] == PREVIOUS:
            init = str(root / runs[number - 1].stage / (init.removeprefix(PREVIOUS).strip("/") or "best"))
        changed = {"checkpoint.save_dir": str(root / run.stage), "init": init}
        placed.append(RunConfig({**run.values, **changed}, run.stage))
    return placed


def to_configuration(runs: list[RunConfig]) -> str:
    """Return a configuration file that gives the same runs."""
    if not runs[0].stage:
        return runs[0].to_yaml()
    course = {"checkpoint.save_dir": str(runs[0].directory.parent), "stages": [run.stage for run in runs]}
    for run in runs:
        stage = {**run.values, "init": run.init or "none"}
        course |= {f"stages.{run.stage}.{key}": value for key, value in stage.items() if key != "checkpoint.save_dir"}
    return to_yaml(course)


# -- checks -----------------------------------------------------------------------------------------------------------


def resolve(given: Layer) -> tuple[Layer, list[str]]:
    """Return the value of every option of a run, and everything that is wrong, one line each."""
    problems = list[str]()
    values: Layer = {"parts": given["parts"]} if "parts" in given else {}
    if single := " and ".join(kind for kind in OF_A_PART if values and strip(given, f"{kind}.")):
        problems.append(f"a run has either parts or one task and criterion, but {single} is given beside parts")
        given = {key: value for key, value in given.items() if key.split(".")[0] not in OF_A_PART}
    sized = with_size(given)
    sections = sections_of(sized)
    for section in sections:
        of_section, wrong = _resolve(section, sized)
        values, problems = values | of_section, problems + wrong
    unchosen = tuple(section.above for section in sections if section.options is None)
    for key in given:
        if key not in values and not key.startswith(unchosen):
            section, _, name = key.rpartition(".")
            known = [key[len(section) + 1 :] for key in values if section and key.startswith(f"{section}.")]
            same = " or ".join(repr(each) for each in values if each.rpartition(".")[2] == name)
            elsewhere = f"did you mean {same}?" if same else suggestion(key, SECTIONS)
            cure = suggestion(name, known) if known else nearest(key, [*values]) or elsewhere
            text = f"{key} must be a mapping of options, not {shown(given[key])}"
            problems.append(text if key in SECTIONS else f"unknown key {key}; {cure}")
    for name in values.get("parts", []) if values.get("mixing") == "weight" else ():
        if values.get(f"parts.{name}.proportion") is not None:
            problems.append(f"parts.{name}.proportion is given, but mixing is weight; set mixing to proportion")
    if "parts" in values and not problems:
        problems = RunConfig(values).configs["criterion"].problems()
    return values, problems


def _resolve(section: Section, given: Layer) -> tuple[Layer, list[str]]:
    """Return the value of every option of a section by its key, and what is wrong."""
    values: Layer = {}
    if section.kind in CHOICES:
        values[f"{section.key}.name"] = section.name
        known, place = REGISTRIES[section.kind].names(), "" if section.key == section.kind else f"{section.key}: "
        if section.name is None:
            return values, [f"no {section.key} is chosen; set `{section.key}` to one of {', '.join(known)}"]
        if section.options is None:
            return values, [f"{place}unknown {section.kind} {shown(section.name)}; {suggestion(section.name, known)}"]
    problems, doubtful, options = [], [], {}
    for spec in section.fields():
        options[spec.name] = spec.default
        try:
            if spec.key in given:
                options[spec.name] = convert(given[spec.key], spec.annotation)
            elif spec.default is MISSING:
                raise ValueError("has no default; give it")
        except ValueError as error:
            problems.append(f"{spec.key} {error}")
            doubtful.append(spec.name)
    if MISSING not in options.values():
        config = section.options(**options)
        refused = config.problems() if hasattr(config, "problems") else []
        # What the part refuses about a doubtful option would concern its default, not the value given.
        problems += [section.above + each for each in refused if set(doubtful).isdisjoint(re.findall(r"\w+", each))]
    return values | {section.above + name: value for name, value in options.items()}, problems
