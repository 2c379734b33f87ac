"""Figures of vectors: components, whitening, geometry and retrieval against their formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from scipy import stats
from scipy.spatial.distance import pdist

from xrep.metrics import geometry
from xrep.metrics.components import principal_components, remove_components, whiten
from xrep.metrics.correlation import pearson, spearman
from xrep.metrics.geometry import alignment_loss, language_shares, uniformity_loss
from xrep.metrics.retrieval import Accuracy, mean_cosine, retrieval_accuracy


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def unit_of(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# -- components -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 8), (8, 40), (12, 12)])
@pytest.mark.parametrize("count", [1, 3])
def test_components_are_those_of_a_singular_value_decomposition(shape: tuple[int, int], count: int) -> None:
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


@pytest.mark.parametrize("count", [1, 3, 8])
def test_whitened_vectors_have_the_cosines_of_the_formula(count: int) -> None:
    """Su et al. (2021): x -> (x - mean) U Λ^(-1/2), from a singular value decomposition of the covariance."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(40, 8)) @ generator.normal(size=(8, 8)) + 3
    directions, variances, _ = np.linalg.svd(np.cov(x.T, bias=True))
    expected = (x - x.mean(0)) @ (directions / np.sqrt(variances))[:, :count]
    found = whiten(x, count)
    assert found.shape == x.shape
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-8)
    np.testing.assert_allclose(whiten(x.astype(np.float32), count), found, atol=1e-3)


def test_whitening_needs_as_many_directions() -> None:
    x = np.random.default_rng(4).normal(size=(9, 4))
    for vectors, count in ((x, 0), (x, 5), (x[:3], 3), (np.ones((9, 4)), 1), (np.hstack([x, x]), 6)):
        with pytest.raises(ValueError, match="whitening to"):
            whiten(vectors, count)


# -- geometry ---------------------------------------------------------------------------------------------------------


def test_alignment_is_its_definition() -> None:
    x, y = draw(57, 33), 5 * draw(57, 33, seed=1)
    expected = np.mean([np.linalg.norm(a - b) ** 2 for a, b in zip(unit_of(x), unit_of(y), strict=True)])
    assert alignment_loss(x, y) == pytest.approx(expected, rel=1e-12)
    assert alignment_loss(x, 2 * x) == pytest.approx(0, abs=1e-12)
    assert alignment_loss(x, -x) == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize("block", [1, 7, 20, 2048])
@pytest.mark.parametrize("count", [2, 20, 41])
def test_uniformity_is_its_definition(monkeypatch: pytest.MonkeyPatch, block: int, count: int) -> None:
    monkeypatch.setattr(geometry, "_BLOCK", block)
    x = 3 * draw(count, 8)
    x[1] = x[0]  # two equal sentences are a pair, too
    expected = np.log(np.mean(np.exp(-2 * pdist(unit_of(x)) ** 2)))
    assert uniformity_loss(x) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert uniformity_loss(np.eye(6)) == pytest.approx(-4, rel=1e-12)  # the squared distance between any two is 2


@pytest.mark.parametrize("k", [1, 4, 59])
def test_shares_of_languages_are_counted(k: int) -> None:
    vectors = [unit_of(draw(count, 6, seed=count) + bias) for count, bias in ((10, 0), (20, 0.5), (30, -0.5))]
    pool, expected = np.concatenate(vectors), np.zeros((3, 3))
    language = [i for i, own in enumerate(vectors) for _ in own]
    for query, own in enumerate(language):
        order = [other for other in np.argsort(-(pool @ pool[query]), kind="stable") if other != query]
        for other in order[:k]:
            expected[own, language[other]] += 1 / (k * len(vectors[own]))
    np.testing.assert_allclose(language_shares(vectors, k), expected, atol=1e-12)


def test_a_sentence_is_not_its_own_neighbour_even_among_equal_vectors() -> None:
    same = [np.ones((1, 2), np.float32)] * 3
    np.testing.assert_allclose(language_shares(same, 2), (1 - np.eye(3)) / 2)
    assert not language_shares(same, 1).diagonal().any()


# -- retrieval --------------------------------------------------------------------------------------------------------


def test_each_direction_is_counted_over_its_own_questions() -> None:
    x = np.array([[1, 0], [0, 1], [0.6, 0.8], [0, 1]], dtype=np.float32)
    y = np.array([[1, 0], [0, 1], [0.6, 0.8], [1, 0]], dtype=np.float32)
    # x -> y: 0, 1, 2, 1 (right, right, right, wrong). y -> x: 0, 1, 2, 0 (right, right, right, wrong).
    assert retrieval_accuracy(x, y) == Accuracy(75.0, 75.0)
    x[3] = [0.8, -0.6]  # finds y[0], and is found by no other vector
    x[0] = [0.7, 0.714]  # finds y[2], and y[0] and y[3] now find x[3]
    accuracy = retrieval_accuracy(x, y)
    assert accuracy == Accuracy(forward=50.0, backward=75.0) and accuracy.mean == 62.5
    same = np.tile(np.array([[0.6, 0.8]], dtype=np.float32), (10, 1))
    assert retrieval_accuracy(same, same) == Accuracy(10.0, 10.0)  # collapsed vectors find one at most
    assert mean_cosine(same) == pytest.approx(1.0)


def test_mean_cosine_is_the_mean_off_the_diagonal() -> None:
    x = np.random.default_rng(5).standard_normal((60, 8)) + 0.7
    expected = (unit_of(x) @ unit_of(x).T)[~np.eye(60, dtype=bool)].mean()
    assert 0.1 < expected < 0.9
    assert mean_cosine(x.astype(np.float32)) == pytest.approx(expected, abs=1e-6)


# -- correlation ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=40)
@given(strategies.integers(2, 60), strategies.integers(0, 2**32 - 1), strategies.booleans())
def test_correlations_are_those_of_scipy_ties_included(count: int, seed: int, ties: bool) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, count))
    if ties:
        x, y = np.round(x), np.round(y * 2) / 2
    if (x == x[0]).all() or (y == y[0]).all():
        with pytest.raises(ValueError, match="constant"):
            spearman(x, y)
        return
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
