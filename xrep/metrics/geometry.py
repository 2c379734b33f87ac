"""Measures of the geometry of sentence vectors: alignment, uniformity, and the languages of nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xrep.retrieval.in_memory import neighbours
from xrep.store.vectors import normalize_rows

_BLOCK = 2048
"""Rows and columns of a block of distances, which takes 32 MB in float64."""


def alignment_loss(x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean squared distance of positive pairs on the unit sphere, E ‖x - y‖²; lower is better.

    Wang and Isola (2020), "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere", equation 1 with α = 2. Row i of ``x`` [N, D] and row i of ``y`` [N, D] are a pair; rows are first
    normalised to length 1, in float64. Numbers that are not finite, and no pair, are a ValueError.
    """
    if x.shape != y.shape:
        raise ValueError(f"pairs need two arrays of one shape, got {x.shape} and {y.shape}")
    return float(np.mean(np.sum((_unit(x, 1) - _unit(y, 1)) ** 2, axis=1)))


def uniformity_loss(vectors: np.ndarray) -> float:
    """Return how unevenly vectors [N, D] are spread over the unit sphere, log E exp(-2 ‖x - y‖²); lower is better.

    Wang and Isola (2020), equation 2 with t = 2, over all N (N - 1) / 2 pairs of different rows, which are first
    normalised. The loss is 0 if all vectors are equal, and about -4 (for large D) if they are spread evenly. Numbers
    that are not finite, and fewer than 2 vectors, are a ValueError.
    """
    unit = _unit(vectors, 2)
    squares, total = np.sum(unit**2, axis=1), 0.0
    for i in range(0, len(unit), _BLOCK):
        rows = slice(i, i + _BLOCK)
        for j in range(i, len(unit), _BLOCK):
            columns = slice(j, j + _BLOCK)
            distances = squares[rows, None] + squares[columns] - 2 * unit[rows] @ unit[columns].T
            kernel = np.exp(-2 * np.maximum(distances, 0))
            total += float(np.triu(kernel, 1).sum() if i == j else kernel.sum())
    return float(np.log(total / (len(unit) * (len(unit) - 1) / 2)))


def language_shares(vectors: Sequence[np.ndarray], k: int) -> np.ndarray:
    """Return, for each language, the share of every language among the k nearest neighbours of its sentences.

    "Universal Sentence Representation Learning with Conditional Masked Language Model", section 5.2 and figure 2.
    Neighbours are searched among the sentences of all languages; a sentence is not its own neighbour.

    Args:
        vectors: For each of L languages, [N, D] finite, with rows of length 1 to compare by cosine; N may differ.
        k: Number of neighbours, less than the number of sentences of all languages.

    Returns:
        float64 [L, L]: row i belongs to the queries in language i and sums to 1.
    """
    sizes, pool = [len(x) for x in vectors], np.concatenate(list(vectors))
    language = np.repeat(np.arange(len(sizes)), sizes)
    index = neighbours(pool, pool, k + 1, 0)[0].index.numpy()
    others = index != np.arange(len(pool))[:, None]
    # If k + 1 others are as near as the sentence itself, the sentence may be missing. Then the last one is left out.
    others[others.all(axis=1), -1] = False
    nearest = language[index[others]].reshape(len(pool), k)
    counts = [np.bincount(nearest[language == i].ravel(), minlength=len(sizes)) for i in range(len(sizes))]
    return np.array([count / count.sum() for count in counts])


def _unit(x: np.ndarray, least: int) -> np.ndarray:
    """Return the rows normalised to length 1, float64 [N, D]."""
    if len(x) < least or not np.isfinite(x).all():
        raise ValueError(f"needs at least {least} vectors that are finite, but these have the shape {x.shape}")
    return normalize_rows(x.astype(np.float64))
