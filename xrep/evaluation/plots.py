"""Plots of results as PNG, SVG or PDF files.

They need matplotlib (extra ``plot``), which is imported only when a plot is drawn; without it, a ``UserError`` says so.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.metrics.retrieval import Accuracy
from xrep.text.languages import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect

_ROWS_PER_COLUMN = 30
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c")
"""Colours that colour-blind readers can distinguish (Okabe and Ito), and grey."""
KINDS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""The kinds of pictures by their suffix, and the metadata that would depend on the clock."""
_STYLE = {
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "figure.titlesize": 11,
    "grid.alpha": 0.5,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.hashsalt": "xrep",
}
"""Settings of matplotlib for every plot."""
_MARKERS = "osD^vPX<>ph"
"""11 markers: 11 and the number of colours (8) have no common factor, so 88 languages get different combinations."""
_HATCHES = ("", "////", "....")
_STACKED = 16
"""Largest number of languages that can be distinguished in one stacked bar."""
_LABELLED_SENTENCES, _LABELLED_TOKENS = 40, 120
_FONT = "DejaVu Sans"
"""This font is part of matplotlib, so it is always available."""
_UNFIT_FONTS = re.compile(r"Last ?Resort|STIX|cm[a-z]+10|Math|Emoji|Color|Display|Symbol", re.IGNORECASE)
"""Fonts that show boxes instead of letters, contain only symbols, or have glyphs that matplotlib cannot draw."""


def check_matplotlib() -> None:
    """Check that a plot can be drawn, before the expensive work starts."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib", cure="pip install 'xrep[plot]'")


@dataclass(frozen=True)
class Picture:
    """A file to draw into, whose suffix says the kind, and the model whose results are drawn, for a line below them."""

    path: str | Path
    model: str = ""


@contextmanager
def _picture(picture: Picture, width: float, height: float) -> Iterator[Figure]:
    """Context manager that yields a figure of a size in inches, and writes it at the end."""
    check_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = Path(picture.path).suffix.lower()
    kind = kind if kind in KINDS else ".png"  # of a pipe
    with rc_context(_STYLE), write_aside(picture.path) as temporary:
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        if picture.model:
            figure.supxlabel(picture.model, fontsize=7, color="#666666", parse_math=False)
        figure.savefig(temporary, format=kind[1:], metadata=KINDS[kind])


def plot_tatoeba(accuracies: Mapping[str, Accuracy], averages: Mapping[str, float], picture: Picture) -> None:
    """Draw a bar for each direction of each language, best mean first.

    Up to 30 languages are drawn in one column, more in several columns of the same height.

    Args:
        averages: Averages, written below the bars.
    """
    languages = sorted(accuracies, key=lambda language: (-accuracies[language].mean, name(language)))
    columns = math.ceil(len(languages) / _ROWS_PER_COLUMN)
    rows = math.ceil(len(languages) / columns)
    with _picture(picture, max(6.5, 3.6 * columns), 1.5 + 0.29 * rows) as figure:
        panels = figure.subplots(1, columns, squeeze=False)[0]
        for axes, start in zip(panels, range(0, len(languages), rows), strict=True):
            _draw_accuracies(axes, accuracies, languages[start : start + rows])
            axes.set_ylim(rows - 0.4, -0.6)
        figure.suptitle("Tatoeba: nearest neighbour is the translation (%)")
        handles = panels[-1].containers
        title = "    ".join(f"{average}: {value:.2f}" for average, value in averages.items())
        style = {"title_fontsize": 8.5, "ncols": len(handles), "loc": "outside lower center"}
        figure.legend(handles, [str(handle.get_label()) for handle in handles], title=title, **style)


def _draw_accuracies(axes: Axes, accuracies: Mapping[str, Accuracy], languages: list[str]) -> None:
    places = np.arange(len(languages))
    forward, backward = zip(*(accuracies[language] for language in languages), strict=True)
    axes.barh(places - 0.2, forward, height=0.4, color=_COLOURS[0], label="xx → en")
    axes.barh(places + 0.2, backward, height=0.4, color=_COLOURS[1], label="en → xx")
    axes.text(102, -0.75, "mean", fontsize=7, clip_on=False)
    for place, language in enumerate(languages):
        axes.text(102, place, f"{accuracies[language].mean:.1f}", va="center", fontsize=7, clip_on=False)
    axes.xaxis.grid(True)
    _name_bars(axes, languages)


def _name_bars(axes: Axes, languages: Sequence[str]) -> None:
    axes.set_yticks(range(len(languages)), [f"{name(language)} ({language})" for language in languages], fontsize=8)
    axes.set_xlim(0, 100)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def plot_alignment(
    steps: Sequence[int | None], alignment: Sequence[float], uniformity: Sequence[float], pairs: str, picture: Picture
) -> None:
    """Draw alignment against uniformity: one point, or the checkpoints of a run coloured by step.

    Args:
        steps: Step of each checkpoint; None for an encoder that is not a checkpoint of a run.
        pairs: Name of the pair set, for the title.
    """
    with _picture(picture, 6.4, 4.8) as figure:
        axes = figure.subplots()
        is_run = steps[0] is not None
        colours: dict[str, Any] = {"c": steps, "cmap": "cividis"} if is_run else {"color": _COLOURS[0]}
        drawn = axes.scatter(uniformity, alignment, **colours, s=45, edgecolors="black", linewidths=0.6, zorder=3)
        arrow = {"arrowstyle": "-|>", "color": "#606060", "linewidth": 1, "shrinkA": 4, "shrinkB": 4}
        points = list(zip(uniformity, alignment, strict=True))
        for start, end in itertools.pairwise(points):
            axes.annotate("", end, start, arrowprops=arrow, zorder=2)
        if is_run:
            label = {"textcoords": "offset points", "fontsize": 8, "zorder": 4, "path_effects": [_halo()]}
            for i in sorted({0, len(points) - 1}):
                axes.annotate(f"step {steps[i]}", points[i], (6, 6), **label)
            figure.colorbar(drawn, label="step")
        axes.margins(0.12)
        axes.set_xlabel("uniformity loss (lower is better)")
        axes.set_ylabel("alignment loss (lower is better)")
        axes.set_title(f"Alignment and uniformity on {pairs}", parse_math=False)
        axes.grid(True)
        axes.spines[["top", "right"]].set_visible(False)


def plot_language_bias(
    languages: Sequence[str], shares: Mapping[str, np.ndarray], title: str, picture: Picture
) -> None:
    """Draw which languages the neighbours of each query language are in, with one panel per matrix.

    The query's own language is outlined and labelled with its share in percent. With more than 16 languages, the bars
    only distinguish the own language from all others together.

    Args:
        shares: Title of each panel -> shares in percent, [L, L]; row i belongs to the queries in ``languages[i]``.
    """
    with _picture(picture, 10.5, 1.7 + max(0.3 * len(languages), 1.2)) as figure:
        panels = figure.subplots(1, len(shares), sharey=True)
        for axes, (panel, matrix) in zip(panels, shares.items(), strict=True):
            _draw_shares(axes, languages, matrix)
            axes.set_title(f"{panel}: own language {matrix.diagonal().mean():.1f}% on average", fontsize=9.5)
        figure.suptitle(title)
        figure.supylabel("language of the query", fontsize=9)
        style = {"loc": "outside right center", "handleheight": 1.2}
        figure.legend(*panels[0].get_legend_handles_labels(), title="neighbours in", **style)


def _draw_shares(axes: Axes, languages: Sequence[str], shares: np.ndarray) -> None:
    own, places, left = shares.diagonal(), np.arange(len(languages)), np.zeros(len(languages))
    if len(languages) > _STACKED:
        columns, begin = {"its own language": own, "other languages": 100 - own}, left
    else:
        columns = {f"{name(language)} ({language})": shares[:, j] for j, language in enumerate(languages)}
        begin = np.cumsum(shares, axis=1).diagonal() - own
    for j, (label, column) in enumerate(columns.items()):
        style: dict[str, Any] = {"color": _COLOURS[j % len(_COLOURS)], "hatch": _HATCHES[j // len(_COLOURS)]}
        axes.barh(places, column, left=left, height=0.8, linewidth=0.5, label=label, edgecolor="white", **style)
        left = left + column
    axes.barh(places, own, left=begin, height=0.8, fill=False, edgecolor="black", linewidth=1.4)
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
    for place, (share, start) in enumerate(zip(own, begin, strict=True)):
        axes.text(start + share / 2, place, f"{share:.0f}", ha="center", va="center", fontsize=7, bbox=box)
    axes.set_ylim(len(languages) - 0.4, -0.6)
    axes.set_xlabel("share of neighbours (%)", fontsize=9)
    _name_bars(axes, languages)


@dataclass(frozen=True)
class Points:
    """P points in two dimensions.

    Attributes:
        explained: Share of the variance that the two axes explain (PCA), else None.
        points: Coordinates, float64 [P, 2].
        languages, labels: Language and label of each point. The label is the number of the sentence, or the token.
        links: Pairs of points that translate each other; empty for tokens.
        sentences: For each sentence number, from 1, the sentences by language.
    """

    method: str
    tokens: bool
    explained: float | None
    points: np.ndarray
    languages: list[str]
    labels: list[str]
    links: list[tuple[int, int]]
    sentences: list[dict[str, str]]


def plot_points(drawn: Points, picture: Picture) -> list[str]:
    """Draw points for sentences, with lines between translations, or for tokens.

    If there are few points, they are labelled: sentences with their number, beside the English (or first) side, and
    tokens with their text. A label that contains characters missing from every installed font is replaced by a number.

    Returns:
        The meaning of each number that replaces a label, one line each.
    """
    few, own = len(drawn.points) <= (_LABELLED_TOKENS if drawn.tokens else 500), np.array(drawn.languages)
    numbered = sorted({hub for hub, _ in drawn.links}) if len(drawn.sentences) <= _LABELLED_SENTENCES else []
    labelled = (list(range(len(own))) if few else []) if drawn.tokens else numbered
    style = {"s": 38, "edgecolors": "black", "linewidths": 0.5} if few else {"s": 9, "alpha": 0.6, "linewidths": 0}
    kind = "Tokens of translations" if drawn.tokens else "Translations"
    kept = "" if drawn.explained is None else f", {100 * drawn.explained:.0f}% of the variance"
    with _picture(picture, 8.4, 6) as figure:
        axes = figure.subplots()
        for pair in drawn.links:
            axes.plot(*drawn.points[list(pair)].T, color="#9a9a9a", linewidth=0.7, zorder=1)
        for i, language in enumerate(dict.fromkeys(drawn.languages)):
            looks = {"c": _COLOURS[i % len(_COLOURS)], "marker": _MARKERS[i % len(_MARKERS)], "zorder": 2, **style}
            axes.scatter(*drawn.points[own == language].T, label=f"{name(language)} ({language})", **looks)
        undrawn = _write_labels(axes, drawn.points[labelled], [drawn.labels[i] for i in labelled])
        axes.set_title(f"{kind} ({'PCA' if drawn.method == 'pca' else 't-SNE'}{kept})")
        axes.set(xticks=[], yticks=[])
        axes.margins(0.06)
        axes.set_aspect("equal", adjustable="datalim")
        figure.legend(loc="outside right upper", fontsize=8.5, markerscale=1 if few else 2.5)
    return undrawn


def _halo() -> AbstractPathEffect:
    from matplotlib.patheffects import withStroke

    return withStroke(linewidth=2, foreground="white")


def _write_labels(axes: Axes, points: np.ndarray, labels: Sequence[str]) -> list[str]:
    families, missing = fonts_for("".join(labels))
    undrawn: dict[str, str] = {}
    for point, label in zip(points, labels, strict=True):
        drawn = label.strip()
        if missing & set(drawn):
            drawn = undrawn.setdefault(drawn, f"({len(undrawn) + 1})")
        options = {"fontfamily": families, "fontsize": 7.5, "path_effects": [_halo()], "parse_math": False}
        axes.annotate(drawn, point, (3.5, 3.5), textcoords="offset points", zorder=4, **options)
    return [f"label {number} stands for {label}, which no installed font has" for label, number in undrawn.items()]


def fonts_for(text: str) -> tuple[list[str], set[str]]:
    """Return installed font families that together cover the characters of a text, and the characters that none has."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    families = [_FONT]
    missing = {c for c in text if not c.isspace()}
    missing -= set(map(chr, FT2Font(font_manager.findfont(_FONT)).get_charmap()))
    upright = (entry for entry in font_manager.fontManager.ttflist if entry.style == "normal")
    regular = [e for e in upright if str(e.weight) in ("400", "normal", "regular") and not _UNFIT_FONTS.search(e.name)]
    for entry in sorted(regular, key=lambda e: (not e.name.startswith("Noto Sans"), e.name)):
        if not missing:
            break
        with suppress(OSError, RuntimeError):  # the font is damaged or was removed
            if covered := missing & set(map(chr, FT2Font(entry.fname).get_charmap())):
                families.append(entry.name)
                missing -= covered
    return families, missing
