"""Exact neighbours against a plain product in float64: in tiles of any order, screened, with equal similarities."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closeness import assert_near
from tests.support.runs import environment
from xrep.retrieval import tiles
from xrep.retrieval.tiles import Operand, neighbours, search_tile
from xrep.retrieval.topk import TopK
from xrep.store.vectors import normalize_rows

Both = tuple[TopK, TopK]


def vectors(rows: int, width: int, seed: int) -> np.ndarray:
    return normalize_rows(np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32))


def plain(x: np.ndarray, y: np.ndarray, k: int) -> Both:
    """Sort all similarities as float32, in which they are compared; of equal ones the lowest index comes first."""
    similarity = (x.astype(np.float64) @ y.astype(np.float64).T).astype(np.result_type(x, y, np.float32))
    index = [np.argsort(-one, axis=1, kind="stable")[:, :k] for one in (similarity, similarity.T)]
    values = [np.take_along_axis(*both, 1) for both in zip((similarity, similarity.T), index, strict=True)]
    xy, yx = (TopK(torch.from_numpy(one), torch.from_numpy(other)) for one, other in zip(values, index, strict=True))
    return xy, yx


def assert_same(found: Both, expected: Both) -> None:
    """Check that neighbours are the same, bit for bit."""
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine.index, other.index) and torch.equal(mine.similarity, other.similarity)


def clusters(rows: int, width: int, seed: int, spread: float) -> np.ndarray:
    """Return vectors in five clusters, so dense that most similarities differ by less than bfloat16 can tell."""
    draw, centres = np.random.default_rng(seed), np.random.default_rng(9).standard_normal((5, width))
    return normalize_rows(
        (centres[draw.integers(5, size=rows)] + spread * draw.standard_normal((rows, width))).astype(np.float32)
    )


def clusters_of_lengths(rows: int, seed: int) -> np.ndarray:
    return clusters(rows, 48, seed, 0.02) * np.random.default_rng(seed).uniform(0.2, 3, (rows, 1)).astype(np.float32)


KINDS = {
    "random": lambda rows, seed: vectors(rows, 48, seed),
    "whole numbers": lambda rows, seed: np.random.default_rng(seed).integers(-1, 2, (rows, 3)).astype(np.float32),
    "clusters": lambda rows, seed: clusters(rows, 48, seed, 0.02),
    "clusters of many lengths": clusters_of_lengths,
    "nearly equal": lambda rows, seed: clusters(rows, 48, seed, 3e-7),
    "repeated": lambda rows, seed: vectors(rows, 24, seed)[np.arange(rows) % (rows // 2)],
    "negative": lambda rows, seed: np.abs(vectors(rows, 12, seed)) * (-1 if seed % 2 else 1),
    "equal": lambda rows, seed: np.repeat(vectors(1, 20, 1), rows, axis=0),
    "float64": lambda rows, seed: vectors(rows, 16, seed).astype(np.float64),
}


@pytest.fixture(params=["screened", "in float32"])
def small_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make tiles small, and all processors screen pairs in bfloat16, or none."""
    monkeypatch.setattr(tiles, "multiplies_bfloat16", lambda: request.param == "screened")
    monkeypatch.setattr(tiles, "FEWEST", 100)
    monkeypatch.setattr(tiles, "TILE", 160)
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("k", [1, 4, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_those_of_one_product(kind: str, k: int) -> None:
    x, y = KINDS[kind](471, 1), KINDS[kind](340, 2)
    found, expected = neighbours(x, y, k, k), plain(x, y, k)
    if kind == "float64":  # the 16th digit decides between equal ones
        assert_near(found[0].similarity, expected[0].similarity, 1e-14)
        assert torch.equal(found[0].index, expected[0].index)
    else:
        assert_same(found, expected)
    assert_same((neighbours(x, y, k, 0)[0], neighbours(x, y, 0, k)[1]), found)  # one direction alone


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_the_order_of_tiles_and_merges_does_not_matter(data: st.DataObject) -> None:
    """Tiles of any size are searched in any order, some of them twice, on several machines that are merged."""
    n, m, edge = (data.draw(st.integers(1, 70)) for _ in range(3))
    k_x, k_y, seed = data.draw(st.integers(0, 6)), data.draw(st.integers(1, 6)), data.draw(st.integers(0, 1000))
    kind = data.draw(st.sampled_from(["random", "whole numbers", "nearly equal", "equal"]))
    x, y = (torch.from_numpy(KINDS[kind](rows, seed + rows)) for rows in (n, m))
    expected = plain(x.numpy(), y.numpy(), max(k_x, k_y))
    parts = [(row, column) for row in range(0, n, edge) for column in range(0, m, edge)]
    order = data.draw(st.permutations([*parts, parts[0]]))
    machines = [(TopK.none(n, k_x), TopK.none(m, k_y)) for _ in range(3)]
    for row, column in order:
        best_x, best_y = data.draw(st.sampled_from(machines))
        bests = best_x.slice(row, row + edge), best_y.slice(column, column + edge)
        search_tile(Operand.of(x[row : row + edge]), Operand.of(y[column : column + edge]), *bests, row, column)
    merged = TopK.none(n, k_x), TopK.none(m, k_y)
    for machine in data.draw(st.permutations([*machines, machines[0]])):
        for total, part in zip(merged, machine, strict=True):
            total.merge(part)
    for found, k, (similarity, index) in zip(merged, (k_x, k_y), (vars(e).values() for e in expected), strict=True):
        there = min(k, index.size(1))
        assert torch.equal(found.index[:, :there], index[:, :k]) and (found.index[:, there:] == -1).all()
        assert torch.equal(found.similarity[:, :there], similarity[:, :k])
        assert (found.similarity[:, there:] == -torch.inf).all()


@pytest.mark.slow
def test_other_instructions_give_the_same_bytes() -> None:
    """A processor with AVX2 alone multiplies tiles in float32, and this one perhaps in bfloat16."""
    script = """
import hashlib, numpy as np
from tests.retrieval.test_neighbours import clusters, vectors
from xrep.retrieval.tiles import neighbours
digest = hashlib.sha256()
for x, y in ((vectors(2300, 64, 1), vectors(3100, 64, 2)), (clusters(2300, 64, 1, 0.1), clusters(3100, 64, 2, 0.1))):
    for best in neighbours(x, y, 4, 4):
        digest.update(best.similarity.numpy().tobytes() + best.index.numpy().tobytes())
print(digest.hexdigest())
"""
    only_avx2 = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    digests = set()
    for settings_of, threads in (({}, 1), ({}, 2), (only_avx2, 1)):
        given_to = {**environment(threads=threads), **settings_of, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", script], env=given_to, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1


def test_types() -> None:
    x, y = vectors(40, 64, seed=3).astype(np.float16), vectors(50, 64, seed=4).astype(np.float16)
    assert neighbours(x, y, 3, 3)[0].similarity.dtype == torch.float32
    assert_same(neighbours(x, y, 3, 3), plain(x, y, 3))
    assert_same(neighbours(x.astype(np.float32), y, 3, 3), plain(x, y, 3))
    # float32 cannot represent the difference.
    x, close = np.array([[1.0, 1e-12], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 1e-3]])
    found, _ = neighbours(x, close, 1, 0)
    assert found.similarity.dtype == torch.float64 and found.index[:, 0].tolist() == [1, 0]
    read_only = vectors(5, 4, seed=1)
    read_only.flags.writeable = False
    assert neighbours(read_only, read_only, 1, 0)[0].index[:, 0].tolist() == [0, 1, 2, 3, 4]
