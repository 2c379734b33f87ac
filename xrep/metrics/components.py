"""Removal of the principal components of a language from its vectors, and whitening."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Return the first ``count`` right singular vectors of the *uncentred* matrix.

    Args:
        vectors: [N, D] float, all of one language.
        count: Number of singular vectors.

    Returns:
        float64 [count, D], orthonormal, largest singular value first; the signs are arbitrary.

    Raises:
        ValueError: ``count`` is not between 0 and min(N, D).
    """
    if vectors.ndim != 2 or not 0 <= count <= min(vectors.shape):
        raise ValueError(f"{count} principal components of vectors of shape {vectors.shape}")
    x_ND = vectors.astype(np.float64)
    width = x_ND.shape[1]
    if count == 0:
        return np.zeros((0, width))
    # Computing eigenvectors of the Gram matrix in float64 is many times faster than a singular value decomposition.
    return eigh(x_ND.T @ x_ND, subset_by_index=(width - count, width - 1))[1].T[::-1]


def remove_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Subtract ``(v . c) c`` from each vector v, for each of the first ``count`` principal components c of the vectors.

    "Universal Sentence Representation Learning with Conditional Masked Language Model" (section 5.2, whose formula
    lacks the trailing c).

    Args:
        vectors: [N, D] float, all of one language, as they are compared (of length 1 for the cosine).
        count: Number of components to remove.

    Returns:
        [N, D] of the same type; the vectors no longer have length 1.

    Raises:
        ValueError: For the same reasons as ``principal_components``.
    """
    components_CD = principal_components(vectors, count)
    return (vectors - (vectors @ components_CD.T) @ components_CD).astype(vectors.dtype)


def whiten(vectors: np.ndarray, count: int) -> np.ndarray:
    """Subtract the mean of vectors, and scale their first ``count`` principal directions to variance 1; what lies in
    other directions is left out.

    This is the whitening of sentence vectors of Su et al. (2021, arXiv:2103.15316), x -> (x - mean) U Λ^(-1/2), which
    keeps k directions, U. Here the result is turned back by Uᵀ: cosines are the same, and vectors that are whitened
    apart, such as those of two languages, keep their common axes.

    Args:
        vectors: [N, D] float.
        count: Number of directions, from 1 to min(N - 1, D).

    Returns:
        [N, D] of the same type.

    Raises:
        ValueError: The vectors do not vary in so many directions.
    """
    if vectors.ndim != 2 or not 1 <= count <= min(len(vectors) - 1, vectors.shape[1]):
        raise ValueError(f"whitening to {count} directions of vectors of shape {vectors.shape}")
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    width = centred.shape[1]
    variances, directions = eigh(centred.T @ centred / len(centred), subset_by_index=(width - count, width - 1))
    if variances[0] <= 1e-10 * variances[-1]:
        raise ValueError(f"whitening to {count} directions of vectors that vary in fewer")
    return ((centred @ (directions / np.sqrt(variances))) @ directions.T).astype(vectors.dtype)
