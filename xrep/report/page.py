"""The page of a report: one HTML file that needs nothing else, with a table or a picture for each thing to compare.

This module says what is on the page, and the template ``page.html`` how it looks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup, escape

from xrep import __version__
from xrep.metrics.bootstrap import shown_difference
from xrep.progress import duration
from xrep.report.pictures import Chart, Series, alignment_chart, chart, line_chart, number, scatter_chart, style
from xrep.report.runs import DRAWN, Run
from xrep.text.languages import name as language_name

Records = Mapping[str, Mapping[str, Any]]
_MAIN = ("loss", "accuracy")  # curves of training that are always shown; the others can be opened
_UNIMPORTANT = ("checkpoint.save_dir",)  # options that differ between any two runs
_INTERVALS = (
    "In brackets: 95% bootstrap intervals over the examples of the test. They do not cover what another seed of "
    "training would change. Differences: of what the report itself has measured, by a paired bootstrap, which draws "
    "the same examples for both."
)


class Block(NamedTuple):
    """A part of a section of the page; one without rows, charts and note is not shown."""

    heading: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()  # a cell is a text, (text, smaller text) or a chart
    kind: str = "numbers"  # class of the table in the style of the page
    note: str = ""
    charts: Sequence[Chart] = ()
    legend: Mapping[str, tuple[str, str]] = {}  # name -> variable of the page's style, kind of line
    folded: bool = False  # whether it is opened by a click on its heading


def render(runs: Sequence[Run], results: Mapping[str, Records], failed: Sequence[str] = ()) -> str:
    """Return the page as HTML, with ``results`` of evaluations, test -> model -> record (``read_results``), and lines
    about what could not be measured."""
    names = [run.name for run in runs]
    models = dict.fromkeys([*names, *(name for records in results.values() for name in records)])
    numbers = {name: i for i, name in enumerate(models)}
    measured = [block for test, records in results.items() for block in _evaluation(test, records, numbers)]
    measured = [Block(note=_INTERVALS), *measured] if measured else []
    summaries = [_run(run) for run in runs]
    launches = [_launch(run.name, launch) for run in runs for launch in run.launches]
    sections = {
        "Runs": [
            Block("", ["run", "objective", "steps", "examples", "time", "best validation", "state"], summaries),
            *(Block(note=line) for run in runs for line in run.damaged),
        ],
        "Options": _options(runs),
        "Curves": _curves(runs, numbers),
        "Evaluations": [*measured, *(Block(note=f"Not measured: {line}") for line in failed)],
        "Pictures": _pictures(results, numbers),
        "Data": _data(runs),
        "Overlap with the training text": _overlap(results, [*models]),
        "Launches": [Block("", ["run", "steps", "began", "host", "device", "end", "command"], launches, "launches")],
        "Versions": _versions(runs, results),
    }
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = lambda text: Markup(re.sub(r"([._/])", r"\1<wbr>", str(escape(text))))
    template = environment.from_string((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    title = f"Report of {names[0]}" if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    shown = {name: [own for own in blocks if own.rows or own.charts or own.note] for name, blocks in sections.items()}
    return template.render(title=title, sections=shown, models={name: style(i) for name, i in numbers.items()})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _run(run: Run) -> list[Any]:
    row, steps = [(run.name, str(run.path)), run.objective], [curve[-1][0] for curve in run.curves.values()]
    if not run.summary:
        return [*row, str(max(steps, default=0)), "", "", "", "not finished"]
    count, examples, seconds, best = run.summary.values()
    shown = "" if best["value"] is None else (f"{best['metric']} {number(best['value'])}", f"step {best['step']}")
    return [*row, str(count), f"{examples:,}", duration(seconds), shown, "finished"]


def _launch(name: str, launch: Mapping[str, Any]) -> list[str]:
    facts = [_text(launch.get(key) or "?") for key in ("time", "host", "device", "how", "command")]
    return [name, f"{launch['step']} to {launch.get('until', '?')}", *facts]


def _options(runs: Sequence[Run]) -> list[Block]:
    header = ["option", *(run.name for run in runs)]
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.options) if key not in _UNIMPORTANT]
    rows = [[key, *(_text(run.options.get(key, "")) for run in runs)] for key in keys]
    differing = [row for row in rows if _differs(row[0], runs)]
    told = "differ between the runs" if len(runs) > 1 else "are not at their defaults"
    return [
        Block("", header, differing, "code", f"{'Options that' if differing else 'No options'} {told}."),
        Block(f"All {len(rows)} options", header, rows, "code", folded=True),
    ]


def _differs(key: str, runs: Sequence[Run]) -> bool:
    """Return whether runs that have an option differ in it, or some run alone has it and has changed it. The defaults
    of a part that the other runs do not have are no difference of their own."""
    values = [run.options[key] for run in runs if key in run.options]
    is_common = len(values) == len(runs) > 1
    return any(value != values[0] for value in values) or (not is_common and any(key in run.changed for run in runs))


def _curves(runs: Sequence[Run], numbers: Mapping[str, int]) -> list[Block]:
    """Return the curves that are always shown, a table of values that were recorded once, and the other curves. The
    losses of different objectives cannot be compared, so each objective has a chart of its own."""
    main, more, once = list[Chart](), list[Chart](), dict[str, dict[str, tuple[str, str]]]()
    for kind, name in sorted({key: None for run in runs for key in run.curves}, key=lambda key: key[0]):
        title, groups = f"{kind}: {name.replace('_', ' ')}", dict[str, dict[str, Any]]()
        for run in runs:
            curve = run.curves.get((kind, name), [])
            if len(curve) == 1:
                once.setdefault(title, {})[run.name] = (number(curve[0][1]), f"step {curve[0][0]}")
            elif curve:
                groups.setdefault(run.objective if "loss" in name else "", {})[run.name] = curve
        for objective, curves in groups.items():
            whole = f"{title} of {objective}" if len(groups) > 1 else title
            (main if kind == "validation" or name in _MAIN else more).append(line_chart(whole, curves, numbers))
    rows = [[title, *(own.get(run.name, "") for run in runs)] for title, own in once.items()]
    return [
        Block(charts=main, note="" if main or rows else "No record of training yet."),
        Block("", ["recorded once", *(run.name for run in runs)], rows, "once"),
        Block(f"{len(more)} more curves", charts=more, folded=True),
    ]


def _evaluation(test: str, records: Records, numbers: Mapping[str, int]) -> Iterator[Block]:
    """Yield the figures by which a test is quoted, and all figures of its tables, such as languages."""
    several, details, rows = len(records) > 1, dict[str, dict[str, str]](), []
    paired = {name: own["differences"] for name, own in records.items() if own.get("differences")}
    for figure in dict.fromkeys(figure for record in records.values() for figure in record["headline"]):
        row, series = [figure], list[Series]()
        for name, record in records.items():
            value, span = record["headline"].get(figure), record["intervals"].get(figure, ())
            bounds = f"[{span[0]:.2f}, {span[1]:.2f}]" if span else ""
            row.append("" if value is None else (f"{value:.2f}", bounds))
            if value is not None:
                place, line = (value, -len(series)), [(end, -len(series)) for end in span]
                series.append(Series(numbers[name], [place], [f"{name}: {value:.2f} {bounds}"], line))
        row += [shown_difference(own[figure]) if figure in own else "" for own in paired.values()]
        rows.append([*row, chart("", series, rows=True)] if several else row)
    for model, record in records.items():
        for name, values in record["values"].get("tables", {}).items():
            for figure in (figure for figure, value in values.items() if isinstance(value, float)):
                details.setdefault(f"{name}: {figure}", {})[model] = f"{values[figure]:.2f}"
    yield Block(test, ["figure", *records, *(f"{own} − {[*records][0]}" for own in paired), *[""] * several], rows)
    own = [[name, *(cells.get(model, "") for model in records)] for name, cells in details.items()]
    yield Block(f"All {len(own)} figures", ["", *records], own, folded=True)


def _pictures(results: Mapping[str, Records], numbers: Mapping[str, int]) -> list[Block]:
    sentences, alignments, languages = [], [], dict[str, int]()
    for records in results.values():
        drawn = {kind: {name: own for name, own in records.items() if own["test"] == kind} for kind in DRAWN}
        sentences += [scatter_chart(name, own["values"], languages) for name, own in drawn["scatter"].items()]
        alignments += [alignment_chart(drawn["alignment"], numbers)] if drawn["alignment"] else []
    legend = {language_name(code): (style(i)[0], "dot") for code, i in languages.items()}
    return [Block(charts=sentences, legend=legend), Block(charts=alignments)]


def _data(runs: Sequence[Run]) -> list[Block]:
    """Return for each different data set which runs have it, a table of its splits, and what cleaning counted."""
    found = dict[tuple[Any, str], list[str]]()
    for run in runs:
        for part, facts in run.data.items():
            found.setdefault(facts, []).append(f"{run.name} {part}".strip())
    header = ["split", "rows", "subwords", "mean length"]
    return [Block(", ".join(names), header, rows, note=note) for (rows, note), names in found.items()]


def _overlap(results: Mapping[str, Records], models: Sequence[str]) -> list[Block]:
    rows = [[test, *(_counted(records.get(name)) for name in models)] for test, records in results.items()]
    rows = [row for row in rows if any(row[1:])]
    note = "Test examples with a sentence that is also in the training text." if rows else ""
    return [Block("", ["test", *models], rows, note=note)]


def _counted(record: Mapping[str, Any] | None) -> tuple[str, str] | str:
    if not record or not (overlap := record["overlap"]):
        return ""
    counted = "unknown" if overlap["found"] is None else f"{overlap['found']:,} of {overlap['total']:,}"
    return counted, "left out" if overlap["dropped"] else ""


def _versions(runs: Sequence[Run], results: Mapping[str, Records]) -> list[Block]:
    """Return the versions at the last launch of each run, and those of the evaluations."""
    found = {run.name: run.launches[-1].get("versions", {}) for run in runs if run.launches}
    packages = dict.fromkeys(package for versions in found.values() for package in versions)
    rows = [[package, *(own.get(package, "") for own in found.values())] for package in packages]
    measured = sorted({own["version"] for records in results.values() for own in records.values()})
    by = f" The evaluations are of xrep {', '.join(measured)}." if measured else ""
    return [Block("", ["", *found], rows, "versions"), Block(note=f"This page is of xrep {__version__}.{by}")]
