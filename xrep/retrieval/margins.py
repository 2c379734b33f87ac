"""Margin scores of sentence pairs, and the choice of pairs that may be translations: the best neighbours by margin.

A short or common sentence may be near to all its neighbours, but cannot be a translation of them all. Artetxe and
Schwenk (2019, "Margin-based Parallel Corpus Mining with Multilingual Sentence Embeddings", arXiv:1811.01136) compare
a = cos(x, y) with b = ½ mean_x + ½ mean_y, the mean cosines of x and of y with their k nearest neighbours on the other
side: absolute a, distance a - b, ratio a / b. "Dual-Alignment Pre-training for Cross-lingual Sentence Embedding" writes
the ratio without the ½ (equation 8): its scores are half of these, and the ranking is the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np

from xrep.errors import UserError
from xrep.retrieval.tiles import neighbours
from xrep.retrieval.topk import TopK

Margin = Literal["absolute", "distance", "ratio"]
MARGINS: tuple[str, ...] = get_args(Margin)
Retrieval = Literal["forward", "backward", "intersection", "max"]
"""``forward``: for each source the best target among its neighbours; ``backward``: for each target the best source;
``intersection``: pairs that are both; ``max``: pairs that are either (Artetxe and Schwenk, 2019, arXiv:1811.01136)."""
RETRIEVALS: tuple[str, ...] = get_args(Retrieval)
_SCORED = 1 << 19
"""Number of neighbours that are read and scored at a time."""


class Found(Protocol):
    """The neighbours of all rows of a side, in memory (``TopK``) or on disk."""

    @property
    def k(self) -> int: ...

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> TopK: ...


def apply_margin(cosine: np.ndarray, mean_x: np.ndarray, mean_y: np.ndarray, margin: Margin) -> np.ndarray:
    """Return the scores of pairs, given their cosines and, in arrays that can be broadcast to these, the mean cosines
    of x and of y with their neighbours."""
    if margin not in MARGINS:
        raise ValueError(f"margin must be one of {', '.join(MARGINS)}, not {margin!r}")
    if margin == "absolute":
        return cosine
    around = (mean_x + mean_y) / 2
    if margin == "distance":
        return cosine - around
    # A mean that is not positive says nothing about the scale, so a pair with such a mean must not be the best.
    return np.where(around > 0, cosine / np.where(around > 0, around, 1), -np.inf).astype(around.dtype)


def neighbour_means(found: Found) -> np.ndarray:
    """Return the mean cosine of each row with its neighbours, or 0 where an approximate search found none: [N]."""
    means = []
    for _, index_BK, cosine_BK in _blocks(found):
        there_BK = index_BK >= 0  # others were not found
        sums_B = np.where(there_BK, cosine_BK, 0).sum(axis=1)
        means.append((sums_B / np.maximum(there_BK.sum(axis=1), 1)).astype(cosine_BK.dtype))
    return np.concatenate(means)


def _blocks(found: Found) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the number of the first row, the indices and the cosines of some rows at a time, [B, k]; once at least."""
    step = max(1, _SCORED // max(1, found.k))
    for start in range(0, max(1, len(found)), step):
        some = found.slice(start, start + step)
        yield start, some.index.numpy(), some.similarity.numpy()


def margin_scores(x: np.ndarray, y: np.ndarray, k: int, margin: Margin) -> np.ndarray:
    """Return the margin scores of all pairs of L2-normalised rows of x [N, D] and y [M, D], float [N, M], with k
    neighbours in each direction, as ``neighbours`` finds them."""
    mean_x, mean_y = map(neighbour_means, neighbours(x, y, k, k))
    return apply_margin(x @ y.T, mean_x[:, None], mean_y, margin)


def check_neighbours(k: int, *counts: int) -> None:
    """Raise a UserError unless sides with so many sentences each have k of them."""
    fewest = min(counts)
    if k < 1:
        raise UserError(f"{k} neighbours", cure="give at least 1")
    if k > fewest:
        cure = f"lower `neighbours` to {fewest}, or give more sentences" if fewest else "give more sentences"
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

    def take(self, which: np.ndarray | slice) -> Candidates:
        """Return some of the candidates, selected by a mask, by indices or by a slice."""
        return Candidates(self.source[which], self.target[which], self.score[which])


def choose(x: Found, y: Found, margin: Margin, retrieval: Retrieval, *, one_to_one: bool = False) -> Candidates:
    """Choose candidate pairs, of which each source, and with ``one_to_one`` each target, is in at most one: pairs are
    taken from the best to the worst, and those that share a side with one taken before are left out.

    Args:
        x, y: The neighbours of sources, which are targets, and those of targets. Memory holds about 40 bytes for each
            row of x and of y, and some of their neighbours at a time.
    """
    pairs = _candidates(x, y, margin, retrieval)
    sources, targets, taken = pairs.source.data, pairs.target.data, array("q")
    used_x, used_y = bytearray(len(x)), bytearray(len(y))
    order = np.lexsort((pairs.target, pairs.source, -pairs.score))
    for number in order[: np.count_nonzero(pairs.score > -np.inf)].data:
        source, target = sources[number], targets[number]
        if not used_x[source] and not used_y[target]:
            used_x[source], used_y[target] = True, one_to_one
            taken.append(number)
    return pairs.take(np.frombuffer(taken, np.int64))


def _candidates(x: Found, y: Found, margin: Margin, retrieval: Retrieval) -> Candidates:
    """Return the candidates in any order; in both directions, some of them twice. A score is -inf if there is none."""
    mean_x, mean_y = neighbour_means(x), neighbour_means(y)
    target, forward = _best(x, mean_x, mean_y, margin)
    source, backward = _best(y, mean_y, mean_x, margin)
    if retrieval == "intersection":
        forward[source[target] != np.arange(len(x))] = -np.inf
    directions = {"backward": slice(1, 2), "max": slice(0, 2)}.get(retrieval, slice(0, 1))
    columns = (np.arange(len(x)), source), (target, np.arange(len(y))), (forward, backward)
    return Candidates(*(np.concatenate(column[directions]) for column in columns))


def _best(found: Found, mean_N: np.ndarray, mean_M: np.ndarray, margin: Margin) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbour of each row that has the best score with it, and this score, [N] each."""
    index, score = list[np.ndarray](), list[np.ndarray]()
    for start, index_BK, cosine_BK in _blocks(found):
        # Where an approximate search found nothing, the index is -1 and the cosine -inf, so the score is, too.
        scores_BK = apply_margin(cosine_BK, mean_N[start : start + len(index_BK), None], mean_M[index_BK], margin)
        best_B = np.arange(len(index_BK)), scores_BK.argmax(axis=1)
        index.append(index_BK[best_B])
        score.append(scores_BK[best_B])
    return np.concatenate(index), np.concatenate(score)


def first_of_each(values: np.ndarray) -> np.ndarray:
    """Return the positions where each value of an array [P] occurs for the first time, in ascending order."""
    return np.sort(np.unique(values, return_index=True)[1])
