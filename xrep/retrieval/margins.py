"""Margin scores of sentence pairs: their cosine compared with the cosines of their nearest neighbours.

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

from typing import Literal, get_args

import numpy as np

from xrep.errors import UserError
from xrep.retrieval.neighbours import Neighbours, neighbours

Margin = Literal["absolute", "distance", "ratio"]
MARGINS: tuple[str, ...] = get_args(Margin)


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
