"""Turns layers of values into the runs of a course of training: one run, or one per stage if there are ``stages``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xrep.config.resolve import RunConfig, problems_of_names, resolve
from xrep.config.sections import OF_A_PART, fields_of, merge, parts_of, plugins_of, sections_of
from xrep.config.sizes import with_size
from xrep.config.yaml_files import to_yaml
from xrep.errors import ConfigError, shown
from xrep.registry import import_plugin, suggestion

COMMAND_LINE = "command line"
"""Name of the layer that overrides the stages; stages override all other layers."""
PREVIOUS = "previous"

Layers = Sequence[tuple[str, Mapping[str, Any]]]


def compose(layers: Layers, problems: list[str] | None = None) -> RunConfig:
    """Return the run of layers that have no stages; see ``compose_course``."""
    first, *others = compose_course(layers, problems)
    if others or first.stage:
        raise ConfigError(["this configuration has stages, but a single run is needed; remove the stages"])
    return first


def compose_course(layers: Layers, problems: list[str] | None = None) -> list[RunConfig]:
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
    problems = list(problems or [])
    values: dict[str, Any] = {}
    command: Mapping[str, Any] = {}
    for origin, layer in layers:
        problems += _problems_of_items(origin, layer, values)
        if origin == COMMAND_LINE:
            command = layer
        else:
            values = merge(values, layer)
    stages = stages_of(values, command)
    for plugin in dict.fromkeys(plugin for _, stage in stages for plugin in plugins_of(stage)):
        import_plugin(plugin)
    problems += _problems_of_stages(values, command)
    of_stages: dict[str, list[str]] = {name: [] for name, _ in stages}
    resolved = ((name, resolve(with_size(stage), of_stages[name], name)) for name, stage in stages)
    runs = [run for _, run in resolved if run is not None]
    common = [problem for problem in of_stages[stages[0][0]] if all(problem in own for own in of_stages.values())]
    problems += common + [f"stage {name}: {p}" for name, own in of_stages.items() for p in own if p not in common]
    if problems:
        raise ConfigError(problems)
    return _placed(runs) if runs[0].stage else runs


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
    root = Path(runs[0].values["checkpoint"]["save_dir"] or f"runs/{labels}")
    placed = []
    for number, run in enumerate(runs):
        init = run.init
        if number and init is not None and init.split("/")[0] == PREVIOUS:
            init = str(root / runs[number - 1].stage / (init.removeprefix(PREVIOUS).strip("/") or "best"))
        checkpoint = {**run.values["checkpoint"], "save_dir": str(root / run.stage)}
        placed.append(RunConfig({**run.values, "checkpoint": checkpoint, "init": init}, run.stage))
    return placed


# -- stages -----------------------------------------------------------------------------------------------------------


def stages_of(values: Mapping[str, Any], command: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the merged values of each stage; without stages those of the one run, whose name is empty.

    Args:
        values: Merged values of all layers except the command line.
        command: Values of the command line. A stage takes each key that is one of its options, or that is an option of
            no stage.
    """
    base, general = ({k: v for k, v in layer.items() if k != "stages"} for layer in (values, command))
    listed = parts_of(values, "stages")
    if not listed:
        return [("", merge(base, general))]
    later = {**base, "init": f"{PREVIOUS}/best"}
    stages = [_over(later if number else base, stage) for number, stage in enumerate(listed)]
    chosen = _only(general, lambda key: key.endswith(".name"))
    options = [_keys_of(merge(stage, chosen)) for stage in stages]
    everywhere = set().union(*options)
    changes = command.get("stages", {})
    merged = []
    for number, (item, stage) in enumerate(zip(listed, stages, strict=True)):
        taken = _only(general, lambda key, own=options[number]: key in own or key not in everywhere)
        if number:
            taken.pop("init", None)
        change = changes.get(item["name"]) if isinstance(changes, Mapping) else None
        merged.append((item["name"], _over(merge(stage, taken), change if isinstance(change, Mapping) else {})))
    return merged


def _over(base: Mapping[str, Any], stage: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the values of a stage over ``base``. The stage's own parts replace the task and criterion of ``base``; its
    own task or criterion replaces the parts of ``base``."""
    replaced: tuple[str, ...] = ()
    if isinstance(stage.get("parts"), list):
        replaced = OF_A_PART
    elif "parts" not in stage and any(kind in stage for kind in OF_A_PART) and "parts" in base:
        replaced = ("parts", "mixing")
    kept = {key: value for key, value in base.items() if key not in replaced}
    return merge(kept, {key: value for key, value in stage.items() if key not in ("name", "stages")})


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


def _keys_of(stage: Mapping[str, Any]) -> set[str]:
    """Return the keys of all options of a stage; those of parts also by index."""
    keys = {spec.key for spec in fields_of(stage)} | {f"{section.key}.name" for section in sections_of(stage)}
    for number, part in enumerate(parts_of(stage)):
        start = f"parts.{part['name']}."
        keys |= {f"parts.{number}.{key.removeprefix(start)}" for key in keys if key.startswith(start)}
    return keys


# -- what may be wrong ------------------------------------------------------------------------------------------------


def _problems_of_items(origin: str, layer: Mapping[str, Any], below: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the parts and stages of a layer, which may list them or change those of ``below``."""
    parts = [part["name"] for values in (below, *parts_of(below, "stages")) for part in parts_of(values)]
    indices = [str(number) for number in range(len(parts))]
    problems = _problems_of_changes(f"{origin}: ", "part", layer.get("parts"), parts, indices)
    stages = layer.get("stages", [{}])
    if isinstance(stages, Mapping):
        names = [stage["name"] for stage in parts_of(below, "stages")]
        problems += _problems_of_changes(f"{origin}: ", "stage", stages, names)
    elif not isinstance(stages, list) or not stages or not all(isinstance(stage, Mapping) for stage in stages):
        problems.append(f"{origin}: stages must be a list of the values of each stage: [{{task: ...}}, ...]")
    changed = stages.items() if isinstance(stages, Mapping) else [(s["name"], s) for s in parts_of(layer, "stages")]
    for name, stage in changed:
        if isinstance(stage, Mapping):
            problems += _problems_of_items(f"{origin}: stages.{name}", {"parts": stage.get("parts")}, below)
            problems += [f"{origin}: stages.{name}: a stage cannot have stages"] if "stages" in stage else []
            if "name" in stage and isinstance(stages, Mapping):
                problems.append(
                    f"{origin}: stages.{name}: a stage cannot be renamed; change its name where it is listed"
                )
    return problems


def _problems_of_changes(
    origin: str, kind: str, changes: Any, names: list[str], indices: Sequence[str] = ()
) -> list[str]:
    problems = []
    for name, change in changes.items() if isinstance(changes, Mapping) else ():
        if name not in [*names, *indices]:
            cure = suggestion(name, names) if names else f"list the {kind}s in a configuration file"
            problems.append(f"{origin}there is no {kind} {shown(name)}; {cure}")
        elif not isinstance(change, Mapping):
            problems.append(f"{origin}{kind}s.{name} must be a mapping of options, not {shown(change)}")
    return problems


def _problems_of_stages(values: Mapping[str, Any], command: Mapping[str, Any]) -> list[str]:
    stages = parts_of(values, "stages")
    problems = problems_of_names("stage", [s["name"] for s in stages], r"(?!(best|last)$)\w+", "letters, digits and _")
    changes = command.get("stages", {})
    for number, stage in enumerate(stages):
        key = f"stages.{stage['name']}"
        for own in (stage, changes.get(stage["name"]) if isinstance(changes, Mapping) else None):
            own = own if isinstance(own, Mapping) else {}
            checkpoint = own.get("checkpoint")
            if isinstance(checkpoint, Mapping) and "save_dir" in checkpoint:
                cure = "set checkpoint.save_dir of the whole course"
                problems.append(f"{key}.checkpoint.save_dir is given, but a stage trains in SAVE_DIR/NAME; {cure}")
            if number == 0 and str(own.get("init")).split("/")[0] == PREVIOUS:
                problems.append(f"{key}.init is {own['init']}, but there is no stage before it")
    return problems
