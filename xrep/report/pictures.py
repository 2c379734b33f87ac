"""The pictures of a report: alignment and uniformity of all models together, and the projected sentences of each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from xrep.report.charts import COLOURS, point_chart
from xrep.report.runs import is_number
from xrep.text.languages import name as language_name


def pictures(results: Mapping[str, Mapping[str, Mapping[str, Any]]], numbers: Mapping[str, int]) -> str:
    """Return the pictures of the records of ``xrep-eval alignment`` and ``xrep-eval scatter``; empty if there are none.

    Args:
        results: Test -> model -> record.
        numbers: The number, and so the colour, of each model.
    """
    alignments, sentences, languages = [], [], dict[str, int]()
    for records in results.values():
        kind = next(iter(records.values()))["test"]
        if kind == "alignment":
            alignments.append(_alignment(records, numbers))
        elif kind == "scatter":
            sentences += [_scatter(name, record["values"], languages) for name, record in records.items()]
    grids = [f'<div class="charts">{charts}</div>' for charts in map("".join, (sentences, alignments)) if charts]
    return (_legend(languages) if languages else "") + "".join(grids)


def _alignment(records: Mapping[str, Mapping[str, Any]], numbers: Mapping[str, int]) -> str:
    points, lines, pairs = [], [], ""
    for name, record in records.items():
        values = record["values"]
        measured = values.get("checkpoints")
        line = []
        for own in measured if isinstance(measured, list) else [values]:
            x, y = (own.get(loss) if isinstance(own, dict) else None for loss in ("uniformity", "alignment"))
            if is_number(x) and is_number(y):
                step = f", step {own['step']}" if is_number(own.get("step")) else ""
                points.append((x, y, numbers[name], f"{name}{step}\nalignment {y:.4f}\nuniformity {x:.4f}"))
                line.append((x, y))
        if len(line) > 1:
            lines.append((line, numbers[name]))
        pairs = str(values.get("pairs", pairs))
    if not points:
        return ""
    labels, title = ("uniformity", "alignment"), f"alignment and uniformity on {pairs} (lower is better)"
    return point_chart(title, points, [line for line, _ in lines], labels, [number for _, number in lines])


def _scatter(name: str, values: Mapping[str, Any], languages: dict[str, int]) -> str:
    """Return the chart of a record, and add its languages with their numbers."""
    sentences, given = ([*own] if isinstance(own := values.get(key), list) else [] for key in ("sentences", "points"))
    rows = {str(i): row for i, row in enumerate(sentences, start=1)}
    places: dict[str, list[tuple[str, float, float]]] = {}
    points = []
    for point in given:
        language, label, x, y = (point.get(key) if isinstance(point, dict) else None for key in
                                 ("language", "label", "x", "y"))  # fmt: skip
        if not (isinstance(language, str) and is_number(x) and is_number(y)):
            continue
        row = rows.get(str(label), {})
        text = row.get(language, label) if isinstance(row, dict) else label
        number = languages.setdefault(language, len(languages))
        points.append((x, y, number, f"{language_name(language)}: {text}"))
        if row:
            places.setdefault(str(label), []).append((language, x, y))
    if not points:
        return ""
    lines = []
    for row in places.values():
        hub = next((own for own in row if own[0] == "en"), row[0])
        lines += [[hub[1:], own[1:]] for own in row if own is not hub]
    share = values.get("explained")
    kept = f", {100 * share:.0f}% of the variance" if is_number(share) else ""
    return point_chart(f"{name}: sentences and their translations{kept}", points, lines)


def _legend(languages: Mapping[str, int]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 26 10"><circle cx="13" cy="5" r="4.5" style="fill:var(--series-{number % COLOURS})"/>'
        f"</svg>{escape(language_name(code))}</li>"
        for code, number in languages.items()
    )
    return f'<ul class="legend">{items}</ul>'
