"""Choice of sentence pairs that may be translations: the best neighbour by margin, from one side, the other or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from xrep.retrieval.margins import Margin, apply_margin, neighbour_means
from xrep.retrieval.neighbours import Neighbours

Retrieval = Literal["forward", "backward", "intersection", "max"]
"""``forward``: for each source the best target among its neighbours; ``backward``: for each target the best source;
``intersection``: pairs that are both; ``max``: pairs that are either (Artetxe and Schwenk, 2019, arXiv:1811.01136)."""
RETRIEVALS: tuple[str, ...] = get_args(Retrieval)


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
