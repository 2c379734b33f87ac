"""Retrieval accuracy of translations, and a test for collapsed vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xrep.retrieval.neighbours import neighbours, normalize_rows


@dataclass(frozen=True)
class Accuracy:
    """Retrieval accuracy in percent: ``forward`` searches y for rows of x, ``backward`` searches x for rows of y."""

    forward: float
    backward: float

    @property
    def mean(self) -> float:
        return (self.forward + self.backward) / 2


def retrieval_accuracy(x: np.ndarray, y: np.ndarray) -> Accuracy:
    """Return the percentage of rows whose nearest neighbour on the other side is the row with the same index.

    This is the protocol of the Tatoeba test (Artetxe and Schwenk, 2019, arXiv:1812.10464, section 4.3), whose error
    rate is 100 minus the accuracy.

    Args:
        x: [N, D] float, L2-normalised for the cosine; row i translates row i of ``y``.
        y: [N, D] float.

    Raises:
        ValueError: The shapes differ or N is 0.
    """
    if x.shape != y.shape:
        raise ValueError(f"aligned vectors must have one shape, got {x.shape} and {y.shape}")
    found = neighbours(x, y, 1)
    rows = np.arange(len(x))[:, None]
    return Accuracy(forward=100.0 * float(np.mean(found.xy == rows)), backward=100.0 * float(np.mean(found.yx == rows)))


def mean_cosine(x: np.ndarray) -> float:
    """Return the mean cosine over all pairs of different rows of ``x`` [N, D].

    A value near 1 means that every sentence has the same vector: the encoder has collapsed. The computation is exact in
    O(N D), because the cosines of all pairs, including each row with itself, add up to the squared norm of the sum of
    the unit vectors.

    Raises:
        ValueError: N is below 2.
    """
    if len(x) < 2:
        raise ValueError("a mean over pairs needs at least 2 rows")
    unit_ND = normalize_rows(x.astype(np.float64))
    total = unit_ND.sum(axis=0)
    count = len(x)
    return float((total @ total - np.square(unit_ND).sum()) / (count * (count - 1)))
