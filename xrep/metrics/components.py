"""Removal of the principal components of a language from its vectors, and whitening."""

from __future__ import annotations

import numpy as np


def principal_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Return the first ``count`` right singular vectors of the *uncentred* matrix [N, D] of one language's vectors.

    They are float64 [count, D], orthonormal, largest singular value first, with arbitrary signs. There is a ValueError
    if ``count`` is not between 1 and min(N, D).
    """
    if not 1 <= count <= min(vectors.shape):
        raise ValueError(f"{count} principal components of vectors of shape {vectors.shape}")
    x_ND, width = vectors.astype(np.float64), vectors.shape[1]
    from scipy.linalg import eigh  # takes a third of a second, which no command should wait for that does not need it

    # Computing eigenvectors of the Gram matrix in float64 is many times faster than a singular value decomposition.
    return eigh(x_ND.T @ x_ND, subset_by_index=(width - count, width - 1))[1].T[::-1]


def remove_components(vectors: np.ndarray, count: int) -> np.ndarray:
    """Subtract ``(v . c) c`` from each vector v, for each of the first ``count`` principal components c of the vectors.

    "Universal Sentence Representation Learning with Conditional Masked Language Model" (section 5.2, whose formula
    lacks the trailing c). The vectors [N, D] float are all of one language, as they are compared (of length 1 for the
    cosine). The result has the same shape and type; its vectors no longer have length 1.
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
        vectors: [N, D] float; the result has the same shape and type.
        count: Number of directions, from 1 to min(N - 1, D); there is a ValueError if the vectors vary in fewer.
    """
    if not 1 <= count <= min(len(vectors) - 1, vectors.shape[1]):
        raise ValueError(f"whitening to {count} directions of vectors of shape {vectors.shape}")
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    width = vectors.shape[1]
    from scipy.linalg import eigh

    variances, directions = eigh(centred.T @ centred / len(centred), subset_by_index=(width - count, width - 1))
    if variances[0] <= 1e-10 * variances[-1]:
        raise ValueError(f"whitening to {count} directions of vectors that vary in fewer")
    return ((centred @ (directions / np.sqrt(variances))) @ directions.T).astype(vectors.dtype)
