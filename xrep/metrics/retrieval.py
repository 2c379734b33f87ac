"""Retrieval accuracy of translations, and a test for collapsed vectors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from xrep.retrieval.in_memory import neighbours
from xrep.store.vectors import normalize_rows


class Accuracy(NamedTuple):
    """Retrieval accuracy in percent: ``forward`` searches y for rows of x, ``backward`` searches x for rows of y."""

    forward: float
    backward: float

    @property
    def mean(self) -> float:
        return (self.forward + self.backward) / 2


def accuracy_of(right: np.ndarray) -> Accuracy:
    """Return the accuracy of answers in both directions, bool [2, N]."""
    return Accuracy(*(100.0 * float(direction.mean()) for direction in right))


def retrieval_accuracy(x: np.ndarray, y: np.ndarray) -> Accuracy:
    """Return the percentage of rows whose nearest neighbour on the other side is the row with the same index.

    This is the protocol of the Tatoeba test (Artetxe and Schwenk, 2019, arXiv:1812.10464, section 4.3), whose error
    rate is 100 minus the accuracy. Row i of x [N, D] translates row i of y [N, D]; the rows must have length 1, or the
    nearest are those of the largest inner product instead of the cosine.
    """
    return accuracy_of(right_answers(x, y))


def right_answers(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return for which rows the nearest neighbour on the other side is the row with the same index: bool [2, N], of x
    and of y, which are [N, D] float with rows of length 1 for the cosine; row i of one translates row i of the other.
    """
    if x.shape != y.shape:
        raise ValueError(f"aligned vectors must have one shape, got {x.shape} and {y.shape}")
    rows = np.arange(len(x))
    return np.stack([side.index.numpy()[:, 0] == rows for side in neighbours(x, y, 1, 1)])


def mean_cosine(x: np.ndarray) -> float:
    """Return the mean cosine over all pairs of different rows of ``x`` [N, D].

    A value near 1 means that every sentence has the same vector: the encoder has collapsed. The computation is exact in
    O(N D), because the cosines of all pairs, including each row with itself, add up to the squared norm of the sum of
    the unit vectors. For fewer than 2 rows there is a ValueError.
    """
    if (count := len(x)) < 2:
        raise ValueError("a mean over pairs needs at least 2 rows")
    unit_ND = normalize_rows(x.astype(np.float64))
    total = unit_ND.sum(axis=0)
    return float((total @ total - np.square(unit_ND).sum()) / (count * (count - 1)))
