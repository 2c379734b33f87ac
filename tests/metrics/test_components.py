from __future__ import annotations

import numpy as np
import pytest

from xrep.metrics.components import principal_components, remove_components


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
