"""The page of a report: one HTML file that needs nothing else, with a table or a picture for each thing to compare.

The page loads nothing and runs only its own script, which its content security policy names by its hash. Texts from
files are escaped where they are put in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from xrep import __version__
from xrep.metrics.bootstrap import shown_difference
from xrep.progress import duration
from xrep.report.charts import interval_chart, line_chart, line_style, shown
from xrep.report.pictures import pictures
from xrep.report.runs import Run, is_number

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
_MAIN = ("loss", "accuracy")
"""Curves of training that are always shown; the others can be opened."""
_UNIMPORTANT = ("checkpoint.save_dir",)
"""Options that differ between any two runs."""


def render(runs: Sequence[Run], results: Results, failed: Sequence[str] = ()) -> str:
    """Return the page as HTML.

    Args:
        results: Results of evaluations, test -> model -> record (``read_results``).
        failed: Lines about what could not be measured.
    """
    models = list(dict.fromkeys([*(run.name for run in runs), *(name for own in results.values() for name in own)]))
    numbers = {name: i for i, name in enumerate(models)}
    title = f"Report of {runs[0].name}" if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    sections = {
        "Runs": _runs(runs),
        "Options": _options(runs),
        "Curves": _curves(runs, numbers),
        "Evaluations": _evaluations(results, numbers, failed),
        "Pictures": pictures(results, numbers),
        "Data": _data(runs),
        "Overlap with the training text": _overlap(results, models),
        "Launches": _launches(runs),
        "Versions": _versions(runs, results),
    }
    body = "".join(f"<section><h2>{name}</h2>{text}</section>" for name, text in sections.items() if text)
    style, script = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    chips = "".join(
        f'<li><svg viewBox="0 0 26 10"><line x1="1" x2="25" y1="5" y2="5" stroke-width="3" {line_style(i)}/></svg>'
        f"{escape(name)}</li>"
        for name, i in numbers.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body><main><h1>{escape(title)}</h1>"
        f'<ul class="legend runs">{chips}</ul>\n{body}\n</main><div id="tip" role="status"></div>'
        f"<script>{script}</script></body></html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "", numeric: bool = True) -> str:
    """Return a table of cells that are HTML already; the first column has the names of the rows."""
    side = ' class="number"' if numeric else ""
    head = "".join(f"<th{side if i else ''}>{cell}</th>" for i, cell in enumerate(header))
    body = "".join(f"<tr><th>{row[0]}</th>{''.join(f'<td{side}>{cell}</td>' for cell in row[1:])}</tr>" for row in rows)
    return f'<div class="table {kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _breakable(text: str) -> str:
    """Return escaped text with places where a long word may be broken."""
    return re.sub(r"([._/])", r"\1<wbr>", text)


def _text(value: Any) -> str:
    """Return a value of an option as escaped text."""
    return escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _runs(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        summary, best = run.summary, run.summary.get("best")
        best = best if isinstance(best, dict) and is_number(best.get("value")) else None
        steps = [step for own in run.curves.values() for curve in own.values() for step, _ in curve]
        seconds, examples = summary.get("train_seconds"), summary.get("examples")
        rows.append([
            f"{escape(run.name)}<br><span class=\"faint\">{escape(str(run.path))}</span>",
            _text(run.options.get("criterion.name", "several")),
            str(summary["steps"]) if is_number(summary.get("steps")) else f"{max(steps, default=0):.0f}",
            f"{examples:,}" if is_number(examples) else "",
            escape(duration(seconds)) if is_number(seconds) else "",
            f"{_text(best.get('metric'))} {shown(best['value'])}{_at_step(best)}" if best else "",
            "finished" if summary else "not finished",
        ])  # fmt: skip
    return table(["run", "objective", "steps", "examples", "time", "best validation", "state"], rows)


def _at_step(best: Mapping[str, Any]) -> str:
    return f"<small>step {best['step']}</small>" if is_number(best.get("step")) else ""


def _options(runs: Sequence[Run]) -> str:
    keys = list(dict.fromkeys(key for run in runs for key in run.options if key not in _UNIMPORTANT))
    values = {key: [run.options.get(key, "") for run in runs] for key in keys}
    rows = {key: [_breakable(escape(key)), *(_breakable(_text(value)) for value in own)] for key, own in values.items()}
    if len(runs) == 1:
        differing, told = [key for key in keys if key in runs[0].changed], "Options that are not at their defaults."
    else:
        differing = [key for key in keys if _differs(key, runs)]
        told = "Options that differ between the runs." if differing else "The runs have the same options."
    header = ["option", *(escape(run.name) for run in runs)]
    shown_rows = [rows[key] for key in differing]
    return (
        f'<p class="faint">{told}</p>'
        + (table(header, shown_rows, kind="code", numeric=False) if shown_rows else "")
        + f"<details><summary>All {len(keys)} options</summary>"
        + table(header, rows.values(), kind="code", numeric=False)
        + "</details>"
    )


def _differs(key: str, runs: Sequence[Run]) -> bool:
    """Return whether runs that have an option differ in it, or some run has it and has changed it. The defaults of a
    part that the other runs do not have are no difference of their own."""
    values = [run.options[key] for run in runs if key in run.options]
    changed = len(values) < len(runs) and any(key in run.changed for run in runs)
    return changed or any(value != values[0] for value in values)


def _curves(runs: Sequence[Run], numbers: Mapping[str, int]) -> str:
    drawn: dict[bool, list[str]] = {True: [], False: []}
    for kind in ("train", "valid"):
        names = list(dict.fromkeys(name for run in runs for name in run.curves.get(kind, {})))
        quoted = [best.get("metric") for run in runs if isinstance(best := run.summary.get("best"), dict)]
        for name in names:
            curves = {run.name: run.curves[kind][name] for run in runs if name in run.curves.get(kind, {})}
            is_main = name in _MAIN or (kind == "valid" and (name in quoted or len(names) <= 3))
            title = f"{'training' if kind == 'train' else 'validation'}: {name.replace('_', ' ')}"
            drawn[is_main].append(line_chart(title, curves, numbers))
    if not drawn[True] and not drawn[False]:
        return '<p class="faint">No record of training yet.</p>'
    more = f'<details><summary>{len(drawn[False])} more curves</summary><div class="charts">{"".join(drawn[False])}'
    return f'<div class="charts">{"".join(drawn[True])}</div>' + (f"{more}</div></details>" if drawn[False] else "")


def _evaluations(results: Results, numbers: Mapping[str, int], failed: Sequence[str]) -> str:
    texts = []
    for test, records in results.items():
        figures = list(dict.fromkeys(figure for record in records.values() for figure in record["headline"]))
        rows, differing = [], {name: own for name, record in records.items() if (own := record.get("differences"))}
        for figure in figures:
            own = {name: _figure(record, figure) for name, record in records.items()}
            known = [(*found, numbers[name], f"{name}: {_plain(*found)}") for name, found in own.items() if found]
            if known:
                cells = [_cell(*found) if found else "" for found in own.values()]
                cells += [
                    shown_difference(found) if (found := paired.get(figure)) else "" for paired in differing.values()
                ]
                rows.append([escape(figure), *cells, *([interval_chart(known)] if len(records) > 1 else [])])
        if rows:
            header = ["figure", *map(escape, records)]
            header += [f"{escape(name)} − {escape(next(iter(records)))}" for name in differing]
            header += [""] if len(records) > 1 else []
            texts.append(f"<h3>{escape(test)}</h3>{table(header, rows)}{_by_language(records)}")
    lines = "".join(f"<p>Not measured: {escape(line)}</p>" for line in failed)
    note = (
        '<p class="faint">In brackets: 95% bootstrap intervals over the examples of the test. They do not cover what '
        "another seed of training would change. Differences: of what the report itself has measured, by a paired "
        "bootstrap, which draws the same examples for both.</p>"
    )
    return (note if any("<small>" in text for text in texts) else "") + "".join(texts) + lines


def _figure(record: Mapping[str, Any], figure: str) -> tuple[float, tuple[float, float] | None] | None:
    value, span = record["headline"].get(figure), record["intervals"].get(figure)
    if not is_number(value):
        return None
    return value, (span[0], span[1]) if isinstance(span, list) and len(span) == 2 and all(
        map(is_number, span)
    ) else None


def _plain(value: float, span: tuple[float, float] | None) -> str:
    return f"{value:.2f}" + (f" [{span[0]:.2f}, {span[1]:.2f}]" if span else "")


def _cell(value: float, span: tuple[float, float] | None) -> str:
    return f"{value:.2f}" + (f"<small>[{span[0]:.2f}, {span[1]:.2f}]</small>" if span else "")


def _by_language(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figure of each language, or of each pair or subset, of a test that gives them; else nothing."""
    columns = {name: _languages(record["values"]) for name, record in records.items()}
    languages = list(dict.fromkeys(language for own in columns.values() for language in own))
    if len(languages) < 2:
        return ""
    rows = [[escape(code), *(f"{own[code]:.2f}" if code in own else "" for own in columns.values())]
            for code in languages]  # fmt: skip
    return f"<details><summary>{len(rows)} languages</summary>{table(['', *map(escape, columns)], rows)}</details>"


def _languages(values: Mapping[str, Any]) -> dict[str, float]:
    nested = values.get("languages")
    quoted = ("mean", str(values.get("metric")), "accuracy", "f1")
    found = {}
    for name, own in (nested if isinstance(nested, dict) else values).items():
        value = next((own[key] for key in quoted if key in own), None) if isinstance(own, dict) else None
        if is_number(value):
            found[name] = value
    return found


def _data(runs: Sequence[Run]) -> str:
    """Return a table of the pairs and subwords of each split for each different data set."""
    texts: dict[str, list[str]] = {}
    for run in runs:
        for part, facts in run.data.items():
            texts.setdefault(_statistics(facts), []).append(f"{run.name} {part}".strip())
    drawn = [f"<h3>{escape(', '.join(names))}</h3>{text}" for text, names in texts.items() if text]
    return "".join(drawn)


def _statistics(facts: Any) -> str:
    if not isinstance(facts, dict) or not isinstance(facts.get("splits"), dict):
        return ""
    rows = []
    for split, corpora in facts["splits"].items():
        for corpus in corpora if isinstance(corpora, list) else []:
            tokens = corpus.get("tokens") if isinstance(corpus, dict) else None
            if isinstance(tokens, dict) and is_number(corpus.get("rows")) and all(map(is_number, tokens.values())):
                sides = [f"{escape(name)} {shown(count)}" for name, count in tokens.items()]
                mean = sum(tokens.values()) / max(1, corpus["rows"] * len(tokens))
                counts = [f"{corpus['rows']:,}", ", ".join(sides), f"{mean:.1f}"]
                rows.append([f"{escape(split)} {escape('-'.join(tokens))}", *counts])
    cleaning = facts.get("cleaning")
    counted = [own for own in cleaning.values() if isinstance(own, dict)] if isinstance(cleaning, dict) else []
    steps = list(dict.fromkeys(step for own in counted for step, count in own.items() if is_number(count) and count))
    sums = {step: sum(own[step] for own in counted if is_number(own.get(step))) for step in steps}
    line = ", ".join(f"{count:,} {escape(step)}" for step, count in sums.items())
    body = table(["split", "rows", "subwords", "mean length"], rows) if rows else ""
    return body + (f'<p class="faint">Cleaning, all files together: {line}.</p>' if line else "")


def _overlap(results: Results, models: Sequence[str]) -> str:
    rows = []
    for test, records in results.items():
        cells = [_overlap_cell(records[name]["overlap"]) if name in records else "" for name in models]
        if any(cells):
            rows.append([escape(test), *cells])
    note = '<p class="faint">Test examples with a sentence that is also in the training text.</p>'
    return note + table(["test", *map(escape, models)], rows) if rows else ""


def _overlap_cell(overlap: Mapping[str, Any]) -> str:
    if not is_number(overlap.get("total")):
        return ""
    found = overlap.get("found")
    counted = f"{found:,} of {overlap['total']:,}" if is_number(found) else "unknown"
    return counted + ("<small>left out</small>" if overlap.get("dropped") else "")


def _launches(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        for launch in run.launches:
            steps = f"{_known(launch, 'step')} to {_known(launch, 'until')}"
            facts = [_known(launch, key) for key in ("time", "host", "device", "how", "command")]
            rows.append([escape(run.name), steps, *map(_breakable, facts)])
    header = ["run", "steps", "began", "host", "device", "end", "command"]
    return table(header, rows, kind="launches", numeric=False) if rows else ""


def _known(values: Mapping[str, Any], key: str) -> str:
    return _text(values[key]) if values.get(key) is not None else "?"


def _versions(runs: Sequence[Run], results: Results) -> str:
    """Return the versions at the last launch of each run, and those of the evaluations."""
    last = {run.name: run.launches[-1].get("versions") for run in runs if run.launches}
    found = {name: versions for name, versions in last.items() if isinstance(versions, dict)}
    packages = list(dict.fromkeys(package for versions in found.values() for package in versions))
    rows = [[escape(package), *(_text(own.get(package, "")) for own in found.values())] for package in packages]
    text = table(["", *map(escape, found)], rows, numeric=False) if rows else ""
    measured = {_text(own.get("version", "?")) for records in results.values() for own in records.values()}
    by = f" The evaluations are of xrep {', '.join(sorted(measured))}." if measured else ""
    return f'{text}<p class="faint">This page is of xrep {__version__}.{by}</p>'
