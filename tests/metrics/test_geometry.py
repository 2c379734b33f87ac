from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from xrep.metrics import geometry
from xrep.metrics.geometry import alignment_loss, language_shares, uniformity_loss


def _vectors(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_alignment_is_its_definition() -> None:
    x, y = _vectors(57, 33), 5 * _vectors(57, 33, seed=1)
    expected = np.mean([np.linalg.norm(a - b) ** 2 for a, b in zip(_unit(x), _unit(y), strict=True)])
    assert alignment_loss(x, y) == pytest.approx(expected, rel=1e-12)
    assert alignment_loss(x, 2 * x) == pytest.approx(0, abs=1e-12)
    assert alignment_loss(x, -x) == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize("block", [1, 7, 19, 20, 2048])
@pytest.mark.parametrize("count", [2, 20, 41])
def test_uniformity_is_its_definition(monkeypatch: pytest.MonkeyPatch, block: int, count: int) -> None:
    monkeypatch.setattr(geometry, "_BLOCK", block)
    x = 3 * _vectors(count, 8)
    x[1] = x[0]  # two equal sentences are a pair, too
    expected = np.log(np.mean(np.exp(-2 * pdist(_unit(x)) ** 2)))
    assert uniformity_loss(x) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_uniformity_of_known_shapes() -> None:
    assert uniformity_loss(np.ones((5, 3), np.float32)) == pytest.approx(0, abs=1e-12)
    assert uniformity_loss(np.eye(6)) == pytest.approx(-4, rel=1e-12)  # the squared distance between any two is 2
    assert uniformity_loss(np.array([[1.0, 0], [-1, 0]])) == pytest.approx(-8, rel=1e-12)


def _plain_shares(vectors: list[np.ndarray], k: int) -> np.ndarray:
    pool = np.concatenate(vectors).astype(np.float64)
    language = [i for i, own in enumerate(vectors) for _ in own]
    shares = np.zeros((len(vectors), len(vectors)))
    for query, own in enumerate(language):
        order = [other for other in np.argsort(-(pool @ pool[query]), kind="stable") if other != query]
        for other in order[:k]:
            shares[own, language[other]] += 1 / (k * len(vectors[own]))
    return shares


@pytest.mark.parametrize("k", [1, 4, 59])
def test_shares_of_languages_are_counted(k: int) -> None:
    vectors = [_unit(_vectors(count, 6, seed=count) + bias) for count, bias in ((10, 0), (20, 0.5), (30, -0.5))]
    shares = language_shares(vectors, k)
    np.testing.assert_allclose(shares, _plain_shares(vectors, k), atol=1e-12)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_a_sentence_is_not_its_own_neighbour_even_among_equal_vectors() -> None:
    same = [np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)]
    shares = language_shares(same, 2)
    np.testing.assert_allclose(shares, (1 - np.eye(3)) / 2)
    assert not language_shares(same, 1).diagonal().any()


def test_what_cannot_be_measured_is_refused() -> None:
    x, nan = _vectors(3, 4), np.full((3, 4), np.nan, np.float32)
    with pytest.raises(ValueError, match="one shape"):
        alignment_loss(x, x[:2])
    with pytest.raises(ValueError, match="at least 1"):
        alignment_loss(x[:0], x[:0])
    with pytest.raises(ValueError, match="at least 2"):
        uniformity_loss(x[:1])
    for measure in (lambda: alignment_loss(x, nan), lambda: uniformity_loss(nan), lambda: language_shares([x, nan], 1)):
        with pytest.raises(ValueError, match="not finite"):
            measure()
    for k in (0, 6):
        with pytest.raises(ValueError, match=f"{k} neighbours of 6"):
            language_shares([x, x], k)
    with pytest.raises(ValueError, match="without vectors"):
        language_shares([x, x[:0]], 1)
