"""Charts as SVG for a page: their colours follow the page, and a script of the page shows the values under the pointer.

Every text is escaped here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 360, 220
"""Size of a chart in pixels of a phone, so that its letters are readable there; wider pages have several columns."""
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 12, 36
COLOURS, DASHES = 8, ("", "7 3", "2 3")
"""Number of colours that the page defines. Further series have the same colours with other dashes."""


@dataclass(frozen=True)
class Axis:
    """A linear axis from ``low`` to ``high``, which are at the pixels ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, margin: float = 0.0) -> Axis:
        """Return an axis that holds the values, with a share of their range as a margin on both sides."""
        low, high = min(values), max(values)
        is_wide = high - low > 1e-9 * max(abs(low), abs(high), 1e-200)
        spare = (high - low) * margin if is_wide else abs(high) * 0.05 or 1.0
        return cls(low - spare, high + spare, start, end)

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        """Return at most ``most`` + 1 round numbers within the axis."""
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """Return a number with four significant digits, and the thousands of a large one as k, M or G."""
    if value == int(value) and abs(value) < 10_000:
        return str(int(value))
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * unit or (abs(value) >= unit and unit > 1e3):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def line_style(number: int) -> str:
    """Return the attributes of the line of a series."""
    dashes = DASHES[number // COLOURS % len(DASHES)]
    return f'style="stroke:var(--series-{number % COLOURS})"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def fill_style(number: int) -> str:
    """Return the attributes of the points of a series."""
    return f'style="fill:var(--series-{number % COLOURS})"'


def line_chart(title: str, curves: Mapping[str, Sequence[tuple[float, float]]], numbers: Mapping[str, int]) -> str:
    """Return curves of values over steps. ``numbers`` gives each name its colour."""
    points = [point for curve in curves.values() for point in curve]
    x = Axis.around([step for step, _ in points], LEFT, WIDTH - RIGHT)
    y = Axis.around([value for _, value in points], HEIGHT - BOTTOM, TOP, 0.05)
    drawn = []
    for name, curve in curves.items():
        places = [f"{x(step)},{y(value)}" for step, value in curve]
        if len(places) == 1:
            drawn.append(_circle(x(curve[0][0]), y(curve[0][1]), numbers[name], 4))
        else:
            drawn.append(f'<polyline points="{" ".join(places)}" {line_style(numbers[name])}/>')
    series = [
        {"name": name, "colour": numbers[name] % COLOURS, "points": [[s, v, x(s), y(v)] for s, v in curve]}
        for name, curve in curves.items()
    ]
    data = f'data-series="{escape(json.dumps(series))}" data-x="step"'
    return _figure(title, _axes(x, y, "step") + "".join(drawn) + '<line class="cursor"/>', data)


def point_chart(
    title: str,
    points: Sequence[tuple[float, float, int, str]],
    lines: Iterable[Sequence[tuple[float, float]]] = (),
    labels: tuple[str, str] | None = None,
    line_series: Sequence[int] = (),
) -> str:
    """Return a chart of points (x, y, number of the series, text under the pointer) and of lines behind them.

    Args:
        labels: Names of the axes. None: the axes have no scale, and a unit is as long on both.
        line_series: Number of the series of each line; grey if there are none.
    """
    left, bottom = (LEFT, BOTTOM) if labels else (RIGHT, TOP)
    x = Axis.around([point[0] for point in points], left, WIDTH - RIGHT, 0.08)
    y = Axis.around([point[1] for point in points], HEIGHT - bottom, TOP, 0.08)
    if labels is None:
        unit = max((x.high - x.low) / (x.end - x.start), (y.high - y.low) / (y.start - y.end))
        x, y = (
            Axis(middle - half, middle + half, axis.start, axis.end)
            for axis in (x, y)
            for middle, half in [((axis.low + axis.high) / 2, unit * abs(axis.end - axis.start) / 2)]
        )
    drawn = []
    for i, line in enumerate(lines):
        places = " ".join(f"{x(a)},{y(b)}" for a, b in line)
        style = line_style(line_series[i]) if line_series else 'class="link"'
        drawn.append(f'<polyline points="{places}" {style}/>')
    drawn += [_circle(x(a), y(b), number, 4 if labels else 3.5, tip) for a, b, number, tip in points]
    return _figure(title, (_axes(x, y, *labels) if labels else "") + "".join(drawn))


def interval_chart(rows: Sequence[tuple[float, tuple[float, float] | None, int, str]]) -> str:
    """Return a small chart of figures below each other, (value, interval, number of the series, text) each."""
    values = [value for row in rows for value in (row[0], *(row[1] or ()))]
    height, x = 10 * len(rows) + 2, Axis.around(values, 6, 134)
    drawn = []
    for i, (value, span, number, tip) in enumerate(rows):
        middle = 10 * i + 6
        if span:
            ends = f'x1="{x(span[0])}" x2="{x(span[1])}" y1="{middle}" y2="{middle}"'
            drawn.append(f"<line {ends} {line_style(number)}/>")
        drawn.append(_circle(x(value), middle, number, 3.5, tip))
    return f'<svg class="intervals" viewBox="0 0 140 {height}" width="140" height="{height}">{"".join(drawn)}</svg>'


def _circle(x: float, y: float, number: int, radius: float, tip: str = "") -> str:
    told = f' data-tip="{escape(tip)}" tabindex="0"' if tip else ""
    return f'<circle cx="{x}" cy="{y}" r="{radius}" {fill_style(number)}{told}/>'


def _axes(x: Axis, y: Axis, x_label: str, y_label: str = "") -> str:
    drawn = []
    for value in y.ticks(6):
        ends = f'x1="{x.start}" x2="{x.end}" y1="{y(value)}" y2="{y(value)}"'
        drawn.append(f'<line class="grid" {ends}/><text x="{x.start - 5}" y="{y(value) + 4}">{shown(value)}</text>')
    for value in x.ticks(4):
        drawn.append(f'<text class="below" x="{x(value)}" y="{y.start + 14}">{shown(value)}</text>')
    drawn.append(f'<text x="{x.end}" y="{y.start + 29}">{escape(x_label)}</text>')
    drawn.append(f'<text class="name" x="4" y="{y.end - 3}">{escape(y_label)}</text>' if y_label else "")
    return "".join(drawn)


def _figure(title: str, content: str, data: str = "") -> str:
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" {data}>{content}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"
