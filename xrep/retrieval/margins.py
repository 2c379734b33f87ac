"""Margin scores of sentence pairs, and the choice of pairs that may be translations: the best neighbours by margin.

The margin compares the cosine of a pair with the cosines of the nearest neighbours of both sentences.

A short or common sentence may be near to all its neighbours, but cannot be a translation of them all. Artetxe and
Schwenk (2019, "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings", arXiv:1811.01136) compare
a = cos(x, y) with b = ½ mean_x + ½ mean_y, the mean cosines of x and of y with their k nearest neighbours on the other
side:

    absolute   a
    distance   a - b
    ratio      a / b

"Dual-Alignment Pre-training for Cross-lingual Sentence Embedding" writes the ratio without the ½ (equation 8): its
scores are half of these, and the ranking is the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from xrep.errors import UserError
from xrep.retrieval.mapped import allocate, put, release, take
from xrep.retrieval.neighbours import Neighbours, neighbours

Margin = Literal["absolute", "distance", "ratio"]
MARGINS: tuple[str, ...] = get_args(Margin)
Retrieval = Literal["forward", "backward", "intersection", "max"]
"""``forward``: for each source the best target among its neighbours; ``backward``: for each target the best source;
``intersection``: pairs that are both; ``max``: pairs that are either (Artetxe and Schwenk, 2019, arXiv:1811.01136)."""
RETRIEVALS: tuple[str, ...] = get_args(Retrieval)
_HELD = 1 << 19
"""Number of neighbours that are scored at a time, and four times that of candidates that are sorted."""
_SORTED = np.dtype([("key", "f8"), ("source", "i8"), ("target", "i8")])
"""A candidate in a sorted array; the key is its score, turned around so that the best comes first."""


def apply_margin(cosine: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray, margin: Margin) -> np.ndarray:
    """Return the scores of pairs, given their cosines and the mean cosines of x and of y with their neighbours. The
    three arrays are broadcast against each other.

    Raises:
        ValueError: The margin is unknown.
    """
    if margin not in MARGINS:
        raise ValueError(f"margin must be one of {', '.join(MARGINS)}, not {margin!r}")
    if margin == "absolute":
        return np.broadcast_to(cosine, np.broadcast_shapes(cosine.shape, mean_x.shape, mean_y.shape))
    around = (mean_x + mean_y) / 2
    if margin == "distance":
        return cosine - around
    # A mean that is not positive says nothing about the scale, so a pair with such a mean must not be the best.
    return np.where(around > 0, cosine / np.where(around > 0, around, 1), -np.inf).astype(around.dtype)


def neighbour_means(nearest: Neighbours, folder: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean cosine of each row with its k neighbours, or with those that an approximate search found (0 if
    none): [N] for x, [M] for y, in files of a folder or in memory."""

    def mean_of_each(index_NK: np.ndarray, similarity_NK: np.ndarray) -> np.ndarray:
        mean_N = allocate(folder, len(index_NK), dtype=similarity_NK.dtype.type)
        for some in _rows_of(index_NK):
            there_NK = index_NK[some] >= 0  # others were not found
            total_N = np.where(there_NK, similarity_NK[some], 0).sum(axis=1)
            mean_N[some] = total_N / np.maximum(there_NK.sum(axis=1), 1)
            release(index_NK, similarity_NK, mean_N)
        return mean_N

    return mean_of_each(nearest.xy, nearest.xy_similarity), mean_of_each(nearest.yx, nearest.yx_similarity)


def _rows_of(index_NK: np.ndarray) -> Iterator[slice]:
    step = max(1, _HELD // index_NK.shape[1])
    return (slice(start, min(start + step, len(index_NK))) for start in range(0, len(index_NK), step))


def margin_scores(x: np.ndarray, y: np.ndarray, k: int, margin: Margin) -> np.ndarray:
    """Return the margin scores of all pairs of L2-normalised rows of x [N, D] and y [M, D], float [N, M].

    Args:
        k: number of neighbours in each direction; the absolute margin does not use it.

    Raises:
        UserError: k is not between 1 and the number of sentences of the smaller side.
        ValueError: the margin is unknown, or the widths differ.
    """
    dtype = np.result_type(x, y, np.float32)
    x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    mean_x, mean_y = np.zeros(len(x), dtype), np.zeros(len(y), dtype)
    if margin != "absolute":
        check_neighbours(k, len(x), len(y))
        mean_x, mean_y = neighbour_means(neighbours(x, y, k))
    return apply_margin(x @ y.T, mean_x[:, None], mean_y[None, :], margin)


def check_neighbours(k: int, sources: int, targets: int) -> None:
    """Raise a UserError unless each side has k neighbours on the other."""
    fewest = min(sources, targets)
    if k < 1:
        raise UserError(f"{k} neighbours", cure="give at least 1")
    if k > fewest:
        there = f"{sources:,} sentences and {targets:,}" if sources != targets else f"{sources:,} sentences a side"
        cure = f"lower `neighbours` to {fewest}, or give more sentences" if fewest else "give more sentences"
        raise UserError(f"{k} neighbours, but there are {there}", cure=cure)


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


def choose(nearest: Neighbours, margin: Margin, retrieval: Retrieval, *, one_to_one: bool = False) -> Candidates:
    """Choose candidate pairs, of which each source, and with ``one_to_one`` each target, is in at most one: pairs are
    taken from the best to the worst, and those that share a side with one taken before are left out.

    Raises:
        ValueError: the retrieval or the margin is unknown.
    """
    empty = np.empty(0, np.int64)
    blocks = [Candidates(empty, empty, np.empty(0, nearest.xy_similarity.dtype))]
    blocks += choose_in_blocks(nearest, margin, retrieval, one_to_one=one_to_one)
    return Candidates(*map(np.concatenate, zip(*(vars(block).values() for block in blocks), strict=True)))


def choose_in_blocks(
    nearest: Neighbours,
    margin: Margin,
    retrieval: Retrieval,
    *,
    one_to_one: bool = False,
    folder: Path | None = None,
) -> Iterator[Candidates]:
    """Yield the candidates that ``choose`` returns, some at a time.

    Args:
        folder: Where everything that grows with the number of sentences is kept, in files without names; None: in
            memory.
    """
    if retrieval not in RETRIEVALS:
        raise ValueError(f"retrieval must be one of {', '.join(RETRIEVALS)}, not {retrieval!r}")
    mean_x, mean_y = neighbour_means(nearest, folder)
    used_x, used_y = (allocate(folder, len(mean), dtype=np.bool_) for mean in (mean_x, mean_y))
    runs = []
    for found in _candidates(nearest, mean_x, mean_y, margin, retrieval, folder):
        order = np.lexsort((found.target, found.source, -found.score))
        runs.append(allocate(folder, len(found), dtype=_SORTED))
        runs[-1]["key"] = -found.score[order]
        runs[-1]["source"], runs[-1]["target"] = found.source[order], found.target[order]
        release(runs[-1])
    for rows in _merged(runs):
        block = Candidates(rows["source"], rows["target"], -rows["key"].astype(mean_x.dtype))
        block = block.take(~take(used_x, block.source))
        if one_to_one:
            block = _without_repetition(block.take(~take(used_y, block.target)))
            put(used_y, block.target, True)
        else:
            block = block.take(first_of_each(block.source))
        put(used_x, block.source, True)
        yield block


def _candidates(
    nearest: Neighbours,
    mean_x: np.ndarray,
    mean_y: np.ndarray,
    margin: Margin,
    retrieval: Retrieval,
    folder: Path | None,
) -> Iterator[Candidates]:
    """Yield the candidates in any order; in both directions, some of them twice."""
    forward = _best(nearest.xy, nearest.xy_similarity, mean_x, mean_y, margin)
    backward = _best(nearest.yx, nearest.yx_similarity, mean_y, mean_x, margin)
    if retrieval == "intersection":
        source_after = allocate(folder, len(mean_y), dtype=np.int64)  # of each target, the best source + 1
        for target, source, _ in backward:
            source_after[target] = source + 1
            release(source_after)
        for source, target, score in forward:
            both = take(source_after, target) == source + 1
            yield Candidates(source[both], target[both], score[both])
        return
    if retrieval != "backward":
        for source, target, score in forward:
            yield Candidates(source, target, score)
    if retrieval != "forward":
        for target, source, score in backward:
            yield Candidates(source, target, score)


def _best(
    neighbours_NK: np.ndarray, similarity_NK: np.ndarray, mean_N: np.ndarray, mean_M: np.ndarray, margin: Margin
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the rows that have a candidate, the (nearest) neighbour with the best score for each, and that score, for
    some rows at a time."""
    for some in _rows_of(neighbours_NK):
        index_BK = np.asarray(neighbours_NK[some])
        # If an approximate search found fewer than k, the index is -1 and the similarity -inf, so the score is, too.
        scores_BK = apply_margin(similarity_NK[some], mean_N[some, None], take(mean_M, index_BK), margin)
        best_B = scores_BK.argmax(axis=1)[:, None]
        score_B = np.take_along_axis(scores_BK, best_B, axis=1)[:, 0]
        rows = np.flatnonzero(score_B > -np.inf)
        yield some.start + rows, np.take_along_axis(index_BK, best_B, axis=1)[rows, 0], score_B[rows]
        release(neighbours_NK, similarity_NK, mean_N)


def _merged(runs: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Merge sorted arrays of ``_SORTED``: yield all rows in order, some at a time."""
    starts, step = [0] * len(runs), max(1, _HELD // max(1, 4 * len(runs)))
    while any(start < len(run) for start, run in zip(starts, runs, strict=True)):
        pieces, unread = list[np.ndarray](), list[tuple[float, int, int]]()
        for run, start in zip(runs, starts, strict=True):
            pieces.append(np.array(run[start : start + step]))
            release(run)
            if start + step < len(run):
                unread.append(pieces[-1][-1].item())
        if unread:  # what comes after the lowest of these rows may be preceded by rows that are not read yet
            pieces = [piece[: bisect_right(piece, min(unread), key=np.void.item)] for piece in pieces]
        starts = [start + len(piece) for start, piece in zip(starts, pieces, strict=True)]
        rows = np.concatenate(pieces)
        yield rows[np.lexsort((rows["target"], rows["source"], rows["key"]))]


def first_of_each(values: np.ndarray) -> np.ndarray:
    """Return the positions where each value of an array [P] occurs for the first time, in ascending order."""
    return np.sort(np.unique(values, return_index=True)[1])


def _without_repetition(ordered: Candidates) -> Candidates:
    sources, targets, kept = set[int](), set[int](), list[int]()
    for place, (source, target) in enumerate(zip(ordered.source.tolist(), ordered.target.tolist(), strict=True)):
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            kept.append(place)
    return ordered.take(np.array(kept, dtype=np.int64))
