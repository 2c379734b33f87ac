"""What the directory of a run and the results of evaluations hold, read for a report.

Files may come from elsewhere: whatever is not of the expected form is left out or refused, and nothing is executed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from xrep.config import compose
from xrep.config.yaml_files import flat
from xrep.errors import UserError
from xrep.models.directory import CONFIG, read_saved_config
from xrep.training.launches import LAUNCHES
from xrep.training.progress import METRICS
from xrep.training.run import DATA_STATISTICS, SUMMARY

MOST_POINTS = 300
"""Number of points of a curve; of a longer one, neighbouring records are averaged."""
PARTS = ("task", "model", "criterion", "validation", "optimizer", "lr_scheduler")
"""Sections whose parts have options of their own."""
_MAPPINGS = ("values", "headline", "intervals", "settings", "overlap")
"""Mappings in the record of a result."""
Curve = list[tuple[float, float]]


@dataclass
class Run:
    """A run: its name in the report, its options (``criterion.temperature`` -> value) and what it has written."""

    name: str
    path: Path
    options: dict[str, Any]
    changed: dict[str, Any]
    """The options whose values are not the defaults of its parts."""
    summary: dict[str, Any]
    data: dict[str, Any]
    """Statistics of the training data, by part."""
    launches: list[dict[str, Any]]
    """What is recorded of each launch: at its beginning, with ``how`` it ended and ``until`` which step."""
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict)
    """Records by kind (train, valid) and name of the value: (step, value) each."""


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Read the directories of runs, which are named by their last folder if that tells them apart. Raises UserError if
    one of them holds no run, or is named twice."""
    places = [Path(path) for path in paths]
    if len({os.path.realpath(place) for place in places}) < len(places):
        raise UserError("a run is named twice", cure="name each run once")
    short = [Path(os.path.abspath(place)).name for place in places]
    names = short if len(set(short)) == len(short) else [str(place) for place in places]
    return [_read_run(name, place) for name, place in zip(names, places, strict=True)]


def _read_run(name: str, path: Path) -> Run:
    if not (path / CONFIG).is_file():
        problem = "holds no run" if path.is_dir() else "no such directory"
        raise UserError(problem, path=path, cure=f"name the directory of a run, which holds {CONFIG}")
    values = read_saved_config(path / CONFIG)
    options, defaults = flat(values), flat(_defaults(values))
    return Run(
        name=name,
        path=path,
        options=options,
        changed={key: value for key, value in options.items() if defaults.get(key, options) != value},
        summary=_mapping(read_json(path / SUMMARY)),
        data=_mapping(read_json(path / DATA_STATISTICS)),
        launches=_launches(path / LAUNCHES),
        curves=_curves(path / METRICS),
    )


def _defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the configuration would be if it only named its parts; empty if that is no configuration."""
    named = {section: {"name": values[section]["name"]} for section in PARTS if "name" in _mapping(values.get(section))}
    named |= {"size": values["size"]} if "size" in values else {}
    try:
        return compose([("the defaults", named)]).values
    except UserError:
        return {}


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; None if there is no file. Raises UserError if the file is not JSON."""
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        raise UserError("not JSON", path=path, cure="remove it, or write it again") from None


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the mappings in the lines of a file; a run that was killed may leave half a line."""
    if not path.is_file():
        return
    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError):
            yield _mapping(json.loads(line)) if line else {}


def _launches(path: Path) -> list[dict[str, Any]]:
    launches: list[dict[str, Any]] = []
    for record in _records(path):
        if record.get("event") == "start":
            launches.append(record)
        elif record.get("event") == "end" and launches:
            launches[-1] |= {"how": record.get("how"), "until": record.get("step")}
    return launches


def _curves(path: Path) -> dict[str, dict[str, Curve]]:
    curves: dict[str, dict[str, Curve]] = {}
    for record in _records(path):
        step, kind = record.pop("step", None), record.pop("kind", None)
        if is_number(step) and kind in ("train", "valid"):
            for name, value in record.items():
                if is_number(value):
                    curves.setdefault(kind, {}).setdefault(name, []).append((step, value))
    return {kind: {name: _thinned(curve) for name, curve in own.items()} for kind, own in curves.items()}


def _thinned(curve: Curve) -> Curve:
    size = math.ceil(len(curve) / MOST_POINTS)
    parts = (curve[start : start + size] for start in range(0, len(curve), size))
    return [(part[-1][0], math.fsum(value / len(part) for _, value in part)) for part in parts]


# -- results of evaluations -------------------------------------------------------------------------------------------


def read_results(runs: Sequence[Run], files: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of evaluations: test -> model -> record. A model is called by the name of its run, if it is
    that run's best checkpoint, or by its path.

    The results are those in the directories of the runs and in ``files``, which name further JSON files of
    ``xrep-eval --json``; if a model has several results of one test, the last one counts.

    Raises:
        UserError: One of ``files`` is not a result.
    """
    results: dict[str, dict[str, dict[str, Any]]] = {}
    inside = [(path, run) for run in runs for path in sorted(run.path.glob("*.json")) if path.name != SUMMARY]
    for path, run in [*inside, *((Path(file), None) for file in files)]:
        found = list(records_in(read_json(path)))
        if run is None and not found:
            problem = "not a result" if path.is_file() else "no such file"
            raise UserError(problem, path=path, cure="name what xrep-eval --json wrote")
        for label, record in found:
            path = Path(record["model"]["path"])
            if "checkpoints" in record["values"]:  # the result is of a whole run, and its path that of the last one
                path = path.parent
            results.setdefault(label, {})[model_name(path, runs, run)] = record
    return results


def records_in(content: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the test and the record of each result in what ``xrep-eval --json`` wrote: of one test or of all, of one
    model or of several."""
    models = _mapping(_mapping(content).get("models"))
    for own in [*models.values()] if models else [content]:
        results = _mapping(_mapping(_mapping(own).get("values")).get("results"))
        several = results if _mapping(own).get("test") == "all" else {None: own}
        for label, record in several.items():
            record = _mapping(record)
            test, path = record.get("test"), _mapping(record.get("model")).get("path")
            if isinstance(test, str) and isinstance(path, str):
                yield label or test, {**record, **{key: _mapping(record.get(key)) for key in _MAPPINGS}}


def model_name(path: Path, runs: Sequence[Run], inside: Run | None = None) -> str:
    """Return the name of the run that is at ``path``, or whose best checkpoint is there, or else the path.

    Args:
        inside: Run in whose directory the result is. The path may be older than the place of that directory.
    """
    for run in runs:
        if os.path.realpath(path) in (os.path.realpath(run.path), os.path.realpath(run.path / "best")):
            return run.name
    if inside is not None and inside.path.name in (path.name, path.parent.name) and path.name[:10] != "checkpoint":
        return inside.name
    return str(path)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value from JSON is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
