"""Neighbours between files of vectors: those of a plain product, whatever the blocks, parts and interruptions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval.test_neighbours import assert_same, plain, vectors
from xrep import progress
from xrep.errors import UserError
from xrep.retrieval import ivf, search, tiles
from xrep.retrieval.ivf import search_ivf
from xrep.retrieval.search import Neighbours, SearchState, Side, load_neighbours, merge, search_flat
from xrep.retrieval.vectors import VectorFile


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    units, parts = 40 * 4 * 16, 100 * (2 * 16 + 8)
    for module, name, value in (
        (tiles, "TILE", 20), (search, "TILE", 20), (search, "_UNIT_BYTES", units), (search, "SAVE_SECONDS", 0),
        (search, "_PANEL_BYTES", 60 * 4 * 16), (ivf, "_QUERIES", 50), (ivf, "_BLOCK", 32), (ivf, "_PART_BYTES", parts),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def make_side(tmp_path: Path) -> Callable[..., Side]:
    def make(rows: int | np.ndarray, seed: int, chosen: np.ndarray | None = None, dtype: str = "float32") -> Side:
        """A side of random vectors with 16 numbers, or of those given."""
        path, own = tmp_path / f"{seed}.npy", 3 * vectors(rows, 16, seed) if isinstance(rows, int) else rows
        np.save(path, own.astype(dtype))
        return Side(VectorFile(path), np.arange(len(own)) if chosen is None else chosen)

    return make


def run(x: Side, y: Side, path: Path, way: str, stop_after: int | None = None, k: int = 4) -> Neighbours:
    class State(SearchState):
        def step(self, total: int) -> None:
            super().step(total)
            if self.done == stop_after and self.done < total:
                raise Stopped

    state = State.begin(path, len(x), len(y), k)
    if way == "flat":
        search_flat(x, y, state)
    else:
        search_ivf(x, y, state, probes=1000, quantized=way == "ivf-pq")
    return state.nearest


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("way", ["flat", "ivf"])
def test_neighbours_in_files_are_those_in_memory(make_side, tmp_path, way, dtype):
    """Search every cell of the inverted files. Only some of the rows are compared."""
    chosen = np.flatnonzero(np.random.default_rng(0).random(230) < 0.7)
    x, y = make_side(230, 1, chosen, dtype), make_side(310, 2, dtype=dtype)
    assert_same(run(x, y, tmp_path / "found.npz", way).both(), plain(x.read(0, len(x)), y.read(0, len(y)), 4))


def test_rows_are_read_whatever_lies_between_them(make_side: Callable[..., Side]) -> None:
    side = make_side(9, 1, np.array([0, 1, 3, 5, 6, 7]))
    every = side.vectors.read(np.arange(9))
    for start in range(6):
        for stop in range(start + 1, 7):
            np.testing.assert_array_equal(side.read(start, stop), every[side.rows[start:stop]])


def test_quantized_neighbours_have_exact_similarities(make_side, tmp_path, monkeypatch):
    x, y = make_side(300, 1), make_side(900, 2)
    monkeypatch.setattr(ivf, "_PART_BYTES", 1 << 20)
    found, expected = run(x, y, tmp_path / "found.npz", "ivf-pq"), plain(x.read(0, 300), y.read(0, 900), 4)[0]
    exact = x.read(0, 300).astype(np.float64) @ y.read(0, 900).astype(np.float64).T
    np.testing.assert_allclose(found.xy_similarity, np.take_along_axis(exact, found.xy, 1), atol=1e-6)
    assert np.mean([len({*a} & {*b}) / 4 for a, b in zip(found.xy, expected.index.numpy(), strict=True)]) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flat", "ivf"])
@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_search_goes_on_where_it_stopped(make_side, tmp_path, monkeypatch, way, stop_after):
    x, y, path = make_side(230, 1), make_side(310, 2), tmp_path / "found.npz"
    whole = run(x, y, tmp_path / "whole.npz", way)
    with pytest.raises(Stopped):
        run(x, y, path, way, stop_after)
    assert load_neighbours(path, 230, 310, 4)[1] == stop_after
    seen: list[tuple[int, int]] = []
    original = Side.read
    monkeypatch.setattr(Side, "read", lambda side, *rows: (seen.append((id(side), *rows)), original(side, *rows))[1])
    again = run(x, y, path, way)
    assert all(vars(again)[name].tobytes() == array.tobytes() for name, array in vars(whole).items())
    if way == "flat":
        assert min(row[1] for row in seen if row[0] == id(x)) == 40 * stop_after  # finished work is not done again
    seen.clear()
    run(x, y, path, way)
    assert seen == []
    with pytest.raises(UserError, match=r"found\.npz: of another search; remove it to begin anew"):
        run(x, y, path, way, k=3)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"found\.npz: a damaged file of neighbours; remove it to begin anew"):
        run(x, y, path, way)


def test_parts_of_the_source_are_merged(make_side: Callable[..., Side], tmp_path: Path) -> None:
    """Rows are in several parts: of equal neighbours the lowest index wins, as in a single search.

    Similarities are multiples of 1/4, which are exact in a product of any shape on any processor.
    """

    def drawn(rows: int, seed: int) -> np.ndarray:
        draw = np.random.default_rng(seed)
        four = draw.permuted(np.tile(np.arange(16) < 4, (rows, 1)), axis=1)
        return draw.choice([-1.0, 1.0], (rows, 16)) * four

    doubled, edges = np.concatenate([np.arange(100), np.arange(100)]), [0, 70, 71, 200]  # a part of fewer than k rows
    x, y = make_side(drawn(230, 1), 1, doubled), make_side(drawn(120, 2), 2)
    whole = run(x, y, tmp_path / "whole.npz", "flat")
    parts = [
        run(Side(x.vectors, doubled[a:b]), y, tmp_path / f"part{a}.npz", "flat")
        for a, b in zip(edges, edges[1:], strict=False)
    ]
    assert_same(merge(parts, tmp_path, 200, len(y), 4).both(), whole.both())


def test_a_survey_names_the_row_that_is_not_finite_and_tells_zeros(make_side, monkeypatch):
    monkeypatch.setattr("xrep.retrieval.vectors._SURVEY_BYTES", 3 * 16 * 4)
    rows = vectors(50, 16, seed=1)
    rows[20] = 0
    blocks = [(start, block.copy(), zero) for start, block, zero in make_side(rows, 1).vectors.survey()]
    assert [start for start, *_ in blocks] == list(range(0, 50, 3))
    assert np.array_equal(np.concatenate([block for _, block, _ in blocks]), rows)
    assert np.flatnonzero(np.concatenate([zero for *_, zero in blocks])).tolist() == [20]
    rows[33, 5] = np.nan
    with pytest.raises(UserError, match=r"2\.npy:34: the vector of this row is not finite"):
        list(make_side(rows, 2).vectors.survey())


@pytest.mark.parametrize("way", ["flat", "ivf", "ivf-pq"])
@pytest.mark.parametrize("empty", [0, 1])
def test_a_side_without_sentences_has_no_neighbours(make_side, tmp_path, way, empty):
    sides = [make_side(50, seed, np.arange(0) if seed == empty else None) for seed in (0, 1)]
    nearest = run(*sides, tmp_path / "state.npz", way)
    assert (nearest.xy == -1).all() and (nearest.yx == -1).all()


@pytest.mark.parametrize("way", ["flat", "ivf"])
def test_progress_moves_within_a_block(make_side, tmp_path, way, monkeypatch, capsys):
    """A single block of a very large search takes longer than a person waits."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)  # every line is printed
    x, y = make_side(110, 1), make_side(90, 2)
    state = SearchState.begin(tmp_path / "state.npz", len(x), len(y), 4)
    find, expected, total = {  # x is indexed in two parts
        "flat": (search_flat, "comparisons", 110 * 90), "ivf": (search_ivf, "queries", 90 * 2 + 110),
    }[way]  # fmt: skip
    find(x, y, state, show_progress=True)
    pattern = rf"search: ([\d,]+) of {total:,} {expected}, "
    counts = [int(n.replace(",", "")) for n in re.findall(pattern, capsys.readouterr().err)]
    assert counts == sorted(counts) and counts[-1] == total
    assert len(set(counts)) > state.done  # which is the number of blocks
