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
from xrep.inference.planted import TrustedPairs
from xrep.inference.settings import MiningOptions
from xrep.inference.text_sides import TextSide
from xrep.jobs.plan import Advance, Stage
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
from xrep.text.tmx import write_memory

MINED_FILE, _CHOSEN = "pairs.tsv", "chosen.npy"
_CHOSEN_BYTES = 1 << 20
"""Bytes of pairs that are written at a time."""
_PROBABLE = 0.5
"""Least precision of a threshold that the scores alone have chosen, if any threshold has it: else too much noise would
be written on a rough judgement."""


class ChoosePairs(Stage):
    """Choose the pairs, judge them, and write those that reach the threshold."""

    name, unit = "choose", "files"

    def __init__(
        self,
        x: TextSide,
        y: TextSide,
        merge: Merge,
        options: MiningOptions,
        trusted: TrustedPairs | None,
        languages: tuple[str, str] | None,
    ) -> None:
        """``languages`` are those of a translation memory; None writes lines."""
        self._languages = languages
        self._x, self._y, self._merge, self._options, self._trusted = x, y, merge, options, trusted

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        pairs = self._choose(folder / _CHOSEN)
        threshold, judged = self._judge(pairs)
        rows, written = self._rows(folder / _CHOSEN, -np.inf if threshold is None else threshold), 0
        with naming(folder), open(folder / MINED_FILE, "w", encoding="utf-8", newline="\n") as file:
            if self._languages:
                written = write_memory(file, self._languages, rows)
            else:
                for score, source, target in rows:
                    file.write(f"{score:.6f}\t{source}\t{target}\n")
                    written += 1
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
        options, k, sources, planted = self._options, self._options.neighbours, len(self._x.side), None
        x, y = (self._merge.found(side) for side in OTHER)
        if self._trusted:
            planted = self._trusted.planted(x, y)
            judgement = judge_by_planting(pairs, sources, planted)
        else:
            judgement = judge_alone(sample_alone(x, y, k, options.margin))
        if judgement is None:
            return options.threshold, None
        threshold = self._threshold(pairs, sources, judgement)
        at = -np.inf if threshold is None else threshold
        judged = {
            "precision": judgement.precision(pairs, at),
            "recall": judgement.recall(pairs, at, sources),
            "translated": judgement.translated,
        }
        if self._trusted and planted:
            low, high = planting_interval(pairs, sources, planted, at)
            found, mistaken = np.mean(planted.is_right & (planted.present >= at)), np.mean(planted.absent >= at)
            judged |= {"precision_low": low, "precision_high": high, "found": found, "mistaken": mistaken}
        judged = {name: 100 * float(share) for name, share in judged.items()}
        if self._trusted and planted:
            judged |= {**self._trusted.counts, "misfit": planting_misfit(pairs, sources, planted, judgement.translated)}
        return threshold, judged

    def _threshold(self, pairs: ScoreCounts, sources: int, judgement: Judgement) -> float | None:
        options = self._options
        if options.threshold is not None:
            return options.threshold
        threshold = judgement.threshold(pairs, sources, options.least_precision)
        if threshold is not None and not self._trusted and judgement.precision(pairs, threshold) < _PROBABLE:
            probable = judgement.threshold(pairs, sources, _PROBABLE)
            threshold = float(pairs.score[-1]) if probable is None else probable
        if threshold is None and options.least_precision is not None:
            best = judgement.precision(pairs, pairs.score[-1]) if len(pairs.score) else 0.0
            cure = f"lower `least_precision`, to {np.floor(1000 * best) / 1000:g} at most"
            raise UserError(f"no threshold has a precision of {options.least_precision:g}", cure=cure)
        return threshold

    def _rows(self, file: Path, least: float) -> Iterator[tuple[float, Any, Any]]:
        """Yield score, source and target of the pairs that reach a score."""
        for _, some in ArrayFile.open(file, "pairs", "remove the folder to begin anew").blocks(_CHOSEN_BYTES):
            some = some[some[:, 0] >= least]
            rows = some[:, 1:].astype(np.int64)
            columns = self._x.columns(rows[:, 0]), self._y.columns(rows[:, 1])
            yield from zip(some[:, 0].tolist(), *columns, strict=True)
