"""The page of a report: one HTML file that needs nothing else, with a table or a picture for each thing to compare.

This module says what is on the page, and the template ``page.html`` how it looks. A section has blocks, each a mapping
with some of the keys ``heading``, ``rows`` of a table, after its header, ``kind`` of the table, ``note``, ``charts``,
``legend`` and ``folded`` (opened by a click on the heading). A cell is a chart, or a text whose second line is small.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from xrep.evaluation.runner import comparison
from xrep.progress import duration
from xrep.report.pictures import Point, alignment_chart, chart, number, scatter_chart, style
from xrep.report.runs import Run
from xrep.text.languages import name as language_name
from xrep.version import __version__

Records = Mapping[str, Mapping[str, Any]]
Block = dict[str, Any]
_MAIN = ("loss", "accuracy")  # curves of training that are always shown; the others can be opened
_INTERVALS = (
    "In brackets: 95% bootstrap intervals over the examples of the test. They do not cover what another seed of "
    "training would change. Differences: from the first run, of what the report itself has measured, by a paired "
    "bootstrap, which draws the same examples for both."
)


def render(runs: Sequence[Run], results: Mapping[str, Records], failed: Sequence[str] = ()) -> str:
    """Return the page as HTML, with ``results`` of evaluations, test -> model -> record (``read_results``), and lines
    about what could not be measured."""
    names = [run.name for run in runs]
    models = list(dict.fromkeys([*names, *(name for records in results.values() for name in records)]))
    numbers = {name: i for i, name in enumerate(models)}
    sections = {
        "Runs": _runs(runs),
        "Options": _options(runs),
        "Curves": _curves(runs, numbers),
        "Evaluations": [*_evaluations(results, numbers), *({"note": f"Not measured: {line}"} for line in failed)],
        "Pictures": _pictures(results, numbers),
        "Data": _data(runs),
        "Overlap with the training text": _overlap(results, models),
        "Launches": _launches(runs),
        "Versions": _versions(runs, results),
    }
    template = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template("page.html")
    title = f"Report of {names[0]}" if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    return template.render(title=title, sections=sections, models={name: style(i) for name, i in numbers.items()})


def _table(corner: str, columns: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """Return the rows of a table of columns by name, one for each key of any of them, after the header."""
    keys = dict.fromkeys(key for column in columns.values() for key in column)
    return [[corner, *columns], *([key, *(column.get(key, "") for column in columns.values())] for key in keys)]


def _runs(runs: Sequence[Run]) -> list[Block]:
    rows = [["run", "objective", "steps", "examples", "time", "best validation", "state"]]
    for run in runs:
        steps = max((curve[-1][0] for curve in run.curves.values()), default=0)
        facts = [str(steps), "", "", "", "not finished"]
        if run.summary:
            end, best = run.summary, run.summary["best"]
            shown = "" if best["value"] is None else f"{best['metric']} {number(best['value'])}\nstep {best['step']}"
            facts = [str(end["steps"]), f"{end['examples']:,}", duration(end["train_seconds"]), shown, "finished"]
        rows.append([f"{run.name}\n{run.path}", run.objective, *facts])
    return [{"rows": rows}, *({"note": line} for run in runs for line in run.damaged)]


def _options(runs: Sequence[Run]) -> list[Block]:
    header, *rows = _table("option", {run.name: run.options for run in runs})
    common = set.intersection(*(set(run.options) for run in runs)) if len(runs) > 1 else set[str]()
    # Of a part that other runs do not have, only what is changed is a difference: its defaults are not.
    differing = set[str]().union(*(run.changed for run in runs)) - common
    differing |= {row[0] for row in rows if len({run.options[row[0]] for run in runs if row[0] in run.options}) > 1}
    chosen = [row for row in rows if row[0] in differing]
    told = "differ between the runs" if len(runs) > 1 else "are not at their defaults"
    note = f"{'Options that' if chosen else 'No options'} {told}."
    everything = {"heading": f"All {len(rows)} options", "rows": [header, *rows], "kind": "code", "folded": True}
    return [{"rows": [header, *chosen], "kind": "code", "note": note}, everything]


def _curves(runs: Sequence[Run], numbers: Mapping[str, int]) -> list[Block]:
    """Return the curves that are always shown, a table of values that were recorded once, and the other curves. The
    losses of different objectives cannot be compared, so each objective has a chart of its own."""
    main, more, once = list[Any](), list[Any](), {run.name: dict[str, str]() for run in runs}
    for kind, name in sorted(dict.fromkeys(key for run in runs for key in run.curves), key=itemgetter(0)):
        title, groups = f"{kind}: {name.replace('_', ' ')}", dict[str, dict[int, list[Point]]]()
        for run in runs:
            curve = run.curves.get((kind, name), [])
            points = [(step, value, f"{run.name}, step {step}: {number(value)}") for step, value in curve]
            if len(curve) == 1:
                once[run.name][title] = f"{number(curve[0][1])}\nstep {curve[0][0]}"
            elif curve:
                groups.setdefault(run.objective if "loss" in name else "", {})[numbers[run.name]] = points
        for objective, curves in groups.items():
            whole = f"{title} of {objective}" if len(groups) > 1 else title
            (main if kind == "validation" or name in _MAIN else more).append(chart(whole, "curves", curves))
    nothing = "" if main or more or any(once.values()) else "No record of training yet."
    rows = _table("recorded once", once)
    folded = {"heading": f"{len(more)} more curves", "charts": more, "folded": True}
    return [{"charts": main, "note": nothing}, {"rows": rows, "kind": "once"}, folded]


def _evaluations(results: Mapping[str, Records], numbers: Mapping[str, int]) -> Iterator[Block]:
    """Yield the figures by which each test is quoted, and all figures of its tables, such as languages."""
    if results:
        yield {"note": _INTERVALS}
    for test, records in results.items():
        differences = {name: each["differences"] for name, each in records.items() if "differences" in each}
        header, *rows = [[cell.replace(" [", "\n[") for cell in row] for row in comparison(records, differences)]
        if len(records) > 1:
            rows = [[*row, _intervals(dict(zip(header, row, strict=True)), records, numbers)] for row in rows]
            header.append("")
        yield {"heading": test, "rows": [header, *rows]}
        if other := _other_settings(records):
            yield {"note": f"The settings differ: {other}"}
        details = {model: dict[str, str]() for model in records}
        for model, record in records.items():
            for name, values in record["values"].get("tables", {}).items():
                shown = {figure: value for figure, value in values.items() if isinstance(value, float)}
                details[model] |= {f"{name}: {figure}": f"{value:.2f}" for figure, value in shown.items()}
        figures = _table("", details)
        yield {"heading": f"All {len(figures) - 1} figures", "rows": figures, "folded": True}


def _other_settings(records: Records) -> str:
    """Return the settings of each model in which they differ, such as the margin; nothing if they do not."""
    settings = {name: record["settings"] for name, record in records.items()}
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    other = [key for key in keys if len({str(own.get(key)) for own in settings.values()}) > 1]
    told = (f"{name}: {', '.join(f'{key} {own.get(key)}' for key in other)}" for name, own in settings.items())
    return "; ".join(told) if other else ""


def _intervals(texts: Mapping[str, str], records: Records, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return a small chart of a row of a table: a figure of all models, one below the other, with its intervals."""
    points, figure = dict[int, list[Point]](), texts["figure"]
    for name, record in records.items():
        if figure in record["headline"]:
            ends = [record["headline"][figure], *record["intervals"].get(figure, ())]
            points[numbers[name]] = [(x, -len(points), f"{name}: {texts[name]}") for x in ends]
    return chart("", "rows", points)


def _pictures(results: Mapping[str, Records], numbers: Mapping[str, int]) -> list[Block]:
    tests = [(next(iter(records.values()))["test"], records) for records in results.values()]
    scatters = [
        (name, each["values"]) for kind, records in tests if kind == "scatter" for name, each in records.items()
    ]
    languages = list(dict.fromkeys(point["language"] for _, values in scatters for point in values["points"]))
    sentences = [scatter_chart(name, values, languages) for name, values in scatters]
    legend = {language_name(language): style(i) for i, language in enumerate(languages)}
    alignments = [alignment_chart(records, numbers) for kind, records in tests if kind == "alignment"]
    return [{"charts": sentences, "legend": legend}, {"charts": alignments}]


def _data(runs: Sequence[Run]) -> list[Block]:
    """Return for each different data set which runs have it, a table of its splits, and what cleaning counted."""
    found, blocks = dict[str, list[str]](), list[Block]()
    for run in runs:
        for part, facts in run.data.items():
            found.setdefault(json.dumps(facts), []).append(f"{run.name} {part}".strip())
    for facts, having in ((json.loads(text), names) for text, names in found.items()):
        rows = [["split", "rows", "subwords", "mean length"]]
        for split, corpora in facts.get("splits", {}).items():
            for corpus in corpora:
                count, tokens = corpus["rows"], corpus["tokens"]
                sides = corpus.get("languages") or list(tokens)
                mean = sum(tokens.values()) / max(1, count * len(tokens))
                subwords = ", ".join(f"{side} {number:,}" for side, number in zip(sides, tokens.values(), strict=True))
                rows.append([f"{split} {'-'.join(sides)}", f"{count:,}", subwords, f"{mean:.1f}"])
        steps = sum(map(Counter, facts.get("cleaning", {}).values()), Counter[str]())
        counted = ", ".join(f"{count:,} {step}" for step, count in steps.items())
        note = f"Cleaning, all files together: {counted}." if counted else ""
        blocks.append({"heading": ", ".join(having), "rows": rows, "note": note})
    return blocks


def _overlap(results: Mapping[str, Records], models: Sequence[str]) -> list[Block]:
    columns = {model: dict[str, str]() for model in models}
    for test, records in results.items():
        for model, overlap in ((model, record["overlap"]) for model, record in records.items() if record["overlap"]):
            counted = "unknown" if overlap["found"] is None else f"{overlap['found']:,} of {overlap['total']:,}"
            columns[model][test] = counted + ("\nleft out" if overlap["dropped"] else "")
    note = "Test examples with a sentence that is also in the training text."
    return [{"rows": _table("test", columns), "note": note}] if any(columns.values()) else []


def _launches(runs: Sequence[Run]) -> list[Block]:
    rows = [["run", "steps", "began", "host", "device", "end", "command"]]
    for name, launch in ((run.name, launch) for run in runs for launch in run.launches):
        facts = [launch.get(key) or "?" for key in ("time", "host", "device", "how", "command")]
        rows.append([name, f"{launch['step']} to {launch.get('until', '?')}", *facts])
    return [{"rows": rows, "kind": "launches"}]


def _versions(runs: Sequence[Run], results: Mapping[str, Records]) -> list[Block]:
    """Return the versions at the last launch of each run, and those of the evaluations."""
    rows = _table("", {run.name: run.launches[-1].get("versions", {}) for run in runs if run.launches})
    measured = sorted({record["version"] for records in results.values() for record in records.values()})
    by = f" The evaluations are of xrep {', '.join(measured)}." if measured else ""
    return [{"rows": rows, "kind": "versions", "note": f"This page is of xrep {__version__}.{by}"}]
