"""The page of a report: one HTML file that needs nothing else, with a table or a picture for each thing to compare.

This module says what is compared, and the template ``page.html`` has the text of the page and its look. A table is a
list of rows, of which the first is the header. A cell is a text, whose second line is small, or a chart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from xrep import __version__
from xrep.evaluation.runner import comparison
from xrep.progress import duration
from xrep.report.pictures import alignment_chart, interval_chart, line_chart, number, scatter_chart, style
from xrep.report.runs import Run
from xrep.text.languages import name as language_name

Records = Mapping[str, Mapping[str, Any]]
Table = list[list[Any]]
_MAIN = ("loss", "accuracy")  # curves of training that are always shown; the others can be opened


def render(runs: Sequence[Run], results: Mapping[str, Records], failed: Sequence[str] = ()) -> str:
    """Return the page as HTML, with ``results`` of evaluations, test -> model -> record (``read_results``), and lines
    about what could not be measured."""
    records = [(name, record) for measured in results.values() for name, record in measured.items()]
    models = dict.fromkeys([*(run.name for run in runs), *(name for name, _ in records)])
    numbers = {name: i for i, name in enumerate(models)}
    of_test = {test: next(iter(measured.values()))["test"] for test, measured in results.items()}
    scatters = [(name, record["values"]) for name, record in records if record["test"] == "scatter"]
    languages = list(dict.fromkeys(point["language"] for _, values in scatters for point in values["points"]))
    header, *options = _table("option", {run.name: run.options for run in runs})
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").render(
        runs=runs,
        models={name: style(i) for name, i in numbers.items()},
        summaries=[_run(run) for run in runs],
        options=[header, *options],
        differing=[header, *(row for row in options if _differs(row[0], runs))],
        curves=_curves(runs, numbers),
        evaluations={test: _evaluation(measured, numbers) for test, measured in results.items()},
        failed=failed,
        languages={language_name(language): style(i) for i, language in enumerate(languages)},
        sentences=[scatter_chart(name, values, languages) for name, values in scatters],
        alignments=[alignment_chart(results[test], numbers) for test, kind in of_test.items() if kind == "alignment"],
        data=_data(runs),
        overlap=_table("test", {name: _overlap(name, results) for name in models}),
        launches=[_launch(run.name, launch) for run in runs for launch in run.launches],
        versions=_table("", {run.name: run.launches[-1].get("versions", {}) for run in runs if run.launches}),
        version=__version__,
        measured_by=sorted({record["version"] for _, record in records}),
    )


def _table(corner: str, columns: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of columns by name, with a row for each key of any of them."""
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    return [[corner, *columns], *([key, *(column.get(key, "") for column in columns.values())] for key in keys)]


def _run(run: Run) -> list[str]:
    row = [f"{run.name}\n{run.path}", run.objective]
    if not run.summary:
        steps = [curve[-1][0] for curve in run.curves.values()]
        return [*row, str(max(steps, default=0)), "", "", "", "not finished"]
    count, examples, seconds, best = (run.summary[key] for key in ("steps", "examples", "train_seconds", "best"))
    shown = "" if best["value"] is None else f"{best['metric']} {number(best['value'])}\nstep {best['step']}"
    return [*row, str(count), f"{examples:,}", duration(seconds), shown, "finished"]


def _launch(name: str, launch: Mapping[str, Any]) -> list[str]:
    facts = [launch.get(key) or "?" for key in ("time", "host", "device", "how", "command")]
    return [name, f"{launch['step']} to {launch.get('until', '?')}", *facts]


def _differs(key: str, runs: Sequence[Run]) -> bool:
    """Return whether runs that have an option differ in it, or some run alone has it and has changed it. The defaults
    of a part that the other runs do not have are no difference of their own."""
    values = [run.options[key] for run in runs if key in run.options]
    is_common = len(values) == len(runs) > 1
    return len(set(values)) > 1 or (not is_common and any(key in run.changed for run in runs))


def _curves(runs: Sequence[Run], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the ``main`` curves and ``more``, and a table of values that were recorded ``once``. The losses of
    different objectives cannot be compared, so each objective has a chart of its own."""
    main, more, once = list[Any](), list[Any](), {run.name: dict[str, str]() for run in runs}
    for kind, name in sorted(dict.fromkeys(key for run in runs for key in run.curves), key=itemgetter(0)):
        title, groups = f"{kind}: {name.replace('_', ' ')}", dict[str, dict[str, Any]]()
        for run in runs:
            curve = run.curves.get((kind, name), [])
            if len(curve) == 1:
                once[run.name][title] = f"{number(curve[0][1])}\nstep {curve[0][0]}"
            elif curve:
                groups.setdefault(run.objective if "loss" in name else "", {})[run.name] = curve
        for objective, curves in groups.items():
            whole = f"{title} of {objective}" if len(groups) > 1 else title
            (main if kind == "validation" or name in _MAIN else more).append(line_chart(whole, curves, numbers))
    return {"main": main, "more": more, "once": _table("recorded once", once)}


def _evaluation(records: Records, numbers: Mapping[str, int]) -> tuple[Table, Table]:
    """Return a table of the figures by which a test is quoted, with a chart for each if there are several models, and a
    table of all figures of its tables, such as languages."""
    differences = {name: own["differences"] for name, own in records.items() if "differences" in own}
    header, *rows = comparison(records, differences)
    quoted = [[cell.replace(" [", "\n[", 1) for cell in row] for row in [header, *rows]]
    if len(records) > 1:
        charts = [interval_chart(row[0], records, dict(zip(header, row, strict=True)), numbers) for row in rows]
        quoted = [[*row, cell] for row, cell in zip(quoted, ["", *charts], strict=True)]
    details = {model: dict[str, str]() for model in records}
    for model, record in records.items():
        for name, values in record["values"].get("tables", {}).items():
            shown = {figure: value for figure, value in values.items() if isinstance(value, float)}
            details[model] |= {f"{name}: {figure}": f"{value:.2f}" for figure, value in shown.items()}
    return quoted, _table("", details)


def _data(runs: Sequence[Run]) -> dict[str, tuple[Table, str]]:
    """Return of each different data set, by the runs that have it, a table of its corpora and what cleaning counted."""
    found = dict[str, list[str]]()
    for run in runs:
        for part, facts in run.data.items():
            found.setdefault(json.dumps(facts), []).append(f"{run.name} {part}".strip())
    return {", ".join(names): _statistics(json.loads(facts)) for facts, names in found.items()}


def _statistics(facts: Mapping[str, Any]) -> tuple[Table, str]:
    table = [["split", "rows", "subwords", "mean length"]]
    for split, corpora in facts.get("splits", {}).items():
        for count, tokens in ((corpus["rows"], corpus["tokens"]) for corpus in corpora):
            mean = sum(tokens.values()) / max(1, count * len(tokens))
            sides = ", ".join(f"{language} {own:,}" for language, own in tokens.items())
            table.append([f"{split} {'-'.join(tokens)}", f"{count:,}", sides, f"{mean:.1f}"])
    steps = sum(map(Counter, facts.get("cleaning", {}).values()), Counter[str]())
    return table, ", ".join(f"{count:,} {step}" for step, count in steps.items())


def _overlap(name: str, results: Mapping[str, Records]) -> dict[str, str]:
    """Return for each test how many of its examples are in the training text of a model, and whether they count."""
    found = {}
    for test, records in results.items():
        if overlap := records.get(name, {}).get("overlap"):
            counted = "unknown" if overlap["found"] is None else f"{overlap['found']:,} of {overlap['total']:,}"
            found[test] = counted + ("\nleft out" if overlap["dropped"] else "")
    return found
