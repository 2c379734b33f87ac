"""What the directory of a run and the results of evaluations hold, read for a report.

We wrote these files ourselves, so what they hold is trusted. A damaged record, such as half a line or one without a key
that the report needs, is left out and named.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xrep.config.saved import completed
from xrep.config.values import flat
from xrep.errors import UserError
from xrep.models.directory import CONFIG, read_saved_config
from xrep.text.lines import read_bytes
from xrep.training.log import LAUNCHES, METRICS
from xrep.training.run import DATA_STATISTICS, SUMMARY

MOST_POINTS = 300  # of a longer curve, neighbouring records are averaged
_FACTS = (SUMMARY, DATA_STATISTICS)  # JSON in the directory of a run that is no result
_KINDS = {"train": "training", "valid": "validation"}
_RESULT = ("test", "model", "values", "headline", "intervals", "overlap", "version", "settings", "data")
Curve = list[tuple[float, float]]


class Run(NamedTuple):
    """A run: its name in the report, its options (``criterion.temperature`` -> value) and what it has written."""

    name: str
    path: Path
    options: dict[str, str]
    changed: set[str]  # the options whose values are not the defaults of its parts
    summary: dict[str, Any]  # empty if the run is not finished
    data: dict[str, Any]  # facts about the data of each part
    launches: list[dict[str, Any]]  # the record of each one's beginning, with `how` it ended and `until` which step
    curves: dict[tuple[str, str], Curve]  # by kind (training, validation) and name of the value
    damaged: list[str]  # a line for each damaged record in the directory

    @property
    def objective(self) -> str:
        return ", ".join(dict.fromkeys(name for key, name in self.options.items() if key.endswith("criterion.name")))


def read_runs(paths: Sequence[str]) -> list[Run]:
    """Read the directories of runs, which are named by their last folder if that tells them apart. Raises UserError if
    one of them holds no run, or is named twice."""
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise UserError("a run is named twice", cure="name each run once")
    short = [os.path.basename(os.path.abspath(path)) for path in paths]
    names = short if len(set(short)) == len(short) else paths
    return [_read_run(name, Path(path)) for name, path in zip(names, paths, strict=True)]


def _read_run(name: str, path: Path) -> Run:
    if not (path / CONFIG).is_file():
        problem = "holds no run" if path.is_dir() else "no such directory"
        raise UserError(problem, path=path, cure=f"name the directory of a run, which holds {CONFIG}")
    values, damaged = read_saved_config(path / CONFIG), list[str]()
    options = flat(values)
    named = {key: value for key, value in options.items() if key.endswith(".name") or key in ("parts", "size")}
    defaults = completed(named)[0]
    changed = {key for key, value in options.items() if defaults.get(key, options) != value}
    options.pop("checkpoint.save_dir", None)  # it differs between any two runs
    texts = {key: it if isinstance(it, str) else json.dumps(it, ensure_ascii=False) for key, it in options.items()}
    (summary,) = _parsed(path / SUMMARY, damaged) or [{}]
    (data,) = _parsed(path / DATA_STATISTICS, damaged) or [{}]
    launches, curves = list[dict[str, Any]](), dict[tuple[str, str], Curve]()
    for event, step, record in _parsed(path / LAUNCHES, damaged, lambda line: (line["event"], line["step"], line)):
        if event == "start":
            launches.append(record)
        elif launches:
            launches[-1] |= {"how": record.get("how"), "until": step}
    for kind, step, record in _parsed(path / METRICS, damaged, lambda it: (_KINDS[it["kind"]], it.pop("step"), it)):
        for figure, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                curves.setdefault((kind, figure), []).append((step, value))
    for key, curve in curves.items():
        size = math.ceil(len(curve) / MOST_POINTS)
        parts = [curve[start : start + size] for start in range(0, len(curve), size)]
        curves[key] = [(part[-1][0], math.fsum(value / len(part) for _, value in part)) for part in parts]
    return Run(name, path, texts, changed, summary, data, launches, curves, damaged)


def _parsed(path: Path, damaged: list[str], parse: Callable[[Any], Any] = lambda value: value) -> list[Any]:
    """Return what ``parse`` makes of the content of a JSON file, or of each line of JSON lines; nothing if there is no
    file. A line about each record that is damaged is added to ``damaged``."""
    records, has_lines = [], path.suffix == ".jsonl"
    content = read_bytes(path) if path.is_file() else b""
    for i, text in enumerate(content.splitlines() if has_lines else filter(None, [content]), start=1):
        try:
            records.append(parse(json.loads(text)))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else "it is not whole"
            damaged.append(f"{path}{f':{i}' if has_lines else ''}: a damaged record is left out: {why}")
    return records


def read_results(runs: Sequence[Run], files: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of evaluations: test -> model -> record. A model is called by the name of its run, if it is
    that run's best checkpoint, or by its path.

    The results are those in the directories of the runs and in ``files``, further JSON files of ``xrep-eval --json``,
    of which a UserError says if they hold none. Of several results of one test and model the last one counts, unless
    they have other data or settings: then both are there, and the later one is named after its file, too.
    """
    results = dict[str, dict[str, dict[str, Any]]]()
    inside = [(path, run) for run in runs for path in sorted(run.path.glob("*.json")) if path.name not in _FACTS]
    for path, run in [*inside, *((Path(file), None) for file in files)]:
        (found,) = _parsed(path, run.damaged if run else [], _records_in) or [[]]
        if run is None and not found:
            problem = "not a result" if path.is_file() else "no such file"
            raise UserError(problem, path=path, cure="name what xrep-eval --json wrote")
        for label, record in found:
            name = _model_name(record, runs, run)
            known = results.setdefault(label, {})
            other = known[name] if name in known else record
            is_same = all(other[key] == record[key] for key in ("settings", "data"))
            results.setdefault(label if is_same else f"{label} ({path.stem})", {})[name] = record
    return results


def _records_in(content: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the test and the record of each result in what ``xrep-eval --json`` wrote: of one test or of all, of one
    model or of several. Other JSON has none."""
    if "test" not in content:
        return []
    models = content.get("models", {"": content}).values()
    several = [each["values"]["results"] if each["test"] == "all" else {each["test"]: each} for each in models]
    return [(label, {key: record[key] for key in _RESULT}) for results in several for label, record in results.items()]


def _model_name(record: Mapping[str, Any], runs: Sequence[Run], inside: Run | None) -> str:
    """Return the name of the run whose best checkpoint was measured, or else the path of the model. The directory of
    the run that the result is ``inside`` may have been moved since."""
    path = Path(record["model"]["path"])
    if "checkpoints" in record["values"]:  # the result is of a whole run, and its path that of the last one
        path = path.parent
    for run in runs:
        if path.resolve() in (run.path.resolve(), (run.path / "best").resolve()):
            return run.name
    run_path = path.parent if path.name == "best" else path
    return inside.name if inside and run_path.name == inside.path.name else str(path)
