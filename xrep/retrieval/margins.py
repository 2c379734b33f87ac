"""Margin scores of sentence pairs, and the choice of pairs that may be translations: the best neighbours by margin.

A short or common sentence may be near to all its neighbours, but cannot be a translation of them all. Artetxe and
Schwenk (2019, "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings", arXiv:1811.01136) compare
a = cos(x, y) with b = ½ mean_x + ½ mean_y, the mean cosines of x and of y with their k nearest neighbours on the other
side: absolute a, distance a - b, ratio a / b. "Dual-Alignment Pre-training for Cross-lingual Sentence Embedding" writes
the ratio without the ½ (equation 8): its scores are half of these, and the ranking is the same.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, Protocol

import numpy as np

from xrep.errors import UserError
from xrep.retrieval.in_memory import neighbours

if TYPE_CHECKING:
    from xrep.retrieval.topk import TopK

Margin = Literal["absolute", "distance", "ratio"]
Retrieval = Literal["forward", "backward", "intersection", "max"]
"""``forward``: for each source the best target among its neighbours; ``backward``: for each target the best source;
``intersection``: pairs that are both; ``max``: pairs that are either (Artetxe and Schwenk, 2019, arXiv:1811.01136)."""
_SCORED, _SORTED, _ROWS = 1 << 19, 1 << 15, 1 << 9
"""Number of neighbours that are scored at a time, of candidates that are taken at a time in the order of their scores,
and of those that are read at a time from each of the sorted runs."""


class Found(Protocol):
    """The neighbours of all rows of a side, in memory (``TopK``) or on disk."""

    @property
    def k(self) -> int: ...

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> TopK: ...


def apply_margin(cosine: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray, margin: Margin) -> np.ndarray:
    """Return the scores of pairs, given their cosines and the mean cosines of x and of y with their neighbours. The
    three arrays are broadcast against each other."""
    if margin == "absolute":
        return np.broadcast_to(cosine, np.broadcast_shapes(cosine.shape, mean_x.shape, mean_y.shape))
    around = (mean_x + mean_y) / 2
    if margin == "distance":
        return cosine - around
    # A mean that is not positive says nothing about the scale, so a pair with such a mean must not be the best.
    return np.where(around > 0, cosine / np.where(around > 0, around, 1), -np.inf).astype(around.dtype)


def neighbour_means(found: Found) -> np.ndarray:
    """Return the mean cosine of each row with its neighbours, or 0 where an approximate search found none: [N]."""
    means = []
    for _, _, cosine_BK in _blocks(found):
        means.append(mean_cosines(cosine_BK))
    return np.concatenate(means)


def mean_cosines(cosine: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis of the cosines that are not -inf, which is that of a neighbour that was not
    found, or 0 if none was: [..., k] -> [...]."""
    found = np.isfinite(cosine)
    return (np.where(found, cosine, 0).sum(axis=-1) / np.maximum(found.sum(axis=-1), 1)).astype(cosine.dtype)


def _blocks(found: Found) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of the first row, the indices and the cosines of some rows at a time, [B, k]; once at least."""
    step = max(1, _SCORED // max(1, found.k))
    for start in range(0, max(1, len(found)), step):
        some = found.slice(start, start + step)
        yield start, some.index.numpy(), some.similarity.numpy()


def margin_scores(x: np.ndarray, y: np.ndarray, k: int, margin: Margin) -> np.ndarray:
    """Return the margin scores of all pairs of L2-normalised rows of x [N, D] and y [M, D], float [N, M].

    The absolute margin does not use k, the number of neighbours in each direction; with the others, a UserError says
    that a side has fewer sentences.
    """
    dtype = np.result_type(x, y, np.float32)
    x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    mean_x, mean_y = np.zeros(len(x), dtype), np.zeros(len(y), dtype)
    if margin != "absolute":
        check_neighbours(k, len(x), len(y))
        mean_x, mean_y = map(neighbour_means, neighbours(x, y, k, k))
    return apply_margin(x @ y.T, mean_x[:, None], mean_y[None, :], margin)


def check_neighbours(k: int, *counts: int, more: str = "give more sentences") -> None:
    """Raise a UserError unless sides with so many sentences each have k of them; ``more`` says how they get more."""
    fewest = min(counts)
    if k < 1:
        raise UserError(f"{k} neighbours", cure="give at least 1")
    if k > fewest:
        cure = f"lower `neighbours` to {fewest}, or {more}" if fewest > 1 else more  # one neighbour is no comparison
        further = "".join(f" and {count:,}" for count in counts[1:])
        raise UserError(f"{k} neighbours, but there are {counts[0]:,} sentences{further}", cure=cure)


@dataclass(frozen=True)
class Candidates:
    """Candidate pairs, best first: rows of x and of y and their scores, [P] each. Of equal scores, the lowest source,
    then the lowest target comes first."""

    source: np.ndarray
    target: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def take(self, which: np.ndarray) -> Candidates:
        """Return some of the candidates, selected by a mask or by indices."""
        return Candidates(self.source[which], self.target[which], self.score[which])


def choose(x: Found, y: Found, margin: Margin, retrieval: Retrieval, *, one_to_one: bool = False) -> Candidates:
    """Choose candidate pairs, of which each source, and with ``one_to_one`` each target, is in at most one: pairs are
    taken from the best to the worst, and those that share a side with one taken before are left out.

    Args:
        x, y: The neighbours of sources, which are targets, and those of targets.
    """
    blocks = choose_in_blocks(x, y, margin, retrieval, one_to_one=one_to_one)
    return Candidates(*map(np.concatenate, zip(*(vars(block).values() for block in blocks), strict=True)))


def choose_in_blocks(
    x: Found, y: Found, margin: Margin, retrieval: Retrieval, *, one_to_one: bool = False, folder: Path | None = None
) -> Iterator[Candidates]:
    """Yield the candidates that ``choose`` returns, some at a time.

    Candidates are kept in a temporary file in ``folder``. Memory holds 5 bytes for each sentence, its mean and whether
    it is used, and with ``intersection`` 8 more for each target.
    """
    mean_x, mean_y = neighbour_means(x), neighbour_means(y)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        ends = [0]
        for found in _candidates(x, y, mean_x, mean_y, margin, retrieval):
            order = np.lexsort((found.target, found.source, -found.score))
            columns = -found.score[order].astype(np.float64), found.source[order], found.target[order]
            np.stack(columns, axis=1).tofile(file)  # float64 holds row numbers up to 2**53
            ends.append(ends[-1] + len(found))
        ordered = heapq.merge(*(_rows(file, *run) for run in pairwise(ends)))
        for some in _taken(ordered, len(x), len(y), one_to_one):
            yield Candidates(some.source, some.target, some.score.astype(mean_x.dtype))


def _taken(ordered: Iterator[list[float]], sources: int, targets: int, one_to_one: bool) -> Iterator[Candidates]:
    """Yield the candidates that are taken of rows (-score, source, target), which are in ascending order."""
    used_x, used_y, last = bytearray(sources), bytearray(targets), False
    while not last:
        rows, kept = np.array(list(islice(ordered, _SORTED))).reshape(-1, 3), list[int]()
        of_x, of_y = rows[:, 1].astype(np.int64), rows[:, 2].astype(np.int64)
        for place, (source, target) in enumerate(zip(of_x.tolist(), of_y.tolist(), strict=True)):
            if not used_x[source] and not used_y[target]:
                used_x[source], used_y[target] = True, one_to_one
                kept.append(place)
        yield Candidates(of_x, of_y, -rows[:, 0]).take(np.array(kept, np.int64))
        last = len(rows) < _SORTED


def _candidates(
    x: Found, y: Found, mean_x: np.ndarray, mean_y: np.ndarray, margin: Margin, retrieval: Retrieval
) -> Iterator[Candidates]:
    """Yield the candidates in any order; in both directions, some of them twice."""
    forward = _best(x, mean_x, mean_y, margin, "source", "target")
    backward = _best(y, mean_y, mean_x, margin, "target", "source")
    if retrieval == "intersection":
        source_of = np.full(len(y), -1)  # the best source of each target
        for some in backward:
            source_of[some.target] = some.source
        for some in forward:
            yield some.take(source_of[some.target] == some.source)
        return
    for some in {"forward": [forward], "backward": [backward], "max": [forward, backward]}[retrieval]:
        yield from some


def _best(
    found: Found, mean_N: np.ndarray, mean_M: np.ndarray, margin: Margin, side: str, other: str
) -> Iterator[Candidates]:
    """Yield each row that has a candidate with its (nearest) neighbour of the best score, some rows at a time."""
    for start, index_BK, cosine_BK in _blocks(found):
        # Where an approximate search found nothing, the index is -1 and the cosine -inf, so the score is, too.
        scores_BK = apply_margin(cosine_BK, mean_N[start : start + len(index_BK), None], mean_M[index_BK], margin)
        best_B = scores_BK.argmax(axis=1)[:, None]
        score_B, index_B = (np.take_along_axis(each, best_B, axis=1)[:, 0] for each in (scores_BK, index_BK))
        rows = np.flatnonzero(score_B > -np.inf)
        yield Candidates(**{side: start + rows, other: index_B[rows], "score": score_B[rows]})


def _rows(file: IO[bytes], first: int, last: int) -> Iterator[list[float]]:
    """Yield some rows of three numbers, of which few are in memory."""
    for start in range(first, last, _ROWS):
        file.seek(24 * start)
        yield from np.fromfile(file, np.float64, 3 * min(_ROWS, last - start)).reshape(-1, 3).tolist()
