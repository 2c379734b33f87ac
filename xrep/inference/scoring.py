"""Score the pairs of aligned text by how well they translate each other, and write the good ones, in bounded memory: a
job of units that any engine does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.errors import UserError
from xrep.files import naming
from xrep.inference.aligned import PairedSide, ReadAligned
from xrep.inference.encoding import HeldEncoder
from xrep.inference.nearest import Merge, search_stages
from xrep.inference.pair_files import PAIRS_FILE, RECORDS, run_pairs_job, write_pairs
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.settings import ScoringOptions
from xrep.inference.text_sides import search_origin
from xrep.jobs.engines import LOCAL, Engine
from xrep.jobs.outputs import states_of
from xrep.jobs.plan import Advance, ChoiceError, Stage
from xrep.metrics.extraction import best_threshold
from xrep.metrics.mined import ScoreCounts
from xrep.retrieval.margins import apply_margin, neighbour_means
from xrep.retrieval.topk import pair_similarities
from xrep.store.arrays import block_bounds
from xrep.text.cleaning import CleaningOptions
from xrep.text.find import Bitext
from xrep.text.records import check_format

_SCORES = "scores.npy"
_BLOCK = 1 << 13
"""Number of pairs that are scored at a time."""
_BINS, _LEAST = 50, np.float32(-1e9)
"""Number of bins of a histogram, and the lowest score, because minus infinity cannot be written in all formats."""
_FEWEST = 10
"""Number of trusted pairs, and of wrong ones that are made of them, that are needed."""


@dataclass(frozen=True)
class ScoredPairs:
    """The result of ``score_pairs``.

    ``written`` of all ``pairs`` that were read are in the output, those from the ``threshold`` on (None: all that no
    rule has left out). ``dropped`` counts the pairs that each rule left out. ``histogram`` has the ``edges`` of bins of
    scores, and how many pairs of the ``text``, and ``right`` and ``wrong`` trusted ones, are in each bin (in the outer
    ones also those beyond). ``trusted`` has the numbers of these right and wrong pairs, precision, recall and F1 of the
    threshold on them, in percent, and what follows for a text whose wrong pairs are of that kind: how much of what the
    rules left is right, and of what was written. The latter are left out if the scores of the text contradict it.
    """

    path: str
    pairs: int
    written: int
    threshold: float | None
    dropped: dict[str, int]
    trusted: dict[str, float] | None
    histogram: dict[str, list[float]]
    settings: dict[str, Any]
    version: str
    seconds: float


def score_pairs(
    bitext: Bitext,
    output: str | Path,
    options: ScoringOptions,
    *,
    encoder: SentenceEncoder,
    cleaning: CleaningOptions | None = None,
    background: tuple[Sequence[str], Sequence[str]] = ((), ()),
    trusted: Bitext | None = None,
    engine: Engine = LOCAL,
    show_progress: bool = False,
) -> ScoredPairs | None:
    """Write pairs with their scores, in the order of the text: lines ``score<TAB>cosine<TAB>source<TAB>target``, or
    in the format that the name of the output says (``RECORDS``).

    The score is the margin of a pair (``xrep.retrieval.margins``). Neighbours are searched among the different
    sentences of the text, of the trusted pairs and of the ``background``. Pairs that ``cleaning`` drops are neither
    written nor neighbours. An interrupted call goes on in ``{output}.job``, as ``mine`` does, where texts, vectors and
    scores are on disk. The text is read once for each side.

    Args:
        cleaning: Rules, of which ``deduplicate`` and ``sample`` are not used; None: those of ``xrep-preprocess``.
        background: Files of further text in the languages of source and of target.
        trusted: Pairs that are right. The target of the next one makes a wrong pair of each, and the threshold is
            chosen that separates both best.
        engine: What does the units. None is returned by processes that share the work and had nothing left to do.

    Raises:
        UserError: A text is invalid, such as two files of different lengths, the encoder does not know a language, no
            pair is left, there are fewer sentences than neighbours, or no threshold is as precise as is wanted.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    check_format(output, RECORDS)
    if options.margin == "absolute" and any(background):
        raise UserError("`background` is for neighbours, of which the margin absolute has none", cure="leave it out")
    if trusted and (options.keep is not None or options.threshold is not None):
        raise UserError("the trusted pairs choose the threshold", cure="leave out `keep` and `threshold`, or `trusted`")
    if options.least_precision is not None and trusted is None:
        raise UserError("`least_precision` is that of trusted pairs", cure="give `trusted`")
    rules, held, aligned = cleaning or CleaningOptions(), HeldEncoder(encoder), [bitext, *filter(None, [trusted])]
    read = [ReadAligned(side, aligned, files, rules) for side, files in enumerate(background)]
    k = 1 if options.margin == "absolute" else options.neighbours
    x, y = sides = [PairedSide(one, held, search_origin(encoder, one.lang, options), k) for one in read]
    found, merge = search_stages(x, y, options) if options.margin != "absolute" else ([], None)
    scores = ScorePairs(x, y, merge, options)
    write = WriteScored(scores, bitext.languages, str(output), options)
    files = [*(path for one in aligned for path in one.paths), *background[0], *background[1]]
    facts = {"cleaning": asdict(rules), "input": states_of(files), "encoder": held.fingerprint}
    facts |= {"bitext": asdict(bitext), "trusted": trusted and asdict(trusted), "background": background}
    stages = [*(stage for side in sides for stage in side.stages), *found, scores, write]
    scored = run_pairs_job("score", output, options, facts, stages, engine, show_progress)
    return ScoredPairs(**scored) if scored else None


class ScorePairs(Stage):
    """Write the score and the cosine of pairs, float32 [n, 2], NaN for those that were left out. A unit is some pairs
    of the text or, behind all of these, some trusted ones, and then again some with the target of the next one."""

    name, unit = "score", "pairs"

    def __init__(self, x: PairedSide, y: PairedSide, merge: Merge | None, options: ScoringOptions) -> None:
        """``merge`` has the neighbours; None: the margin needs none."""
        self.x, self.y, self._merge, self._options = x, y, merge, options

    @cached_property
    def counts(self) -> tuple[int, int]:
        """The numbers of pairs of the text, and of trusted pairs."""
        text, *trusted = (result.facts["rows"] for result in self.x.read.results[: len(self.x.read.aligned)])
        return text, sum(trusted)

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        text, trusted = self.counts
        more = block_bounds(2 * trusted, _BLOCK)
        return [*block_bounds(text, _BLOCK), *((text + start, text + stop) for start, stop in more)]

    def weight(self, unit: tuple[int, int]) -> int:
        return unit[1] - unit[0]

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> dict[str, Any]:
        lines, (text, trusted) = np.arange(*unit), self.counts
        of_x, of_y = self.x.distinct.numbers, self.y.distinct.numbers
        shifted = lines >= text + trusted
        sources = lines - trusted * shifted
        kept = text + np.flatnonzero(of_x.read(np.arange(text, text + trusted)) >= 0)  # by the rules
        behind, targets = np.searchsorted(kept, sources[shifted], "right"), sources.copy()
        targets[shifted] = kept[behind % max(1, len(kept))]
        x, y = of_x.read(sources), of_y.read(targets)
        is_right = (x == of_x.read(targets)) | (y == of_y.read(sources))  # although it may be shifted
        there = (x >= 0) & (y >= 0) & ~(shifted & is_right)
        scores = np.full((len(lines), 2), np.nan, np.float32)
        if there.any():
            scores[there] = self._scores(x[there], y[there])
        np.save(folder / _SCORES, scores)
        return {}

    def _scores(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return score and cosine of pairs of sentences, [n, 2]."""
        rows, one, other = torch.arange(len(x)), self.x.side.read(x), self.y.side.read(y)
        cosine = pair_similarities(torch.from_numpy(one), torch.from_numpy(other), rows, rows).numpy()
        mean_x = mean_y = np.zeros(1, np.float32)
        if self._merge:
            mean_x = neighbour_means(self._merge.found("x").take(x))
            mean_y = neighbour_means(self._merge.found("y").take(y))
        score = apply_margin(cosine, mean_x, mean_y, self._options.margin)
        return np.stack((np.maximum(score, _LEAST), cosine), axis=1)

    def blocks(self, *, trusted: bool = False) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the first line and the scores and cosines, [n, 2], of units of the text, or of the trusted pairs."""
        for (start, _), result in zip(self.units, self.results, strict=True):
            if (start >= self.counts[0]) == trusted:
                yield start, result.array(_SCORES).read(slice(None))


class WriteScored(Stage):
    """Choose the threshold, and write the pairs that reach it."""

    name, unit, choices = "write", "files", ("keep", "least_precision", "threshold")

    def __init__(self, scores: ScorePairs, languages: tuple[str, str], output: str, options: ScoringOptions) -> None:
        self._scores, self._languages, self._output, self._options = scores, languages, output, options

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        pairs, trusted = self._scores.counts
        dropped, options = self._scores.x.read.results[0].facts["dropped"], self._options
        left, threshold, figures = pairs - sum(dropped.values()), options.threshold, None
        right, wrong = np.empty((2, 0), np.float32)
        of_text = ScoreCounts.of(np.empty(0))
        for _, block in self._scores.blocks():
            of_text += ScoreCounts.of(block[~np.isnan(block[:, 0]), 0])
        if trusted:
            scores = np.concatenate([block[:, 0] for _, block in self._scores.blocks(trusted=True)])
            right, wrong = (some[~np.isnan(some)] for some in np.split(scores, 2))
            if min(len(right), len(wrong)) < _FEWEST:
                problem = f"{len(right):,} trusted pairs and {len(wrong):,} wrong ones that are made of them"
                cure = f"give more of them, so that there are {_FEWEST} of each (rules leave out pairs, too)"
                raise UserError(problem, path=self._scores.x.read.aligned[1].paths[0], cure=cure)
            scores, is_right = np.concatenate((right, wrong)), np.arange(len(right) + len(wrong)) < len(right)
            try:
                threshold, found = best_threshold(scores, is_right, len(right), options.least_precision)
            except UserError as error:
                raise ChoiceError(error.problem, cure=error.cure) from None
            figures = {name: float(vars(found)[name]) for name in ("precision", "recall", "f1")}
            figures |= {"right": len(right), "wrong": len(wrong)}
        elif options.keep is not None:
            count = min(left, max(1, round(options.keep * pairs)))
            threshold = of_text.threshold(count)
        least = -np.inf if threshold is None else threshold
        with naming(folder):
            names = "score", "cosine", *self._languages
            written = write_pairs(folder / PAIRS_FILE, self._output, names, self._rows(least))
        if figures:
            fallout = int((wrong >= least).sum()) / max(1, len(wrong))
            if shares := estimated(written / left, figures["recall"] / 100, fallout, len(right)):
                figures |= {"estimated_right": 100 * shares[0], "estimated_precision": 100 * shares[1]}
        made = {"pairs": pairs, "written": written, "threshold": threshold, "dropped": dropped, "trusted": figures}
        return {**made, "histogram": _histogram(of_text, {"right": right, "wrong": wrong})}

    def _rows(self, least: float) -> Iterator[tuple[float, float, str, str]]:
        texts = self._scores.x.read.texts, self._scores.y.read.texts
        for start, scores in self._scores.blocks():
            kept = _reaching(scores, least)
            yield from zip(*scores[kept].T.tolist(), *(some.take(start + kept) for some in texts), strict=True)


def estimated(kept: float, recall: float, fallout: float, count: int) -> tuple[float, float] | None:
    """Return the share of a text that is right, and that of what is kept of it, given the shares that are ``kept`` of
    the text, of right pairs and of wrong ones, of which there are ``count`` each. What is kept is explained by no other
    shares than 0 to 1: by none if it exceeds that of right pairs by three standard errors."""
    probable = (recall * count + 1) / (count + 2)
    if kept > recall + 3 * math.sqrt(probable * (1 - probable) / count):
        return None
    share = min(max((kept - fallout) / max(recall - fallout, 1e-9), 0.0), 1.0)
    return share, share * recall / max(share * recall + (1 - share) * fallout, 1e-9)


def _histogram(text: ScoreCounts, trusted: dict[str, np.ndarray]) -> dict[str, list[float]]:
    inner = text.score[text.score > _LEAST]
    edges = np.linspace(*((inner[0], inner[-1]) if len(inner) else (0, 1)), _BINS + 1)
    counts = {"edges": edges, "text": np.histogram(text.score.clip(edges[0], edges[-1]), edges, weights=text.count)[0]}
    counts |= {name: np.histogram(some.clip(edges[0], edges[-1]), edges)[0] for name, some in trusted.items()}
    return {name: some.tolist() for name, some in counts.items()}


def _reaching(scores: np.ndarray, least: float) -> np.ndarray:
    """Return the places of the pairs that reach a score, which may lie between two numbers of float32."""
    return np.flatnonzero(scores[:, 0].astype(np.float64) >= least)
