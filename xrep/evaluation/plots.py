"""Plots of results as PNG, SVG or PDF files by matplotlib (extra ``plot``), which is imported only when one is drawn.

A user's settings of matplotlib change nothing. Letters that its own font has not are drawn in fonts of the machine, so
such a plot may look otherwise on another one.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.languages import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROWS_PER_COLUMN = 30
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c")
"""Colours that colour-blind readers can distinguish (Okabe and Ito), and grey."""
_MARKERS, _HATCHES = "osD^vPX<>ph", ("", "////", "....")
"""11 markers: 11 and the number of colours (8) have no common factor, so 88 languages get different combinations."""
PICTURE_KINDS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The kinds of pictures by their suffix, and the metadata that would depend on the clock."""
_STYLE = {
    "axes.axisbelow": True, "axes.spines.right": False, "axes.spines.top": False, "axes.titlesize": 11,
    "figure.titlesize": 11, "grid.alpha": 0.5, "grid.linewidth": 0.5, "legend.fontsize": 8, "legend.frameon": False,
    "svg.hashsalt": "xrep",
}  # fmt: skip
"""Settings of matplotlib for every plot."""
_FONTS = re.compile("Noto Sans|Noto Serif|Droid Sans|WenQuanYi|Unifont")
"""Installed fonts in which matplotlib looks for the letters that its own font, DejaVu Sans, has not."""


def check_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib", cure="pip install 'xrep[plot]'")


@dataclass(frozen=True)
class Picture:
    """A file to draw into, whose suffix says the kind, and the model whose results are drawn, for a line below them.

    Raises:
        UserError: There is no such kind, or matplotlib is missing.
    """

    path: str | Path
    model: str = ""

    def __post_init__(self) -> None:
        check_matplotlib()
        if Path(self.path).suffix.lower() not in PICTURE_KINDS:
            cure = "give a name that ends with one of them"
            raise UserError(f"a plot is one of {', '.join(PICTURE_KINDS)}", path=self.path, cure=cure)

    @contextmanager
    def drawn(self, width: float, height: float, note: str = "") -> Iterator[Figure]:
        """Context manager that yields a figure with a size in inches, and writes it with a note and the model."""
        from matplotlib import font_manager
        from matplotlib.figure import Figure
        from matplotlib.style import context

        kind = Path(self.path).suffix.lower()
        fonts = ["DejaVu Sans", *sorted(filter(_FONTS.match, font_manager.get_font_names()))]
        with context({**_STYLE, "font.family": fonts}, after_reset=True), write_aside(self.path) as temporary:
            figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
            yield figure
            below = "\n".join(filter(None, (note, self.model)))
            figure.supxlabel(below, fontsize=7.5, color="#444444", parse_math=False)
            figure.savefig(temporary, format=kind[1:], metadata=PICTURE_KINDS[kind])


def _named(languages: Iterable[str]) -> list[str]:
    return [f"{name(language)} ({language})" for language in languages]


def _name_bars(axes: Axes, languages: Sequence[str], rows: int) -> None:
    axes.set_prop_cycle(color=_COLOURS)
    axes.set_yticks(range(len(languages)), _named(languages), fontsize=8)
    axes.set(xlim=(0, 100), ylim=(rows - 0.4, -0.6))
    axes.tick_params(axis="x", labelsize=8)


def _label(axes: Axes, point: tuple[float, float], text: str) -> None:
    """Write beside a point, with a white edge so that the text can be read on lines."""
    from matplotlib.patheffects import withStroke

    options = {"path_effects": [withStroke(linewidth=2, foreground="white")], "parse_math": False, "fontsize": 7.5}
    axes.annotate(text, point, (4, 4), textcoords="offset points", zorder=4, **options)


def plot_tatoeba(accuracies: Mapping[str, Any], averages: Mapping[str, float], picture: Picture) -> None:
    """Draw a bar for each direction of each language, best ``mean`` first, and write the averages below. Up to 30
    languages are in one column, more in several columns of the same height."""
    languages = sorted(accuracies, key=lambda language: (-accuracies[language]["mean"], name(language)))
    columns = math.ceil(len(languages) / _ROWS_PER_COLUMN)
    rows = math.ceil(len(languages) / columns)
    note = "    ".join(f"{average}: {value:.2f}" for average, value in averages.items())
    with picture.drawn(max(6.5, 3.6 * columns), 1.5 + 0.29 * rows, note) as figure:
        panels = figure.subplots(1, columns, squeeze=False)[0]
        for axes, start in zip(panels, range(0, len(languages), rows), strict=True):
            shown = languages[start : start + rows]
            _name_bars(axes, shown, rows)
            for offset, direction, label in ((-0.2, "xx-en", "xx → en"), (0.2, "en-xx", "en → xx")):
                values = [accuracies[language][direction] for language in shown]
                axes.barh(np.arange(len(shown)) + offset, values, height=0.4, label=label)
            for row, text in enumerate(["mean", *(f"{accuracies[language]['mean']:.1f}" for language in shown)], -1):
                axes.text(102, row, text, va="center", fontsize=7)
            axes.xaxis.grid(True)
        panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        figure.suptitle("Tatoeba: nearest neighbour is the translation (%)")


def plot_alignment(
    steps: Sequence[int | None], alignment: Sequence[float], uniformity: Sequence[float], pairs: str, picture: Picture
) -> None:
    """Draw alignment against uniformity: one point, whose step is None, or a run's checkpoints coloured by step."""
    with picture.drawn(6.4, 4.8) as figure:
        axes, points, is_run = figure.subplots(), list(zip(uniformity, alignment, strict=True)), steps[0] is not None
        colours: dict[str, Any] = {"c": steps, "cmap": "cividis"} if is_run else {"color": _COLOURS[0]}
        drawn = axes.scatter(uniformity, alignment, **colours, s=45, edgecolors="black", linewidths=0.6, zorder=3)
        arrow = {"arrowstyle": "-|>", "color": "#606060", "linewidth": 1, "shrinkA": 4, "shrinkB": 4}
        for start, end in itertools.pairwise(points):
            axes.annotate("", end, start, arrowprops=arrow, zorder=2)
        if is_run:
            figure.colorbar(drawn, label="step")
            for i in sorted({0, len(points) - 1}):
                _label(axes, points[i], f"step {steps[i]}")
        axes.margins(0.12)
        axes.set(xlabel="uniformity loss (lower is better)", ylabel="alignment loss (lower is better)")
        axes.set_title(f"Alignment and uniformity on {pairs}", parse_math=False)
        axes.grid(True)


def plot_language_bias(
    languages: Sequence[str], shares: Mapping[str, np.ndarray], title: str, picture: Picture
) -> None:
    """Draw which languages the neighbours of each query language are in, a panel for each of the ``shares``: title ->
    percent, [L, L], of which row i belongs to the queries in ``languages[i]``. The query's own language is outlined;
    with more than 16 languages, all others are together."""
    rows = np.arange(len(languages))
    with picture.drawn(10.5, 1.7 + max(0.3 * len(languages), 1.2)) as figure:
        panels = figure.subplots(1, len(shares), sharey=True)
        for axes, (panel, matrix) in zip(panels, shares.items(), strict=True):
            of_own, labels, columns = matrix.diagonal(), _named(languages), matrix.T
            begin = np.cumsum(matrix, axis=1).diagonal() - of_own
            if len(languages) > 16:  # more cannot be distinguished in one bar
                labels, columns = ["its own language", "other languages"], np.stack([of_own, 100 - of_own])
                begin = 0 * of_own
            _name_bars(axes, languages, len(languages))
            for i, (label, share, end) in enumerate(zip(labels, columns, np.cumsum(columns, axis=0), strict=True)):
                style: dict[str, Any] = {"hatch": _HATCHES[i // len(_COLOURS)], "edgecolor": "white", "linewidth": 0.5}
                axes.barh(rows, share, left=end - share, height=0.8, label=label, **style)
            outlined = axes.barh(rows, of_own, left=begin, height=0.8, fill=False, edgecolor="black", linewidth=1.4)
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
            axes.bar_label(outlined, fmt="%.0f", label_type="center", fontsize=7, bbox=box)
            axes.set_xlabel("share of neighbours (%)", fontsize=9)
            axes.set_title(f"{panel}: own language {of_own.mean():.1f}% on average", fontsize=9.5)
        figure.suptitle(title)
        figure.supylabel("language of the query", fontsize=9)
        legend = panels[0].get_legend_handles_labels()
        figure.legend(*legend, title="neighbours in", loc="outside right center", handleheight=1.2)


def plot_points(values: Mapping[str, Any], links: Sequence[tuple[int, int]], picture: Picture) -> None:
    """Draw points of sentences, with lines (``links``) between translations, or of tokens, which have none. The
    ``values`` are what ``Scatter`` writes as JSON. If there are few, they are labelled: sentences with their number,
    beside the English (or first) side, and tokens with their text."""
    points = np.array([[point["x"], point["y"]] for point in values["points"]])
    languages = np.array([point["language"] for point in values["points"]])
    few = len(points) <= (500 if links else 120)
    numbered = sorted({hub for hub, _ in links}) if len(values["sentences"]) <= 40 else []
    labelled = numbered if links else range(len(points) if few else 0)
    style = {"s": 38, "edgecolors": "black", "linewidths": 0.5} if few else {"s": 9, "alpha": 0.6, "linewidths": 0}
    kind = "Translations" if links else "Tokens of translations"
    kept = "" if values["explained"] is None else f", {100 * values['explained']:.0f}% of the variance"
    with picture.drawn(8.4, 6) as figure:
        axes = figure.subplots()
        for pair in links:
            axes.plot(*points[list(pair)].T, color="#9a9a9a", linewidth=0.7, zorder=1)
        distinct = list(dict.fromkeys(languages.tolist()))
        for i, (language, label) in enumerate(zip(distinct, _named(distinct), strict=True)):
            looks = {"c": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)], "zorder": 2, **style}
            axes.scatter(*points[languages == language].T, label=label, **looks)
        for i in labelled:
            _label(axes, (*points[i],), values["points"][i]["label"].strip())
        axes.set_title(f"{kind} ({'PCA' if values['method'] == 'pca' else 't-SNE'}{kept})")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(True)
        axes.margins(0.06)
        axes.set_aspect("equal", adjustable="datalim")
        figure.legend(loc="outside right upper", fontsize=8.5, markerscale=1 if few else 2.5)


def plot_scores(histogram: Mapping[str, Sequence[float]], threshold: float | None, picture: Picture) -> None:
    """Draw how many pairs have which score: ``edges`` of bins and the numbers of pairs of the ``text``, and of
    ``right`` and ``wrong`` ones that are known, in each bin. These are drawn to the height of the text."""
    edges, counts = histogram["edges"], {name: np.array(histogram[name]) for name in ("text", "right", "wrong")}
    with picture.drawn(6.4, 4) as figure:
        axes = figure.subplots()
        axes.stairs(counts["text"], edges, fill=True, color=_COLOURS[4], label="the text")
        for name, colour in (("right", _COLOURS[2]), ("wrong", _COLOURS[5])):
            if highest := counts[name].max(initial=0):
                scaled = counts[name] * (counts["text"].max() / highest)
                axes.stairs(scaled, edges, color=colour, linewidth=1.4, label=f"trusted pairs, {name} (scaled)")
        if threshold is not None and math.isfinite(threshold):
            axes.axvline(threshold, color="black", linestyle="--", linewidth=1, label=f"threshold {threshold:.4f}")
        axes.set(xlabel="score", ylabel="pairs")
        axes.legend()
