"""The pictures of a report, drawn by matplotlib as SVG: the page gives them their colours, and the same input gives the
same bytes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.ticker import FuncFormatter, MaxNLocator

from xrep.report.runs import Curve
from xrep.text.languages import name as language_name

COLOURS, DASHES = 8, ("solid", "dashed", "dotted")  # series beyond the page's colours have these with other dashes
_FAINT, _GRID, _CARD = "#f00d10", "#f00d11", "#f00d12"
"""Colours that stand for those of the page's style, as #f00d00, #f00d01, ... do for those of series."""
_OF_PAGE = {f"#f00d{i:02x}": f"series-{i}" for i in range(COLOURS)} | {_FAINT: "faint", _GRID: "grid", _CARD: "card"}
_STYLE = {
    "axes.grid": True, "axes.grid.axis": "y", "axes.labelcolor": _FAINT, "figure.dpi": 72,
    "font.size": 11, "font.sans-serif": ["DejaVu Sans"], "grid.color": _GRID, "lines.linewidth": 1.8,
    "lines.markersize": 7, "path.simplify": False, "svg.fonttype": "none", "xtick.color": _FAINT, "ytick.color": _FAINT,
    "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False, "axes.spines.bottom": False,
}  # fmt: skip


class Chart(NamedTuple):
    """A chart, and what is shown under the pointer: places in pixels and texts of each series, as JSON."""

    title: str
    svg: Markup
    series: str
    is_curves: bool  # whether the pointer shows the nearest value of each series, or else the nearest point


class Series(NamedTuple):
    """Points (x, y) with a text for each, and a line (x, y), in the colour of a number."""

    number: int
    points: list[tuple[float, float]]
    texts: list[str]
    line: Sequence[tuple[float, float]] = ()


def style(number: int) -> tuple[str, str]:
    """Return the colour of a series, a variable of the page, and the kind of its line."""
    return f"series-{number % COLOURS}", DASHES[number // COLOURS % len(DASHES)]


def number(value: float) -> str:
    """Return a number with five significant digits, and those above 10,000 in full."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def line_chart(title: str, curves: Mapping[str, Curve], numbers: Mapping[str, int]) -> Chart:
    """Return curves of values over steps. ``numbers`` gives each name its colour."""
    texts = {name: [f"{name}, step {step}: {number(value)}" for step, value in curve] for name, curve in curves.items()}
    series = [Series(numbers[name], curve, texts[name], curve) for name, curve in curves.items()]
    return chart(title, series, labels=("step", ""), is_curves=True)


def alignment_chart(records: Mapping[str, Mapping[str, Any]], numbers: Mapping[str, int]) -> Chart:
    """Return alignment and uniformity of all models, of runs those of every checkpoint."""
    series, pairs = [], ""
    for name, record in records.items():
        points, texts, pairs = [], [], record["values"]["pairs"]
        for own in record["values"].get("checkpoints", [record["values"]]):
            step = f", step {own['step']}" if "step" in own else ""
            points.append((own["uniformity"], own["alignment"]))
            texts.append(f"{name}{step}\nalignment {own['alignment']:.4f}\nuniformity {own['uniformity']:.4f}")
        series.append(Series(numbers[name], points, texts, points))
    title = f"alignment and uniformity on {pairs} (lower is better)"
    return chart(title, series, labels=("uniformity", "alignment"))


def scatter_chart(name: str, values: Mapping[str, Any], languages: dict[str, int]) -> Chart:
    """Return the sentences of a record, with lines between translations, and add its languages with their numbers."""
    sentences = {str(i): row for i, row in enumerate(values["sentences"], start=1)}
    places, series = dict[str, dict[str, tuple[float, float]]](), dict[str, Series]()
    for point in values["points"]:
        language, label = point["language"], str(point["label"])
        own = series.setdefault(language, Series(languages.setdefault(language, len(languages)), [], []))
        own.points.append((point["x"], point["y"]))
        own.texts.append(f"{language_name(language)}: {sentences.get(label, {}).get(language, label)}")
        if label in sentences:
            places.setdefault(label, {})[language] = own.points[-1]
    links = [(own.get("en", [*own.values()][0]), place) for own in places.values() for place in own.values()]
    share = "" if values["explained"] is None else f", {100 * values['explained']:.0f}% of the variance"
    return chart(f"{name}: sentences and their translations{share}", [*series.values()], links=links)


def chart(
    title: str,
    series: Sequence[Series],
    *,
    labels: Any = (),
    links: Any = (),
    is_curves: bool = False,
    rows: bool = False,
) -> Chart:
    """Return a chart of lines and points, with grey ``links`` behind the points. Without ``labels``, the axes have no
    scale, and a unit is as long on both; with ``rows`` it is a small one, whose series are at y = 0, -1, -2, ..."""
    width, height = (140, 10 * len(series) + 2) if rows else (360, 220)  # pixels of a phone, where letters are readable
    with context({**_STYLE, "svg.hashsalt": title}, after_reset=True):  # whatever a user's matplotlibrc says
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained" if labels else None)
        axes = figure.add_subplot() if labels else figure.add_axes((0.02, 0, 0.96, 1))
        for link in links:
            axes.plot(*zip(*link, strict=True), color=_FAINT, linewidth=0.8, alpha=0.55)
        for own in series:
            colour, dashes = f"#f00d{own.number % COLOURS:02x}", DASHES[own.number // COLOURS % len(DASHES)]
            axes.plot(*zip(*own.line or own.points, strict=True), color=colour, linestyle=dashes if own.line else "")
            if not is_curves:
                marker = {"linestyle": "", "marker": "o", "markeredgecolor": _CARD, "markeredgewidth": 0.8}
                axes.plot(*zip(*own.points, strict=True), color=colour, clip_on=False, **marker)
        if labels:
            axes.set(xlabel=labels[0], ylabel=labels[1])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=is_curves and axis is axes.xaxis))
                axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        else:
            axes.set_axis_off()
            axes.set_ylim(0.6 - len(series), 0.6) if rows else axes.set_aspect("equal", adjustable="datalim")
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        pixels = [axes.transData.transform(own.points).tolist() for own in series]
    svg = re.sub(r'^.*?(?=<svg)|<metadata>.*?</metadata>|(?<=<g) id="[^"]*"', "", file.getvalue(), flags=re.DOTALL)
    svg = re.sub(r"#f00d\w\w", lambda match: f"var(--{_OF_PAGE[match[0]]})", svg)
    places = [
        [[round(x, 1), round(height - y, 1), text] for (x, y), text in zip(points, own.texts, strict=True)]
        for points, own in zip(pixels, series, strict=True)
    ]
    return Chart(title, Markup(svg), json.dumps(places, ensure_ascii=False), is_curves)
