"""The pictures of a report, drawn by matplotlib as SVG: the same input gives the same bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.style import context

from xrep.report.runs import MOST_POINTS
from xrep.text.languages import name as language_name

COLOURS = ("#0b66c3", "#d0470c", "#0a7d58", "#9333b0", "#c2255c", "#5f7400", "#0b7c90", "#7a5230")
DASHES = ("solid", "dashed", "dotted")  # series beyond the colours have these again with other dashes
_LABELS = {"curves": ("step", ""), "alignment": ("uniformity", "alignment")}
_FAINT = "#62666d"
_STYLE = {
    "axes.grid": True, "axes.grid.axis": "y", "axes.labelcolor": _FAINT, "font.size": 11, "grid.alpha": 0.2,
    "grid.color": "#808080", "lines.linewidth": 1.8, "lines.markersize": 7, "lines.markeredgecolor": "white",
    "svg.fonttype": "none", "xtick.color": _FAINT, "ytick.color": _FAINT, "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # matplotlib writes none of them
Point = tuple[float, float, str]  # x, y, and the text that the page shows under the pointer


def style(number: int) -> tuple[str, str]:
    """Return the colour of a series and the kind of its line."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def number(value: float) -> str:
    """Return a number with five significant digits, and those above 10,000 in full."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def alignment_chart(records: Mapping[str, Mapping[str, Any]], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return alignment and uniformity of all models, of runs those of every checkpoint. ``numbers`` gives each name its
    colour."""
    points, pairs = dict[int, list[Point]](), ""
    for name, record in records.items():
        pairs = record["values"]["pairs"]
        for figures in record["values"].get("checkpoints", [record["values"]]):
            step = f", step {figures['step']}" if "step" in figures else ""
            text = f"{name}{step}\nalignment {figures['alignment']:.4f}\nuniformity {figures['uniformity']:.4f}"
            points.setdefault(numbers[name], []).append((figures["uniformity"], figures["alignment"], text))
    return chart(f"alignment and uniformity on {pairs} (lower is better)", "alignment", points)


def scatter_chart(name: str, values: Mapping[str, Any], languages: Sequence[str]) -> dict[str, Any]:
    """Return the sentences of a record in the colours of ``languages``, with lines between translations."""
    sentences = {str(i): row for i, row in enumerate(values["sentences"], start=1)}
    points, translations = dict[int, list[Point]](), dict[str, dict[str, Point]]()
    for one in values["points"]:
        language, label = one["language"], one["label"]
        text = f"{language_name(language)}: {sentences.get(label, {}).get(language, label)}"
        point = one["x"], one["y"], text
        points.setdefault(languages.index(language), []).append(point)
        if label in sentences:  # it is no token
            translations.setdefault(label, {})[language] = point
    links = [(one.get("en", [*one.values()][0]), point) for one in translations.values() for point in one.values()]
    share = "" if values["explained"] is None else f", {100 * values['explained']:.0f}% of the variance"
    return chart(f"{name}: sentences and their translations{share}", "places", points, links)


def chart(
    title: str, kind: str, points: Mapping[int, Sequence[Point]], links: Sequence[Sequence[Point]] = ()
) -> dict[str, Any]:
    """Return a chart as the page shows it. Its ``tips`` are at places in percent of its width and height.

    Args:
        kind: ``curves`` and ``alignment`` have lines on axes with a scale. Of ``places``, a unit is as long on both
            axes. ``rows`` is a small chart of intervals at y = 0, -1, -2, ..., which begin with the value itself.
        points: Number of a colour -> points.
        links: Grey lines between points.
    """
    labels, are_rows = _LABELS.get(kind), kind == "rows"
    width, height = (140, 10 * len(points) + 2) if are_rows else (360, 220)  # of a phone, where letters are readable
    with context({**_STYLE, "svg.hashsalt": title}, after_reset=True):  # whatever a user's matplotlibrc says
        figure = Figure((width / 72, height / 72), dpi=72, layout="constrained" if labels else None)
        axes = figure.add_subplot(frameon=False) if labels else figure.add_axes((0.02, 0, 0.96, 1))
        for link in links:
            axes.plot(*[*zip(*link, strict=True)][:2], color=_FAINT, linewidth=0.8, alpha=0.55)
        for series, its_points in points.items():
            (colour, dashes), (x, y, _) = style(series), zip(*its_points, strict=True)
            line, marker = "" if kind == "places" else dashes, "" if kind == "curves" else "o"
            every = [0] if are_rows else 1
            axes.plot(x, y, color=colour, linestyle=line, marker=marker, markevery=every, clip_on=False)
        if labels:
            axes.set(xlabel=labels[0], ylabel=labels[1])
            axes.locator_params(nbins=5, steps=[1, 2, 5, 10])
            axes.locator_params("x", integer=kind == "curves")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(lambda value, _: number(value))
        else:
            axes.set_axis_off()
            axes.set_ylim(0.6 - len(points), 0.6) if are_rows else axes.set_aspect("equal", adjustable="datalim")
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=_METADATA)
        tips = _of_steps(points.values()) if kind == "curves" else [point for each in points.values() for point in each]
        percent = (axes.transData - figure.transFigure).transform([tip[:2] for tip in tips]) * 100
    svg = file.getvalue()
    places = [(round(x, 1), round(100 - y, 1), tip[2]) for (x, y), tip in zip(percent.tolist(), tips, strict=True)]
    return {"title": title, "kind": kind, "svg": svg[svg.index("<svg") :], "tips": places}


def _of_steps(curves: Collection[Sequence[Point]]) -> list[Point]:
    """Return points of all steps, or of ``MOST_POINTS`` of them, whose texts have the nearest value of every curve."""
    steps, found = sorted({step: value for curve in curves for step, value, _ in curve}.items()), []
    for step, value in steps[:: math.ceil(len(steps) / MOST_POINTS)]:
        nearest = [min(curve, key=lambda point: abs(point[0] - step))[2] for curve in curves]
        found.append((step, value, "\n".join(nearest)))
    return found
