"""What the figures of results.csv say about the claims of effects: intervals, verdicts and the power of a test.

A claim compares two arms seed by seed, and is about the sentences of its test: were the arms trained with other seeds,
would one be ahead on these sentences again? So the interval is Student's over the paired differences of the seeds, and
the sentences are fixed (results.csv keeps no results of single sentences). Each effect has one headline claim, which
alone gets a verdict, by a two-sided test at 5% with Holm's correction over the headline claims of all papers that have
figures. One with fewer than five seeds is not tested, but counts in the correction: which of them get more seeds may
depend on what the first ones have shown.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from scipy.stats import chi2, norm, t

Effect = Mapping[str, Any]
Row = dict[str, str]
"""A line of results.csv, or some of its columns; a model that is not trained with several seeds has the seed 0."""
Figures = Mapping[tuple[str, ...], Mapping[str, float]]
"""By effect, setting, arm and metric the values of the seeds."""
Key = tuple[str, str]
"""A paper and an effect of it, whose headline claim is meant."""
ERROR, SEEDS = 0.05, 5
"""The probability that any of the headline claims is decided although there is no difference, and the least seeds."""

_QUANTILES = 10_000


@dataclass(frozen=True)
class Comparison:
    """The paired differences of two arms over seeds: their mean, its standard error, and the number of seeds."""

    gain: float
    error: float
    count: int

    @property
    def half(self) -> float:
        """Half the width of the 95% interval (Student's t)."""
        return float(t.ppf(0.975, self.count - 1)) * self.error if self.count > 1 else math.inf

    @property
    def statistic(self) -> float:
        return self.gain / self.error if self.error else math.copysign(math.inf, self.gain) if self.gain else 0.0

    @property
    def probability(self) -> float:
        """The two-sided probability of a mean this far from zero without any difference; 1 if there are few seeds."""
        return float(2 * t.sf(abs(self.statistic), self.count - 1)) if self.count >= SEEDS else 1.0

    def power(self, gain: float, level: float) -> float:
        """Return the probability that as many seeds that spread as much decide a true ``gain`` at a level."""
        if not self.error:
            return 1.0
        bound, freedom, shift = float(t.isf(level / 2, self.count - 1)), self.count - 1, abs(gain) / self.error
        # The mean over quantiles of the variance, because scipy's noncentral t is not a number for some arguments.
        bounds = bound * np.sqrt(chi2.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, freedom) / freedom)
        return float(np.mean(norm.sf(bounds - shift) + norm.cdf(-bounds - shift)))


def compare(better: Mapping[str, float], worse: Mapping[str, float]) -> Comparison:
    """Compare two arms by seed. A model of seed 0 is compared with every seed of the other arm."""
    seeds = ({*better} | {*worse}) - {"0"} or {"0"}
    pairs = [(better.get(seed, better.get("0")), worse.get(seed, worse.get("0"))) for seed in sorted(seeds)]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    count = len(differences)
    error = statistics.stdev(differences) / count**0.5 if count > 1 else math.inf
    return Comparison(sum(differences) / max(count, 1), error, count)


def figures_of(rows: Iterable[Row]) -> Figures:
    values: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = row["effect"], row["setting"], row["arm"], row["metric"]
        values.setdefault(key, {})[row["seed"]] = float(row["value"])
    return values


def compared(name: str, effect: Effect, figures: Figures) -> Iterator[tuple[Effect, str, Comparison]]:
    """Yield the claims of an effect, the headline first, with each of their settings that has figures."""
    for claim, setting in itertools.product([effect["headline"], *effect["claims"]], effect.get("settings", [""])):
        if claim.get("setting", setting) == setting:
            arms = (figures.get((name, setting, claim[arm], claim["figure"]), {}) for arm in ("better", "worse"))
            comparison = compare(*arms)
            if comparison.count:
                yield claim, setting, comparison


def holm(probabilities: Mapping[Key, float]) -> tuple[set[Key], float]:
    """Return what is decided by Holm's procedure, and the level at which the next one would be."""
    order = sorted(probabilities, key=lambda key: probabilities[key])
    for n, key in enumerate(order):
        level = ERROR / (len(order) - n)
        if probabilities[key] > level:
            return {*order[:n]}, level
    return {*order}, ERROR


def verdicts(papers: Mapping[str, tuple[Mapping[str, Effect], Figures]]) -> dict[Key, str]:
    """Return the verdicts of the headline claims of all papers, by paper and effect."""
    found: dict[Key, tuple[Effect, Comparison]] = {}
    for paper, (effects, figures) in papers.items():
        for name, effect in effects.items():
            for claim, _, comparison in compared(name, {**effect, "claims": []}, figures):
                found[paper, name] = claim, comparison
    decided, level = holm({key: comparison.probability for key, (_, comparison) in found.items()})
    return {key: verdict(*each, level, key in decided) for key, each in found.items()}


def verdict(claim: Effect, comparison: Comparison, level: float, decided: bool) -> str:
    """Return a verdict in words. ``gain`` of a claim is the paper's, if that is a number on the same scale."""
    if comparison.count < SEEDS:
        return f"needs {SEEDS} seeds (has {comparison.count})"
    if decided:
        word = "better" if comparison.gain > 0 else "worse"
        return f"{word} ({comparison.count} seeds, t = {comparison.statistic:.1f})"
    sought = "the paper's gain" if "gain" in claim else "a gain of 1 point"
    return f"undecided (power to see {sought}: {comparison.power(claim.get('gain', 1), level):.2f})"


def shown(
    effects: Mapping[str, Effect], figures: Figures, everything: bool = False
) -> Iterator[tuple[str, Effect, str, Comparison]]:
    """Yield the effect, the claim, its words and its comparison for the headline claims and those that say something,
    or for all."""
    for name, effect in effects.items():
        for claim, setting, comparison in compared(name, effect, figures):
            if everything or "says" in claim:
                says = claim.get("says", f"{claim['better']} over {claim['worse']}")
                says += f", {setting}" if setting and "setting" not in claim else ""
                yield name, claim, says, comparison


def table(effects: Mapping[str, Effect], figures: Figures, found: Mapping[str, str], everything: bool = False) -> str:
    """Return a table of Markdown of what is ``shown``; ``found`` has the verdicts of the effects' headline claims."""
    lines = ["| effect | gain in the paper | gain here (95% interval; seeds) | verdict |", f"|{' --- |' * 4}"]
    for name, claim, says, each in shown(effects, figures, everything):
        interval = f"{each.gain - each.half:+.2f} to {each.gain + each.half:+.2f}; {each.count}"
        here = f"{each.gain:+.2f} {claim['figure']} ({interval})"
        last = found[name] if claim is effects[name]["headline"] else "secondary"
        lines.append(f"| {' | '.join([says, claim.get('paper', 'not in the paper'), here, last])} |")
    return "\n".join(lines) + "\n"


def plot(effects: Mapping[str, Effect], figures: Figures) -> str:
    """Return a picture (SVG) of what is ``shown``: for each claim the gain and its interval, in points.

    Headline claims are dark, secondary ones grey; a rhomb is the paper's gain, if it is on the same scale.
    """
    rows = [(*row, row[1] is effects[row[0]]["headline"]) for row in shown(effects, figures)]
    ends = [0.0, *(each.gain + side * each.half for *_, each, _ in rows for side in (-1, 1) if each.count > 1)]
    ends += [claim["gain"] for _, claim, *_ in rows if "gain" in claim]
    low, high, height = min(ends), max(ends), 36 * len(rows) + 30

    def across(value: float) -> str:
        return f"{20 + 680 * (value - low) / (high - low):.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="720" height="{height}" fill="white"/>',
        f'<path d="M{across(0)} 4V{height - 20}" stroke="#888" stroke-dasharray="3 3"/>',
    ]
    for n, (_, claim, says, each, is_headline) in enumerate(rows):
        y, colour = 36 * n + 30, "#1f4e8c" if is_headline else "#999"
        left, right = across(max(each.gain - each.half, low)), across(min(each.gain + each.half, high))
        lines.append(f'<text x="20" y="{y - 12}" fill="{colour}">{escape(says)} ({escape(claim["figure"])})</text>')
        lines.append(f'<path d="M{left} {y}H{right}" stroke="{colour}" stroke-width="2"/>')
        lines.append(f'<circle cx="{across(each.gain)}" cy="{y}" r="4" fill="{colour}"/>')
        if "gain" in claim:
            place = f"M{across(claim['gain'])} {y - 6}l6 6l-6 6l-6 -6z"
            lines.append(f'<path d="{place}" fill="none" stroke="#c0392b" stroke-width="1.5"/>')
    marks = {"start": (low, f"{low:+.1f}"), "middle": (0.0, "0"), "end": (high, f"{high:+.1f}")}
    for anchor, (value, text) in marks.items():
        if anchor == "middle" or value:
            lines.append(f'<text x="{across(value)}" y="{height - 6}" text-anchor="{anchor}">{text}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
