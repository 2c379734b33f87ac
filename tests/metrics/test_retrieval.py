import numpy as np
import pytest

from xrep.metrics.retrieval import Accuracy, mean_cosine, retrieval_accuracy


def test_each_direction_is_counted_over_its_own_questions() -> None:
    x = np.array([[1, 0], [0, 1], [0.6, 0.8], [0, 1]], dtype=np.float32)
    y = np.array([[1, 0], [0, 1], [0.6, 0.8], [1, 0]], dtype=np.float32)
    # x -> y: 0, 1, 2, 1 (right, right, right, wrong). y -> x: 0, 1, 2, 0 (right, right, right, wrong).
    assert retrieval_accuracy(x, y) == Accuracy(75.0, 75.0)
    x[3] = [0.8, -0.6]  # finds y[0], and is found by no other vector
    x[0] = [0.7, 0.714]  # finds y[2], and y[0] and y[3] now find x[3]
    accuracy = retrieval_accuracy(x, y)
    assert accuracy == Accuracy(forward=50.0, backward=75.0)
    assert accuracy.mean == 62.5


def test_collapsed_vectors_find_one_translation_at_most() -> None:
    same = np.tile(np.array([[0.6, 0.8]], dtype=np.float32), (10, 1))
    assert retrieval_accuracy(same, same) == Accuracy(10.0, 10.0)
    assert mean_cosine(same) == pytest.approx(1.0)


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape"):
        retrieval_accuracy(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32))


def test_mean_cosine_is_the_mean_off_the_diagonal() -> None:
    x = np.random.default_rng(5).standard_normal((60, 8)) + 0.7
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosines = unit @ unit.T
    expected = cosines[~np.eye(60, dtype=bool)].mean()
    assert 0.1 < expected < 0.9
    assert mean_cosine(x.astype(np.float32)) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError):
        mean_cosine(x[:1])
