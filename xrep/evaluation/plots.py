"""Pictures of results. Needs the extra ``plot`` (matplotlib), which is imported only when a picture is drawn."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.tatoeba import Results
from xrep.files import write_aside
from xrep.text.languages import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS_PER_COLUMN = 30
_FORWARD_COLOUR, _BACKWARD_COLOUR = "#0072b2", "#e69f00"  # told apart in grey and by the colour-blind (Okabe and Ito)


def check_matplotlib() -> None:
    """Find out before the work whether a picture can be drawn.

    Raises:
        UserError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("a plot needs matplotlib", cure="pip install 'xrep[plot]'")


def plot_tatoeba(results: Results, path: str | Path) -> None:
    """Bars for both directions of each language, best mean first, as a PNG file.

    Up to 30 languages stand in one column, more in several columns of one height. Black lines are the random baseline.

    Raises:
        UserError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    languages = sorted(results.accuracies, key=lambda language: (-results.accuracies[language].mean, name(language)))
    columns = math.ceil(len(languages) / _ROWS_PER_COLUMN)
    rows = math.ceil(len(languages) / columns)
    figure = Figure(figsize=(max(6.5, 3.6 * columns), 1.5 + 0.29 * rows), dpi=150, layout="constrained")
    for axes, start in zip(figure.subplots(1, columns, squeeze=False)[0], range(0, len(languages), rows), strict=True):
        _draw_column(axes, results, languages[start : start + rows], rows)
    figure.suptitle("Tatoeba: nearest neighbour is the translation (%)", fontsize=11)
    handles = [*axes.containers, *axes.collections]
    labels = [str(handle.get_label()) for handle in handles]
    style = {"frameon": False, "fontsize": 8, "title_fontsize": 8.5, "ncols": len(labels)}
    figure.legend(handles, labels, title=_averages_text(results), loc="outside lower center", **style)
    with write_aside(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_column(axes: Axes, results: Results, languages: list[str], rows: int) -> None:
    places = np.arange(len(languages))
    forward = [results.accuracies[language].forward for language in languages]
    backward = [results.accuracies[language].backward for language in languages]
    axes.barh(places - 0.2, forward, height=0.4, color=_FORWARD_COLOUR, label="xx → en")
    axes.barh(places + 0.2, backward, height=0.4, color=_BACKWARD_COLOUR, label="en → xx")
    if results.random:
        random = [results.random[language].mean for language in languages]
        axes.vlines(random, places - 0.4, places + 0.4, color="black", linewidth=1.2, label="random weights, mean")
    axes.text(102, -0.75, "mean", fontsize=7, clip_on=False)
    for place, language in zip(places, languages, strict=True):
        mean = results.accuracies[language].mean
        axes.text(102, place, f"{mean:.1f}", va="center", fontsize=7, clip_on=False)
    axes.set_yticks(places, [f"{name(language)} ({language})" for language in languages], fontsize=8)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.grid(True, linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _averages_text(results: Results) -> str:
    parts = [f"mean of {len(results.accuracies)}: {results.mean.mean:.2f}"]
    parts += [f"average of {group}: {accuracy.mean:.2f}" for group, accuracy in sorted(results.averages.items())]
    return "    ".join(parts)
