"""What mining makes of trusted pairs and of some sources of the text, from which it is judged how many pairs are right.

The scores are those of ``xrep.retrieval.margins``, of few sentences, whose neighbours are read from files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xrep.inference.nearest import FoundNeighbours
from xrep.metrics.mined import Alone, Planted
from xrep.retrieval.margins import Margin, Retrieval, apply_margin, mean_cosines
from xrep.retrieval.topk import TopK

_SAMPLED = 1 << 13
"""Most sources of which the second candidates are looked at."""


@dataclass(frozen=True)
class Neighbourhood:
    """Some sentences A with their neighbours on the other side, [A, k], and these with theirs, [A, k, k].

    ``cosine`` and ``index`` are of the neighbours, ``mean`` is the mean cosine of each neighbour with its own
    neighbours, ``reverse_cosine`` and ``reverse_index`` are of those, and ``reverse_mean`` their mean cosines. Where an
    approximate search found fewer, the index is -1 and the cosine -inf.
    """

    cosine: np.ndarray
    index: np.ndarray
    mean: np.ndarray
    reverse_cosine: np.ndarray
    reverse_index: np.ndarray
    reverse_mean: np.ndarray

    @classmethod
    def of(cls, nearest: TopK, own: FoundNeighbours, other: FoundNeighbours) -> Neighbourhood:
        """``own`` are the neighbours of all sentences of the side of A, and ``other`` of all of the other side."""
        cosine, index = nearest.similarity.numpy(), nearest.index.numpy()
        reverse = other.take(np.maximum(index, 0).ravel())
        shape = *index.shape, other.k
        reverse_cosine = reverse.similarity.numpy().reshape(shape)
        reverse_index = reverse.index.numpy().reshape(shape)
        reverse_mean = mean_cosines(own.take(np.maximum(reverse_index, 0).ravel()).similarity.numpy()).reshape(shape)
        return cls(cosine, index, mean_cosines(reverse_cosine), reverse_cosine, reverse_index, reverse_mean)

    @cached_property
    def with_each(self) -> np.ndarray:
        """The mean cosine of each neighbour if the sentence itself joins the neighbour's neighbours: [A, k]."""
        last = self.reverse_cosine[..., -1]
        gain = np.where(np.isfinite(last), self.cosine - np.where(np.isfinite(last), last, 0), 0)
        return self.mean + np.maximum(gain, 0) / self.reverse_cosine.shape[-1]

    def rivals(self, mean: np.ndarray, margin: Margin, left_out: np.ndarray) -> np.ndarray:
        """Return the best score of each neighbour, which has a ``mean`` cosine [A, k], with its own neighbours, but for
        those that are ``left_out``, bool [A, k, k]: [A, k]."""
        score = _scores(self.reverse_cosine, mean[..., None], self.reverse_mean, margin)
        return np.where(left_out, -np.inf, score).max(axis=-1)

    def is_preferred(self, score: np.ndarray, margin: Margin) -> np.ndarray:
        """Return whether each neighbour prefers the sentence, with which it has a score, to its own neighbours, of
        which the last one makes room: bool [A, k]."""
        last = np.zeros(self.reverse_cosine.shape, bool)
        last[..., -1] = True
        is_near = self.cosine >= self.reverse_cosine[..., -1]
        return is_near & (score >= self.rivals(self.with_each, margin, last))


def _scores(cosine: np.ndarray, mean: np.ndarray, other: np.ndarray, margin: Margin) -> np.ndarray:
    found = np.isfinite(cosine)
    return np.where(found, apply_margin(np.where(found, cosine, 0), mean, other, margin), -np.inf)


def sample_alone(x: FoundNeighbours, y: FoundNeighbours, k: int, margin: Margin) -> Alone:
    """Return what is known of evenly spaced sources, of which k + 1 neighbours are known, without trusted pairs."""
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _SAMPLED)).astype(np.int64))
    near = Neighbourhood.of(x.take(rows), x.first(k), y.first(k))
    places = np.arange(near.index.shape[1])

    def candidate(left_out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return place, score, and whether it has no better partner, of the best candidate if one is not there."""
        cosine = near.cosine.copy()
        if left_out is None:
            cosine[:, k:] = -np.inf
        else:
            cosine[places == left_out[:, None]] = -np.inf
        score = _scores(cosine, mean_cosines(cosine)[:, None], near.mean, margin)
        place = score.argmax(axis=1)
        best, rival = (np.take_along_axis(some, place[:, None], 1)[:, 0] for some in (score, rivals))
        return place, best, best >= rival

    rivals = near.rivals(near.mean, margin, near.reverse_index == rows[:, None, None])
    first, best, mutual = candidate(None)
    _, second, second_mutual = candidate(first)
    known = np.isfinite(best) & np.isfinite(second)
    return Alone(*(some[known] for some in (best.astype(np.float64), second, mutual, second_mutual)))


def plant(
    cosine: np.ndarray,
    sources: Neighbourhood,
    targets: Neighbourhood,
    margin: Margin,
    retrieval: Retrieval,
    one_to_one: bool,
) -> Planted:
    """Return which pairs the sources of trusted pairs would be in, if each were planted into the texts alone, without
    and with its target.

    Args:
        cosine: [T] of the trusted pairs.
        sources: The trusted sources with their neighbours among the targets of the text.
        targets: The trusted targets with their neighbours among its sources.
    """
    needs_partner = one_to_one or retrieval in ("backward", "intersection")

    def best(mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the best score of each source, which has a mean cosine, and whether this is its pair."""
        score = _scores(sources.cosine, mean[:, None], sources.with_each, margin)
        wins = sources.is_preferred(score, margin)
        if retrieval == "backward":
            score = np.where(wins, score, -np.inf)
        place = score.argmax(axis=1)[:, None]
        found, won = (np.take_along_axis(some, place, 1)[:, 0] for some in (score, wins))
        return found, np.isfinite(found) & (won | (not needs_partner))

    own_x, own_y = (mean_cosines(_joined(side.cosine, cosine)) for side in (sources, targets))
    absent, is_pair = best(mean_cosines(sources.cosine))
    others, is_other = best(own_x)
    right = apply_margin(cosine, own_x, own_y, margin)
    is_near = cosine >= _joined(sources.cosine, cosine).min(axis=1)
    if retrieval in ("backward", "max"):
        is_near_back = cosine >= _joined(targets.cosine, cosine).min(axis=1)
        is_near = is_near_back if retrieval == "backward" else is_near | is_near_back
    rival = _scores(targets.cosine, own_y[:, None], targets.with_each, margin)[:, :-1].max(axis=1, initial=-np.inf)
    is_partner = is_near & ((right >= rival) | (not needs_partner))
    is_right = is_partner & (right >= others)
    # The best candidate may have a better partner; then only a choice by the targets leaves another one.
    blocked = is_near & ~is_partner & (right >= others) & (retrieval != "backward")
    present = np.where(is_right, right, np.where(is_other & ~blocked, others, np.nan))
    return Planted(np.where(is_pair, absent, np.nan), present, is_right)


def _joined(cosine: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the nearest of neighbours [T, k] and one more [T], as many as before: [T, k]."""
    both = np.concatenate((cosine, own[:, None]), axis=1)
    return -np.sort(-both, axis=1)[:, : cosine.shape[1]]
