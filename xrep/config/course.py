"""Turns layers of values into the runs of a course of training: one run, or one per stage if there are ``stages``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xrep.config.resolve import RunConfig, check_names, resolve
from xrep.config.sections import (
    OF_A_PART,
    SECTIONS,
    TOP_LEVEL,
    fields_of,
    merge,
    parts_of,
    plugins_of,
    sections_of,
    to_yaml,
)
from xrep.errors import ConfigError
from xrep.registry import import_plugin, suggestion

COMMAND_LINE = "command line"
"""Name of the layer that overrides the stages; stages override all other layers."""
PREVIOUS = "previous"

Layers = Sequence[tuple[str, Mapping[str, Any]]]


def compose(layers: Layers, problems: list[str] | None = None) -> RunConfig:
    """Return the run of layers that have no stages; see ``compose_course``."""
    first, *others = compose_course(layers, problems)
    if others or first.stage:
        raise ConfigError(["this configuration has stages, and a single run is wanted; leave them out"])
    return first


def compose_course(layers: Layers, problems: list[str] | None = None) -> list[RunConfig]:
    """Resolve layers of values, given from lowest to highest, each with the name that messages use for it.

    The values of a stage are those of all layers, overridden by the stage's own; the command line overrides both. Each
    stage trains in SAVE_DIR/NAME and starts from ``best`` of the previous stage, unless its ``init`` is something else:
    a checkpoint directory, ``previous/last``, or ``none`` for a fresh start. The top-level ``init`` is that of the
    first stage.

    Returns:
        One run per stage; without stages one run, whose ``stage`` is empty.

    Raises:
        ConfigError: lists every problem of every stage: unknown sections, parts and keys (with the nearest known one),
            values of the wrong type, values that the parts themselves refuse.
    """
    problems = list(problems or [])
    values: dict[str, Any] = {}
    command: dict[str, Any] = {}
    for origin, layer in layers:
        known = _known_keys(origin, layer, values, problems)
        if origin == COMMAND_LINE:
            command = known
        else:
            values = merge(values, known)
    stages = stages_of(values, command)
    for plugin in dict.fromkeys(plugin for _, stage in stages for plugin in plugins_of(stage)):
        import_plugin(plugin)
    _check_stages(values, command, problems)
    runs, told = [], []
    for name, stage in stages:
        found: list[str] = []
        runs.append(resolve(stage, found, name))
        told.append((name, found))
    problems += _told_once(told)
    if problems:
        raise ConfigError(problems)
    resolved = [run for run in runs if run is not None]
    return _placed(resolved) if resolved[0].stage else resolved


def course_to_yaml(runs: list[RunConfig]) -> str:
    """Return a configuration file that gives the same runs."""
    if not runs[0].stage:
        return runs[0].to_yaml()
    stages = []
    for run in runs:
        checkpoint = {key: value for key, value in run.values["checkpoint"].items() if key != "save_dir"}
        stages.append({"name": run.stage, **run.values, "checkpoint": checkpoint, "init": run.init or "none"})
    return to_yaml({"checkpoint": {"save_dir": str(course_directory(runs[0]))}, "stages": stages})


def course_directory(run: RunConfig) -> Path:
    """Return the folder that contains the folders of the stages, given the run of one stage."""
    return Path(run.values["checkpoint"]["save_dir"]).parent


def _placed(runs: list[RunConfig]) -> list[RunConfig]:
    """Return the stages with the folder of each, and the checkpoint of the previous stage that it starts from."""
    labels = "+".join(dict.fromkeys(run.label for run in runs))
    root = Path(runs[0].configs["checkpoint"].save_dir or f"runs/{labels}")
    placed = []
    for number, run in enumerate(runs):
        options = run.options
        if number and run.init is not None and run.init.split("/")[0] == PREVIOUS:
            rest = run.init.removeprefix(PREVIOUS).strip("/") or "best"
            options = replace(options, init=str(root / runs[number - 1].stage / rest))
        checkpoint = replace(run.configs["checkpoint"], save_dir=str(root / run.stage))
        placed.append(replace(run, configs={**run.configs, "checkpoint": checkpoint}, options=options))
    return placed


# -- stages -----------------------------------------------------------------------------------------------------------


def stages_of(values: Mapping[str, Any], command: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the merged values of each stage; without stages those of the one run, whose name is empty.

    Args:
        values: merged values of all layers except the command line.
        command: values of the command line. A stage takes each key that is one of its options, or that is an option of
            no stage.
    """
    base, general = _without_stages(values), _without_stages(command)
    stages = _listed_stages(values)
    if not stages:
        return [("", merge(base, general))]
    below = [_stage_over({**base, "init": f"{PREVIOUS}/best"} if n else base, s) for n, s in enumerate(stages)]
    keys = [_keys_of(merge(stage, _only(general, _names_of(stage).__contains__))) for stage in below]
    everywhere = set().union(*keys)
    changes = command.get("stages", {})
    found = []
    for number, (listed, stage) in enumerate(zip(stages, below, strict=True)):
        taken = _only(general, lambda key, own=keys[number]: key in own or key not in everywhere)
        if number:
            taken.pop("init", None)
        found.append((listed["name"], _stage_over(merge(stage, taken), changes.get(listed["name"], {}))))
    return found


def _listed_stages(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    stages = values.get("stages")
    return [stage for stage in stages if isinstance(stage, Mapping)] if isinstance(stages, list) else []


def _without_stages(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "stages"}


def _stage_over(base: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the values of a stage over ``base``. The stage's own parts replace the task and criterion of ``base``; its
    own task or criterion replaces the parts of ``base``."""
    replaced: set[str] = set()
    if isinstance(stage.get("parts"), list):
        replaced = set(OF_A_PART)
    elif "parts" not in stage and any(kind in stage for kind in OF_A_PART) and "parts" in base:
        replaced = {"parts", "mixing"}
    return merge({k: v for k, v in base.items() if k not in replaced}, {k: v for k, v in stage.items() if k != "name"})


def _only(values: Mapping[str, Any], keep: Callable[[str], bool], above: str = "") -> dict[str, Any]:
    """Return only the values whose dotted keys ``keep`` accepts."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            inner = _only(value, keep, f"{above}{key}.")
            kept |= {key: inner} if inner else {}
        elif keep(f"{above}{key}"):
            kept[key] = value
    return kept


def _names_of(stage: Mapping[str, Any]) -> set[str]:
    return _with_indices({f"{section.key}.name" for section in sections_of(stage)}, stage)


def _keys_of(stage: Mapping[str, Any]) -> set[str]:
    return _with_indices({spec.key for spec in fields_of(stage)}, stage) | _names_of(stage)


def _with_indices(keys: set[str], stage: Mapping[str, Any]) -> set[str]:
    """Return the keys, with keys of parts also by index."""
    for number, part in enumerate(parts_of(stage)):
        start = f"parts.{part['name']}."
        keys |= {f"parts.{number}.{key.removeprefix(start)}" for key in keys if key.startswith(start)}
    return keys


# -- what may be wrong ------------------------------------------------------------------------------------------------


def _known_keys(
    origin: str, layer: Mapping[str, Any], below: Mapping[str, Any], problems: list[str], is_stage: bool = False
) -> dict[str, Any]:
    """Return the values of a layer that have known keys. The layer may change parts and stages that are listed in
    ``below``."""
    top = [*SECTIONS, *TOP_LEVEL, "parts", "mixing", *([] if is_stage else ["stages"])]
    known = {}
    for key, value in layer.items():
        if is_stage and key == "stages":
            problems.append(f"{origin}: a stage has no stages of its own")
        elif key not in top:
            problems.append(f"{origin}: unknown section {key!r}; {suggestion(key, top)}")
        elif key in SECTIONS and not isinstance(value, Mapping):
            problems.append(f"{origin}: {key} must hold options, not {value!r}")
        elif key == "parts" and isinstance(value, Mapping):
            listed = [part["name"] for each in (below, *_listed_stages(below)) for part in parts_of(each)]
            numbers = [str(number) for number in range(len(listed))]
            known[key] = _named_ones(origin, "part", value, listed, numbers, problems)
        elif key == "stages":
            known[key] = _known_stages(origin, value, below, problems)
        else:
            known[key] = value
    return known


def _known_stages(origin: str, stages: Any, below: Mapping[str, Any], problems: list[str]) -> Any:
    if isinstance(stages, Mapping):
        listed = [stage["name"] for stage in _listed_stages(below)]
        named = _named_ones(origin, "stage", stages, listed, [], problems)
        return {name: _known_keys(f"{origin}: stages.{name}", s, below, problems, True) for name, s in named.items()}
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, Mapping) for stage in stages):
        problems.append(f"{origin}: stages must be a list of what changes from stage to stage: [{{task: ...}}, ...]")
        return []
    return [
        {
            "name": stage["name"],
            **_known_keys(f"{origin}: stages.{stage['name']}", _nameless(stage), below, problems, True),
        }
        for stage in stages
    ]


def _nameless(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stage.items() if key != "name"}


def _named_ones(
    origin: str, kind: str, changes: Mapping[str, Any], listed: list[str], others: list[str], problems: list[str]
) -> dict[str, Any]:
    """Return the changes to parts or stages that are in ``listed`` or ``others`` (further accepted names)."""
    known = {}
    for name, change in changes.items():
        if name not in [*listed, *others]:
            cure = suggestion(name, listed) if listed else f"list {kind}s in a file given by --config"
            problems.append(f"{origin}: there is no {kind} {name!r}; {cure}")
        elif not isinstance(change, Mapping):
            problems.append(f"{origin}: {kind}s.{name} must hold options, not {change!r}")
        else:
            known[name] = change
    return known


def _check_stages(values: Mapping[str, Any], command: Mapping[str, Any], problems: list[str]) -> None:
    stages = _listed_stages(values)
    check_names("stage", [s["name"] for s in stages], r"(?!(best|last)$)\w+", "letters, digits and _", problems)
    changes = command.get("stages", {})
    for number, stage in enumerate(stages):
        for given in (stage, changes.get(stage["name"], {})):
            if "save_dir" in given.get("checkpoint", {}):
                problems.append(
                    f"stages.{stage['name']}.checkpoint.save_dir is given, but a stage trains in SAVE_DIR/NAME; "
                    "give --save-dir for the whole course"
                )
            if number == 0 and str(given.get("init")).split("/")[0] == PREVIOUS:
                problems.append(f"stages.{stage['name']}.init is {given['init']}, but there is no stage before it")


def _told_once(found: list[tuple[str, list[str]]]) -> list[str]:
    """Return the problems of all stages, each with the stage's name unless all stages have it."""
    first, *others = (problems for _, problems in found)
    common = [problem for problem in first if all(problem in problems for problems in others)]
    return common + [f"stage {name}: {problem}" for name, told in found for problem in told if problem not in common]
