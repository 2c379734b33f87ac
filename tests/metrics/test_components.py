from __future__ import annotations

import numpy as np
import pytest

from xrep.metrics.components import principal_components, remove_components, whiten


@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (12, 12)])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_formula_in_float64(shape: tuple[int, int], count: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape) + 2 * generator.normal(size=shape[1])  # not centred
    right = np.linalg.svd(x)[2][:count]
    components = principal_components(x, count)
    assert components.shape == (count, shape[1])
    np.testing.assert_allclose(np.abs((components * right).sum(axis=1)), 1, atol=1e-10)
    expected = x.copy()
    for c in right:
        expected -= np.outer(expected @ c, c)
    np.testing.assert_allclose(remove_components(x, count), expected, atol=1e-10)
    single = remove_components(x.astype(np.float32), count)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_what_a_language_shares_is_gone() -> None:
    generator = np.random.default_rng(1)
    meaning, language = generator.normal(size=(50, 16)), 9 * generator.normal(size=16)
    x = remove_components(meaning + language, 1)
    assert np.abs(x @ language / np.linalg.norm(language)).max() < 0.1 * np.linalg.norm(language)
    assert np.linalg.norm(x) < 1.1 * np.linalg.norm(meaning)


@pytest.mark.parametrize("count", [-1, 5])
def test_more_components_than_there_are_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="principal components"):
        remove_components(np.ones((4, 9)), count)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_whitened_vectors_have_the_cosines_of_the_formula(count: int) -> None:
    """Su et al. (2021): x -> (x - mean) U Λ^(-1/2), from a singular value decomposition of the covariance."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(40, 8)) @ generator.normal(size=(8, 8)) + 3
    mean, covariance = x.mean(0), np.cov(x.T, bias=True)
    directions, variances, _ = np.linalg.svd(covariance)
    expected = (x - mean) @ (directions / np.sqrt(variances))[:, :count]
    found = whiten(x, count)
    assert found.shape == x.shape
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-8)
    np.testing.assert_allclose(whiten(x.astype(np.float32), count), found, atol=1e-3)


def test_whitened_languages_keep_their_common_axes() -> None:
    """Two languages that say the same with other scales are equal when each is whitened apart."""
    generator = np.random.default_rng(3)
    meaning = generator.normal(size=(200, 6))
    one, other = meaning * [1, 5, 1, 1, 2, 1] + 4, meaning * [3, 1, 1, 0.2, 1, 1] - 7
    cosines = [(a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1) for a, b in
               ((one, other), (whiten(one, 6), whiten(other, 6)))]  # fmt: skip
    assert cosines[0].max() < 0.5 and cosines[1].min() > 0.95


def test_whitening_needs_as_many_directions() -> None:
    x = np.random.default_rng(4).normal(size=(9, 4))
    for vectors, count in ((x, 0), (x, 5), (x[:3], 3), (np.ones((9, 4)), 1), (np.hstack([x, x]), 6)):
        with pytest.raises(ValueError, match="whitening to"):
            whiten(vectors, count)
