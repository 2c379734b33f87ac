import numpy as np
import pytest

from xrep.retrieval.neighbours import nearest, normalize_rows


def _vectors(rows: int, width: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("block", [1, 7, 50, 64, 1000])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (50, 50), (123, 57), (57, 123)])
def test_both_directions_are_those_of_one_whole_product(n: int, m: int, block: int) -> None:
    x, y = _vectors(n, 16, seed=1), _vectors(m, 16, seed=2)
    similarity = x.astype(np.float64) @ y.T.astype(np.float64)
    xy, yx = nearest(x, y, block)
    assert xy.dtype == yx.dtype == np.int64
    np.testing.assert_array_equal(xy, similarity.argmax(axis=1))
    np.testing.assert_array_equal(yx, similarity.argmax(axis=0))


@pytest.mark.parametrize("block", [1, 2, 3, 5, 100])
def test_of_equal_similarities_the_lowest_index_wins_in_every_block_size(block: int) -> None:
    axes = np.eye(4, dtype=np.float32)  # products are exactly 0 or 1: ties are ties
    x, y = axes[[0, 1, 1, 2, 0, 3]], axes[[1, 0, 0, 1, 2]]
    xy, yx = nearest(x, y, block)
    assert xy.tolist() == [1, 0, 0, 4, 1, 0]  # the last row is orthogonal to all: a tie of zeros
    assert yx.tolist() == [1, 0, 0, 1, 3]


def test_half_precision_input_is_compared_in_single_precision() -> None:
    x, y = _vectors(40, 64, seed=3).astype(np.float16), _vectors(40, 64, seed=4).astype(np.float16)
    similarity = x.astype(np.float32) @ y.astype(np.float32).T
    np.testing.assert_array_equal(nearest(x, y, block=11)[0], similarity.argmax(axis=1))


@pytest.mark.parametrize(
    ("x", "y", "block"), [((0, 4), (3, 4), 5), ((3, 4), (0, 4), 5), ((3, 4), (3, 5), 5), ((3, 4), (3, 4), 0)]
)
def test_what_has_no_answer_is_refused(x: tuple[int, int], y: tuple[int, int], block: int) -> None:
    with pytest.raises(ValueError):
        nearest(np.ones(x, np.float32), np.ones(y, np.float32), block)


def test_normalized_rows_have_length_one_and_zeros_stay_zeros() -> None:
    x = np.array([[3, 4], [0, 0], [0, -1e-9]], dtype=np.float32)
    np.testing.assert_allclose(normalize_rows(x), [[0.6, 0.8], [0, 0], [0, -1]], rtol=1e-6)
