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

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from xrep.errors import UserError
from xrep.retrieval.neighbours import Neighbours, neighbours

Margin = Literal["absolute", "distance", "ratio"]
MARGINS: tuple[str, ...] = get_args(Margin)
Retrieval = Literal["forward", "backward", "intersection", "max"]
"""``forward``: for each source the best target among its neighbours; ``backward``: for each target the best source;
``intersection``: pairs that are both; ``max``: pairs that are either (Artetxe and Schwenk, 2019, arXiv:1811.01136)."""
RETRIEVALS: tuple[str, ...] = get_args(Retrieval)


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


def neighbour_means(nearest: Neighbours) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean cosine of each row with its k neighbours, or with those that an approximate search found (0 if
    none): [N] for x, [M] for y."""

    def mean_of_each(index_NK: np.ndarray, similarity_NK: np.ndarray) -> np.ndarray:
        there_NK = index_NK >= 0  # others were not found
        total_N = np.where(there_NK, similarity_NK, 0).sum(axis=1)
        return (total_N / np.maximum(there_NK.sum(axis=1), 1)).astype(similarity_NK.dtype)

    return mean_of_each(nearest.xy, nearest.xy_similarity), mean_of_each(nearest.yx, nearest.yx_similarity)


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
    if retrieval not in RETRIEVALS:
        raise ValueError(f"retrieval must be one of {', '.join(RETRIEVALS)}, not {retrieval!r}")
    mean_x, mean_y = neighbour_means(nearest)
    sides = []
    if retrieval != "backward":
        sides.append(_best(nearest.xy, nearest.xy_similarity, mean_x, mean_y, margin))
    if retrieval != "forward":
        of_y, of_x, score = _best(nearest.yx, nearest.yx_similarity, mean_y, mean_x, margin)
        sides.append((of_x, of_y, score))
    if retrieval == "intersection":
        backward = np.full(len(nearest.yx), -1, dtype=np.int64)
        backward[sides[1][1]] = sides[1][0]
        both = backward[sides[0][1]] == sides[0][0]
        sides = [tuple(column[both] for column in sides[0])]
    source, target, score = (np.concatenate(columns) for columns in zip(*sides, strict=True))
    ordered = Candidates(source, target, score).take(np.lexsort((target, source, -score)))
    return _without_repetition(ordered) if one_to_one else ordered.take(first_of_each(ordered.source))


def _best(
    neighbours_NK: np.ndarray, similarity_NK: np.ndarray, mean_N: np.ndarray, mean_M: np.ndarray, margin: Margin
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows that have a candidate, the (nearest) neighbour with the best score for each, and that score."""
    # If an approximate search found fewer than k, the index is -1 and the similarity -inf, so the score is -inf, too.
    scores_NK = apply_margin(similarity_NK, mean_N[:, None], mean_M[neighbours_NK], margin)
    best_N = scores_NK.argmax(axis=1)[:, None]
    score_N = np.take_along_axis(scores_NK, best_N, axis=1)[:, 0]
    rows = np.flatnonzero(score_N > -np.inf)
    return rows, np.take_along_axis(neighbours_NK, best_N, axis=1)[rows, 0], score_N[rows]


def first_of_each(values: np.ndarray) -> np.ndarray:
    """Return the positions where each value of an array [P] occurs for the first time, in ascending order."""
    return np.sort(np.unique(values, return_index=True)[1])


def _without_repetition(ordered: Candidates) -> Candidates:
    sources, targets = (bytearray(int(rows.max(initial=-1)) + 1) for rows in (ordered.source, ordered.target))
    kept = np.zeros(len(ordered), dtype=bool)
    for place, (source, target) in enumerate(zip(ordered.source.data, ordered.target.data, strict=True)):
        if not sources[source] and not targets[target]:
            sources[source] = targets[target] = kept[place] = True
    return ordered.take(kept)
