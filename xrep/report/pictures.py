"""The pictures of a report, drawn by matplotlib as SVG: the same input gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.style import context

from xrep.text.languages import name as language_name

COLOURS = ("#0b66c3", "#d0470c", "#0a7d58", "#9333b0", "#c2255c", "#5f7400", "#0b7c90", "#7a5230")
DASHES = ("solid", "dashed", "dotted")  # series beyond the colours have these again with other dashes
_LABELS = {"curves": ("step", ""), "alignment": ("uniformity", "alignment")}
_METADATA = ("Creator", "Date", "Format", "Type")  # all that matplotlib would write
_FAINT = "#62666d"
_STYLE = {
    "axes.grid": True, "axes.grid.axis": "y", "axes.labelcolor": _FAINT, "font.size": 11, "grid.alpha": 0.2,
    "grid.color": "#808080", "lines.linewidth": 1.8, "lines.markersize": 7, "svg.fonttype": "none",
    "xtick.color": _FAINT, "ytick.color": _FAINT, "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip
Point = tuple[float, float]
Tip = tuple[float, float, str]  # a point, and the text that the page shows under the pointer


class Series(NamedTuple):
    """Points, and a line through others, in the colour of a number."""

    number: int
    points: Sequence[Point] = ()
    line: Sequence[Point] = ()


def style(number: int) -> tuple[str, str]:
    """Return the colour of a series and the kind of its line."""
    return COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]


def number(value: float) -> str:
    """Return a number with five significant digits, and those above 10,000 in full."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def line_chart(title: str, curves: Mapping[str, Sequence[Point]], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return curves of values over steps; the text of each step has the nearest value of every curve. ``numbers`` gives
    each name its colour."""
    tips = list[Tip]()
    for step, height in dict(point for curve in curves.values() for point in curve).items():
        nearest = {name: min(curve, key=lambda point: abs(point[0] - step)) for name, curve in curves.items()}
        lines = [f"{name}, step {own}: {number(value)}" for name, (own, value) in nearest.items()]
        tips.append((step, height, "\n".join(lines)))
    series = [Series(numbers[name], line=curve) for name, curve in curves.items()]
    return chart(title, "curves", series, tips)


def alignment_chart(records: Mapping[str, Mapping[str, Any]], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return alignment and uniformity of all models, of runs those of every checkpoint."""
    series, tips, pairs = list[Series](), list[Tip](), ""
    for name, record in records.items():
        pairs, checkpoints = record["values"]["pairs"], record["values"].get("checkpoints", [record["values"]])
        points = [(own["uniformity"], own["alignment"]) for own in checkpoints]
        series.append(Series(numbers[name], points, points))
        for (x, y), own in zip(points, checkpoints, strict=True):
            step = f", step {own['step']}" if "step" in own else ""
            tips.append((x, y, f"{name}{step}\nalignment {y:.4f}\nuniformity {x:.4f}"))
    title = f"alignment and uniformity on {pairs} (lower is better)"
    return chart(title, "alignment", series, tips)


def scatter_chart(name: str, values: Mapping[str, Any], languages: Sequence[str]) -> dict[str, Any]:
    """Return the sentences of a record in the colours of ``languages``, with lines between translations."""
    sentences = {str(i): row for i, row in enumerate(values["sentences"], start=1)}
    points, translations, tips = {language: [] for language in languages}, dict[str, dict[str, Point]](), list[Tip]()
    for own in values["points"]:
        language, label, point = own["language"], own["label"], (own["x"], own["y"])
        points[language].append(point)
        tips.append((*point, f"{language_name(language)}: {sentences.get(label, {}).get(language, label)}"))
        if label in sentences:
            translations.setdefault(label, {})[language] = point
    links = [(own.get("en", [*own.values()][0]), point) for own in translations.values() for point in own.values()]
    share = "" if values["explained"] is None else f", {100 * values['explained']:.0f}% of the variance"
    title = f"{name}: sentences and their translations{share}"
    return chart(title, "places", [Series(i, own) for i, own in enumerate(points.values())], tips, links)


def interval_chart(
    figure: str, records: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str], numbers: Mapping[str, int]
) -> dict[str, Any]:
    """Return a small chart of a figure of all models, one below the other, with its intervals, which are in ``texts``,
    too."""
    series, tips = list[Series](), list[Tip]()
    for name, record in records.items():
        if figure in record["headline"]:
            point, bounds = (record["headline"][figure], -len(series)), record["intervals"].get(figure, ())
            series.append(Series(numbers[name], [point], [(bound, point[1]) for bound in bounds]))
            tips.append((*point, f"{name}: {texts[name]}"))
    return chart("", "rows", series, tips)


def chart(
    title: str, kind: str, series: Sequence[Series], tips: Sequence[Tip], links: Sequence[Sequence[Point]] = ()
) -> dict[str, Any]:
    """Return a chart of a kind as the page shows it. Its ``tips`` are at places in percent of its width and height.

    Args:
        kind: curves or alignment, whose axes have a scale; places, where a unit is as long on both axes; or rows, a
            small chart whose series are at y = 0, -1, -2, ...
        links: Grey lines behind the points.
    """
    labels, are_rows = _LABELS.get(kind), kind == "rows"
    width, height = (140, 10 * len(series) + 2) if are_rows else (360, 220)  # of a phone, where letters are readable
    with context({**_STYLE, "svg.hashsalt": title}, after_reset=True):  # whatever a user's matplotlibrc says
        figure = Figure((width / 72, height / 72), dpi=72, layout="constrained" if labels else None)
        axes = figure.add_subplot(frameon=False) if labels else figure.add_axes((0.02, 0, 0.96, 1))
        for link in links:
            axes.plot(*zip(*link, strict=True), color=_FAINT, linewidth=0.8, alpha=0.55)
        for own in series:
            colour, dashes = style(own.number)
            axes.plot(*zip(*own.line, strict=True), color=colour, linestyle=dashes)
            marker = {"linestyle": "", "marker": "o", "markeredgecolor": "white", "markeredgewidth": 0.8}
            axes.plot(*zip(*own.points, strict=True), color=colour, clip_on=False, **marker)
        if labels:
            axes.set(xlabel=labels[0], ylabel=labels[1])
            axes.locator_params(nbins=5, steps=[1, 2, 5, 10])
            axes.locator_params("x", integer=kind == "curves")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(lambda value, _: number(value))
        else:
            axes.set_axis_off()
            axes.set_ylim(0.6 - len(series), 0.6) if are_rows else axes.set_aspect("equal", adjustable="datalim")
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
        percent = 100 * figure.transFigure.inverted().transform(axes.transData.transform([tip[:2] for tip in tips]))
    svg = file.getvalue()
    shown = [(round(x, 1), round(100 - y, 1), tip[2]) for (x, y), tip in zip(percent.tolist(), tips, strict=True)]
    return {"title": title, "kind": kind, "svg": svg[svg.index("<svg") :], "tips": shown}
