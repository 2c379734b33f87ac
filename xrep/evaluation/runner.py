"""What ``xrep-eval`` and ``xrep-report`` say about several models: random weights, differences and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xrep.evaluation.evaluation import Figures, table
from xrep.metrics.bootstrap import interval, shown_difference


def random_record(seeds: Sequence[Figures]) -> dict[str, Any]:
    """Return what is written as JSON about random weights, one ``Figures`` for each seed: the mean and the spread (the
    sample standard deviation; null for one seed) of each headline, and all values."""
    headline = {}
    for figure in seeds[0].headline:
        own = [figures.headline[figure] for figures in seeds]
        spread = float(np.std(own, ddof=1)) if own[1:] else None
        headline[figure] = {"mean": float(np.mean(own)), "spread": spread, "by_seed": own}
    return {"seeds": len(seeds), "headline": headline, "values": [dict(figures.values) for figures in seeds]}


def differences(first: Figures, other: Figures) -> dict[str, tuple[float, float, float]]:
    """Return the difference of each figure of another model from that of the first one, and the bounds of its 95%
    interval by a paired bootstrap: both are computed on the same draws of examples. There are none if each model was
    measured without examples of its own training text."""
    if not (first.has_all_examples and other.has_all_examples):
        return {}
    return {
        name: (other.headline[name] - value, *interval(other.resamples[name] - first.resamples[name]))
        for name, value in first.headline.items()
        if name in first.resamples and name in other.resamples
    }


def comparison(
    records: Mapping[str, Mapping[str, Any]], differing: Mapping[str, Mapping[str, Sequence[float]]] | None = None
) -> str:
    """Return a table of the headlines of several models, by name, with their intervals, and of their random weights;
    empty if there are no headlines.

    Args:
        differing: The ``differences`` of models from the first one.
    """
    figures = list(dict.fromkeys(figure for record in records.values() for figure in record["headline"]))
    columns = {}
    for name, record in records.items():
        columns[name] = [_quoted(record, figure) for figure in figures]
        if random := record.get("random_weights"):
            heading = f"{name}, random weights" if len(records) > 1 else "random weights"
            columns[heading] = [_random(random["headline"].get(figure)) for figure in figures]
    for name, own in (differing or {}).items():
        if own:
            heading = "difference" if len(records) == 2 else f"{name}, difference"
            columns[heading] = [shown_difference(own[figure]) if figure in own else "" for figure in figures]
    rows = zip(figures, *columns.values(), strict=True)
    return table(["figure", *columns], list(rows)) if figures else ""


def _quoted(record: Mapping[str, Any], figure: str) -> str:
    if figure not in record["headline"]:
        return ""
    span = record["intervals"].get(figure)
    return f"{record['headline'][figure]:.2f}" + (f" [{span[0]:.2f}, {span[1]:.2f}]" if span else "")


def _random(own: Mapping[str, float | None] | None) -> str:
    if own is None:
        return ""
    return f"{own['mean']:.2f}" + ("" if own["spread"] is None else f" ± {own['spread']:.2f}")
