"""Exact neighbours against a plain product in float64: in tiles, screened in bfloat16, with equal similarities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closeness import assert_near
from xrep.retrieval import neighbours as module
from xrep.retrieval import screening
from xrep.retrieval.neighbours import Neighbours, neighbours, normalize_rows


def vectors(rows: int, width: int, seed: int) -> np.ndarray:
    return normalize_rows(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32))


def plain(x: np.ndarray, y: np.ndarray, k: int) -> Neighbours:
    """Sort all similarities in float64; of equal ones the lowest index comes first."""
    similarity = x.astype(np.float64) @ y.astype(np.float64).T
    xy, yx = (np.argsort(-one, axis=1, kind="stable")[:, :k] for one in (similarity, similarity.T))
    return Neighbours(xy, np.take_along_axis(similarity, xy, 1), yx, np.take_along_axis(similarity.T, yx, 1))


def assert_same(found: Neighbours, expected: Neighbours) -> None:
    assert found.xy.dtype == found.yx.dtype == np.int64
    np.testing.assert_array_equal(found.xy, expected.xy)
    np.testing.assert_array_equal(found.yx, expected.yx)
    assert_near(found.xy_similarity, expected.xy_similarity, 2e-6)
    assert_near(found.yx_similarity, expected.yx_similarity, 2e-6)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_neighbours_are_those_of_one_product_whatever_the_tiles(data: st.DataObject) -> None:
    """Small whole numbers have exact products, and most similarities are equal; the others differ."""
    n, m, tile = (data.draw(st.integers(1, 70)) for _ in range(3))
    k, seed = data.draw(st.integers(1, min(n, m, 6))), data.draw(st.integers(0, 1000))
    draw = np.random.default_rng(seed)
    x, y = (draw.integers(-1, 2, (rows, 3)).astype(np.float32) for rows in (n, m))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        assert_same(neighbours(x, y, k), plain(x, y, k))
        x, y = vectors(n, 16, seed), vectors(m, 16, seed + 1)
        assert_same(neighbours(x, y, k), plain(x, y, k))


@pytest.fixture
def screened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make all processors screen pairs in bfloat16, and return a list of whether each tile could be screened."""
    found: list[bool] = []
    update = screening.update_screened

    def recording(*given) -> bool:
        found.append(update(*given))
        return found[-1]

    monkeypatch.setattr(screening, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(screening, "FEWEST", 300)
    monkeypatch.setattr(module, "TILE", 160)
    monkeypatch.setattr(module, "update_screened", recording)
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("lengths", ["equal", "different"])
def test_screened_neighbours_are_exact(screened: list[bool], seed: int, lengths: str) -> None:
    """Vectors lie in a few dense clusters, so most similarities differ by less than bfloat16 can tell."""
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((5, 48))
    x, y = (centres[draw.integers(5, size=n)] + 0.02 * draw.standard_normal((n, 48)) for n in (471, 340))
    x, y = (normalize_rows(side.astype(np.float32)) for side in (x, y))
    if lengths == "different":
        x, y = (side * draw.uniform(0.2, 3.0, (len(side), 1)).astype(np.float32) for side in (x, y))
    found, expected = neighbours(x, y, 4), plain(x, y, 4)
    similarity = x.astype(np.float64) @ y.astype(np.float64).T
    for index, mine, exact, whole in (
        (found.xy, found.xy_similarity, expected.xy_similarity, similarity),
        (found.yx, found.yx_similarity, expected.yx_similarity, similarity.T),
    ):  # float32 cannot tell which of two neighbours is nearer if they differ by less than 1e-6
        assert_near(mine, exact, 2e-6)
        assert_near(np.take_along_axis(whole, index, 1), exact, 2e-6)
        assert all(len(set(row)) == 4 for row in index.tolist())
    assert screened == [True] * 9


def test_screened_ties_go_to_the_lowest_index(screened: list[bool]) -> None:
    x, y = vectors(330, 24, seed=5)[np.arange(660) % 330], vectors(400, 24, seed=6)[np.arange(800) // 2]
    found = neighbours(x, y, 3)
    assert_same(found, plain(x, y, 3))
    assert (found.xy[:, 0] % 2 == 0).all() and (found.yx[:, 1] == found.yx[:, 0] + 330).all() and all(screened)
    screened.clear()
    x, y = np.abs(vectors(400, 12, seed=7)), -np.abs(vectors(400, 12, seed=8))
    assert_same(neighbours(x, y, 2), plain(x, y, 2))
    assert screened == [False]  # similarities below 0 are not screened


def test_types() -> None:
    x, y = vectors(40, 64, seed=3).astype(np.float16), vectors(50, 64, seed=4).astype(np.float16)
    assert neighbours(x, y, 3).xy_similarity.dtype == np.float32
    assert_same(neighbours(x, y, 3), plain(x, y, 3))
    assert_same(neighbours(x.astype(np.float32), y, 3), plain(x, y, 3))
    # float32 cannot represent the difference.
    x, close = np.array([[1.0, 1e-12], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 1e-3]])
    found = neighbours(x, close, 1)
    assert found.xy_similarity.dtype == np.float64 and found.xy[:, 0].tolist() == [1, 0]
    read_only = vectors(5, 4, seed=1)
    read_only.flags.writeable = False
    assert neighbours(read_only, read_only, 1).xy[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("x", "y", "k"),
    [((0, 4), (3, 4), 1), ((3, 4), (0, 4), 1), ((3, 4), (3, 5), 1), ((3, 4), (2, 4), 3), ((3, 4), (3, 4), 0)],
)
def test_what_has_no_answer_is_refused(x: tuple[int, int], y: tuple[int, int], k: int) -> None:
    with pytest.raises(ValueError):
        neighbours(np.ones(x, np.float32), np.ones(y, np.float32), k)


def test_normalized_rows_have_length_one_and_zeros_stay_zeros() -> None:
    x = np.array([[3, 4], [0, 0], [0, -1e-9]], dtype=np.float32)
    np.testing.assert_allclose(normalize_rows(x), [[0.6, 0.8], [0, 0], [0, -1]], rtol=1e-6)
