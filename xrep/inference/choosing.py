"""The choice of mined pairs, which is judged by trusted pairs or by the scores alone, as the last stage of mining."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import naming
from xrep.inference.judging import sample_alone
from xrep.inference.nearest import OTHER, Merge
from xrep.inference.pair_files import PAIRS_FILE, write_pairs
from xrep.inference.planted import TrustedPairs
from xrep.inference.settings import MiningOptions
from xrep.inference.text_sides import TextSide
from xrep.jobs.plan import Advance, ChoiceError, Stage
from xrep.metrics.mined import (
    Judgement,
    ScoreCounts,
    judge_alone,
    judge_by_planting,
    planting_interval,
    planting_misfit,
)
from xrep.retrieval.margins import choose_in_blocks
from xrep.store.arrays import ArrayFile

_CHOSEN = "chosen.npy"
_CHOSEN_BYTES = 1 << 20
"""Bytes of pairs that are written at a time."""
_PROBABLE = 0.5
"""Least precision of a threshold that the scores alone have chosen, if any threshold has it and the user names none:
else too much noise would be written on a rough judgement."""


class ChoosePairs(Stage):
    """Choose the pairs, judge them, and write those that reach the threshold."""

    name, unit, choices = "choose", "files", ("least_precision", "threshold")

    def __init__(
        self,
        x: TextSide,
        y: TextSide,
        merge: Merge,
        options: MiningOptions,
        trusted: TrustedPairs | None,
        output: str,
        languages: tuple[str, str],
    ) -> None:
        """``output`` tells the format, and ``languages`` are names of its columns."""
        self._output, self._languages = output, languages
        self._x, self._y, self._merge, self._options, self._trusted = x, y, merge, options, trusted

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        pairs = self._choose(folder / _CHOSEN)
        threshold, judged = self._judge(pairs)
        rows = self._rows(folder / _CHOSEN, -np.inf if threshold is None else threshold)
        with naming(folder):
            written = write_pairs(folder / PAIRS_FILE, self._output, ("score", *self._languages), rows)
        (folder / _CHOSEN).unlink()
        return {"pairs": written, "threshold": threshold, "judged": judged}

    def _choose(self, file: Path) -> ScoreCounts:
        """Write score, source and target of all pairs, best first, and return how many have which score."""
        options, chosen, pairs = self._options, ArrayFile.create(file, np.float64, (3,)), ScoreCounts.of(np.empty(0))
        x, y = (self._merge.found(side).first(options.neighbours) for side in OTHER)
        how = {"one_to_one": options.one_to_one, "folder": file.parent}
        for some in choose_in_blocks(x, y, options.margin, options.retrieval, **how):
            chosen.append(np.stack((some.score, some.source, some.target), axis=1))
            pairs += ScoreCounts.of(some.score)
        chosen.close()
        return pairs

    def _judge(self, pairs: ScoreCounts) -> tuple[float | None, dict[str, float] | None]:
        """Return the threshold, and what is known of the pairs that reach it."""
        options, sources = self._options, len(self._x.side)
        x, y = (self._merge.found(side) for side in OTHER)
        planted = self._trusted.planted(x, y) if self._trusted else None
        if planted:
            judgement = judge_by_planting(pairs, sources, planted)
        else:
            judgement = judge_alone(sample_alone(x, y, options.neighbours, options.margin))
        if judgement is None:
            if options.least_precision is not None:
                cure = "give trusted pairs, or `threshold` instead of `least_precision`"
                raise UserError("too few sentences to judge their scores", cure=cure)
            return options.threshold, None
        threshold = self._threshold(pairs, sources, judgement)
        at, of_trusted = -np.inf if threshold is None else threshold, dict[str, float]()
        shares = {
            "precision": judgement.precision(pairs, at),
            "recall": judgement.recall(pairs, at, sources),
            "translated": judgement.translated,
        }
        if self._trusted and planted:
            low, high = planting_interval(pairs, sources, planted, at)
            found, mistaken = np.mean(planted.is_right & (planted.present >= at)), np.mean(planted.absent >= at)
            shares |= {"precision_low": low, "precision_high": high, "found": found, "mistaken": mistaken}
            misfit = planting_misfit(pairs, sources, planted, judgement.translated)
            of_trusted = {**self._trusted.counts, "misfit": misfit}
        return threshold, {name: 100 * float(share) for name, share in shares.items()} | of_trusted

    def _threshold(self, pairs: ScoreCounts, sources: int, judgement: Judgement) -> float | None:
        options, least = self._options, self._options.least_precision
        if options.threshold is not None:
            return options.threshold
        threshold = judgement.threshold(pairs, sources, least)
        if threshold is None and least is not None:
            best = judgement.precision(pairs, pairs.score[-1]) if len(pairs.score) else 0.0
            cure = f"lower `least_precision`, to {np.floor(1000 * best) / 1000:g} at most"
            raise ChoiceError(f"no threshold has a precision of {least:g}", cure=cure)
        if threshold is None or least is not None or self._trusted:
            return threshold
        if judgement.precision(pairs, threshold) < _PROBABLE:
            probable = judgement.threshold(pairs, sources, _PROBABLE)
            threshold = float(pairs.score[-1]) if probable is None else probable
        return threshold

    def _rows(self, file: Path, least: float) -> Iterator[tuple[float, Any, Any]]:
        """Yield score, source and target of the pairs that reach a score."""
        for _, some in ArrayFile.open(file, "pairs", "remove the folder to begin anew").blocks(_CHOSEN_BYTES):
            some = some[some[:, 0] >= least]
            rows = some[:, 1:].astype(np.int64)
            columns = self._x.columns(rows[:, 0]), self._y.columns(rows[:, 1])
            yield from zip(some[:, 0].tolist(), *columns, strict=True)
