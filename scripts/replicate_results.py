"""The table, the tests and the plot of ``replicate.py``, from the figures of each arm and seed."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import xrep
from xrep.files import write_aside
from xrep.metrics.bootstrap import interval


@dataclass
class Measured:
    """What is known of one arm in one setting, by seed; models that are not trained here have the seed 0.

    Attributes:
        grid, chosen: Values that were searched, and the best ones on dev.
        figures: Figure -> seed -> its value, and its values on resampled examples [R].
        random: Figure -> its values with random weights, one for each seed of these.
    """

    grid: dict[str, list[str]] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    minutes: dict[int, float] = field(default_factory=dict)
    figures: dict[str, dict[int, tuple[float, np.ndarray]]] = field(default_factory=dict)
    random: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figure: str, seed: int, value: float, resamples: Sequence[float | None]) -> None:
        drawn = np.array([np.nan if own is None else own for own in resamples], dtype=np.float64)
        self.figures.setdefault(figure, {})[seed] = value, drawn


def results(
    effect: Mapping[str, Any], measured: Mapping[tuple[str, str], Measured], seeds: list[int], is_complete: bool
) -> dict[str, Any]:
    """Return everything that the table and the plot show, as it is written as JSON."""
    figures = [figure for evaluation in effect["evaluations"].values() for figure in evaluation["figures"]]
    rows, random = [], {}
    for (setting, arm), own in measured.items():
        values = {figure: [value for value, _ in own.figures.get(figure, {}).values()] for figure in figures}
        row = {"setting": setting, "arm": arm, "grid": own.grid, "chosen": own.chosen}
        row |= {"steps": _mean(own.steps), "minutes": _mean(own.minutes)}
        rows.append(row | {"figures": {figure: _summary(values[figure]) for figure in figures if values[figure]}})
        if own.random:
            random[setting] = {figure: _summary(values) for figure, values in own.random.items()}
    claims = []
    for setting in dict.fromkeys(setting for setting, _ in measured):
        for claim in effect["claims"]:
            arms = [measured.get((setting, claim[side]), Measured()) for side in ("better", "worse")]
            better, worse = (own.figures.get(claim["figure"], {}) for own in arms)
            compared = compare(better, worse)
            claims += [{"setting": setting, **claim, **compared}] if compared else []
    return {
        "title": effect["title"],
        "paper": effect["paper"],
        "published": effect.get("published", {}),
        "seeds": seeds,
        "is_complete": is_complete,
        "figures": figures,
        "rows": rows,
        "random_weights": random,
        "claims": claims,
        "version": xrep.__version__,
    }


def compare(
    better: Mapping[int, tuple[float, np.ndarray]], worse: Mapping[int, tuple[float, np.ndarray]], resamples: int = 1000
) -> dict[str, Any] | None:
    """Compare a figure of two arms by a paired bootstrap over seeds and over the examples of the test.

    In each of the resamples, seeds are drawn with replacement, and the difference is that of the figures on resampled
    examples, which are the same ones for both arms and all seeds.

    Args:
        better, worse: The figure and its values on resampled examples, by seed; a model of seed 0 is compared with
            every seed of the other arm.

    Returns:
        The mean difference, its 95% interval, the number of seeds and the verdict; None if no seed has both arms.
    """
    if not better or not worse:
        return None
    seeds = sorted(({*better} | {*worse}) - {0}) or [0]
    pairs = [(better.get(seed, better.get(0)), worse.get(seed, worse.get(0))) for seed in seeds]
    both = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not both:
        return None
    size = min(resamples, *(len(drawn) for pair in both for _, drawn in pair))
    differences = np.stack([one[1][:size] - other[1][:size] for one, other in both])
    drawn = np.random.default_rng(0).integers(0, len(both), (size, len(both)))
    low, high = interval(differences[drawn, np.arange(size)[:, None]].mean(axis=1))
    return {
        "difference": statistics.fmean(one[0] - other[0] for one, other in both),
        "interval": [low, high],
        "seeds": len(both),
        "verdict": "shows" if low > 0 else "opposite" if high < 0 else "does not show",
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "spread": spread, "by_seed": list(values)}


def _mean(by_seed: Mapping[int, float]) -> float | None:
    return statistics.fmean(by_seed.values()) if by_seed else None


def to_markdown(found: Mapping[str, Any]) -> str:
    """Return the tables of arms and of claims, as they stand in the paper's README.md."""
    figures, published = found["figures"], found["published"]
    settings = any(row["setting"] for row in found["rows"])
    keys = list(dict.fromkeys(key for row in found["rows"] for key in row["chosen"]))
    header = ["arm", *(key.rpartition(".")[2] for key in keys), "steps", "minutes", *figures]
    rows = []
    for row in found["rows"]:
        budget = [_number(row["steps"], 0), _number(row["minutes"], 1)]
        values = [_spread(row["figures"].get(figure)) for figure in figures]
        rows.append([row["setting"], row["arm"], *(row["chosen"].get(key, "") for key in keys), *budget, *values])
    for setting, own in found["random_weights"].items():
        values = [_spread(own.get(figure)) for figure in figures]
        rows.append([setting, "random weights", *("" for _ in keys), "0", "0", *values])
    if published:
        header.append("paper")
        rows = [[*row, str(published.get(row[1], ""))] for row in rows]
    if settings:
        header.insert(0, "setting")
    else:
        rows = [row[1:] for row in rows]
    claims = [
        [
            *([claim["setting"]] if settings else []),
            f"{claim['better']} over {claim['worse']}, {claim['figure']}",
            f"{claim['difference']:+.2f}",
            f"{claim['interval'][0]:+.2f} to {claim['interval'][1]:+.2f}",
            claim["verdict"],
        ]
        for claim in found["claims"]
    ]
    grids = {f"{key} {', '.join(values)}" for row in found["rows"] for key, values in row["grid"].items()}
    searched = f"Searched on dev with the first seed: {'; '.join(sorted(grids))}." if grids else ""
    seeds = len(found["seeds"])
    notes = [f"{found['title']} ({found['paper']}): mean ± standard deviation of {seeds} seed{'s' * (seeds > 1)}."]
    notes += [searched] if searched else []
    notes += [] if found["is_complete"] else ["Not all runs are finished."]
    head = [*(["setting"] if settings else []), "claim", "difference", "95% interval", "verdict"]
    return "\n\n".join([" ".join(notes), _table(header, rows), *([_table(head, claims)] if claims else [])]) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _spread(own: Mapping[str, Any] | None) -> str:
    if own is None:
        return ""
    return f"{own['mean']:.2f}" + ("" if own["spread"] is None else f" ± {own['spread']:.2f}")


def plot(found: Mapping[str, Any], path: Path) -> None:
    """Draw the mean of each arm with its spread, and the figure of each seed; without matplotlib, say so and return."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install 'xrep[plot]')", file=sys.stderr)
        return
    from matplotlib.figure import Figure

    random = [
        {"setting": setting, "arm": "random weights", "figures": own}
        for setting, own in found["random_weights"].items()
    ]
    rows = [*found["rows"], *random]
    names = [": ".join(filter(None, [row["setting"], row["arm"]])) for row in rows]
    figure = Figure(figsize=(3 + 3 * len(found["figures"]), 1.2 + 0.3 * len(rows)), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(found["figures"]), squeeze=False, sharey=True)[0]
    for axes, shown in zip(panels, found["figures"], strict=True):
        for place, row in enumerate(rows):
            if own := row["figures"].get(shown):
                axes.errorbar(own["mean"], place, xerr=own["spread"] or 0, fmt="o", capsize=3, color="tab:blue")
                axes.plot(own["by_seed"], [place] * len(own["by_seed"]), "|", color="tab:gray")
        axes.set_title(shown, fontsize=9)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(rows)), names, fontsize=8)
    panels[0].invert_yaxis()
    figure.suptitle(found["title"], fontsize=10)
    with write_aside(path) as aside:
        figure.savefig(aside, format="png", metadata={"Software": None})
