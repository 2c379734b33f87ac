from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval.test_neighbours import assert_same, plain, vectors
from xrep import progress
from xrep.errors import UserError
from xrep.retrieval import ivf, neighbours, search
from xrep.retrieval.ivf import search_ivf
from xrep.retrieval.neighbours import Neighbours
from xrep.retrieval.search import SearchState, Side, load_neighbours, merge, search_flat
from xrep.retrieval.vectors import VectorFile


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "TILE", 20)
    monkeypatch.setattr(search, "TILE", 20)
    monkeypatch.setattr(search, "_UNIT_BYTES", 40 * 4 * 16)
    monkeypatch.setattr(search, "_PANEL_BYTES", 60 * 4 * 16)
    monkeypatch.setattr(search, "SAVE_SECONDS", 0)
    monkeypatch.setattr(ivf, "_QUERIES", 50)
    monkeypatch.setattr(ivf, "_BLOCK", 32)
    monkeypatch.setattr(ivf, "_PART_BYTES", 100 * (2 * 16 + 8))


@pytest.fixture
def make_side(tmp_path: Path) -> Callable[..., Side]:
    def make(rows: int, seed: int, chosen: np.ndarray | None = None, dtype: str = "float32") -> Side:
        path = tmp_path / f"{seed}.npy"
        np.save(path, (3 * vectors(rows, 16, seed)).astype(dtype))
        return Side(VectorFile(path), np.arange(rows) if chosen is None else chosen)

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
def test_neighbours_in_files_are_those_in_memory(
    make_side: Callable[..., Side], tmp_path: Path, way: str, dtype: str
) -> None:
    """Search every cell of the inverted files. Only some of the rows are compared."""
    chosen = np.flatnonzero(np.random.default_rng(0).random(230) < 0.7)
    x, y = make_side(230, 1, chosen, dtype), make_side(310, 2, dtype=dtype)
    expected = plain(x.read(0, len(x)), y.read(0, len(y)), 4)
    assert_same(run(x, y, tmp_path / "found.npz", way), expected)


def test_quantized_neighbours_have_exact_similarities(make_side: Callable[..., Side], tmp_path: Path) -> None:
    x, y = make_side(300, 1), make_side(900, 2)
    ivf_parts = pytest.MonkeyPatch()
    ivf_parts.setattr(ivf, "_PART_BYTES", 1 << 20)
    found = run(x, y, tmp_path / "found.npz", "ivf-pq")
    ivf_parts.undo()
    expected = plain(x.read(0, 300), y.read(0, 900), 4)
    exact = x.read(0, 300).astype(np.float64) @ y.read(0, 900).astype(np.float64).T
    np.testing.assert_allclose(found.xy_similarity, np.take_along_axis(exact, found.xy, 1), atol=1e-6)
    recall = np.mean([len(set(a) & set(b)) / 4 for a, b in zip(found.xy, expected.xy, strict=True)])
    assert recall > 0.85


@pytest.mark.parametrize("way", ["flat", "ivf"])
@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_search_goes_on_where_it_stopped(
    make_side: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, stop_after: int
) -> None:
    x, y = make_side(230, 1), make_side(310, 2)
    whole = run(x, y, tmp_path / "whole.npz", way)
    path = tmp_path / "found.npz"
    with pytest.raises(Stopped):
        run(x, y, path, way, stop_after)
    assert load_neighbours(path, 230, 310, 4)[1] == stop_after
    seen: list[tuple[int, int]] = []
    original = Side.read
    monkeypatch.setattr(Side, "read", lambda side, *rows: (seen.append((id(side), *rows)), original(side, *rows))[1])
    again = run(x, y, path, way)
    assert [getattr(again, name).tobytes() for name in vars(whole)] == [
        getattr(whole, name).tobytes() for name in vars(whole)
    ]
    if way == "flat":
        assert min(row[1] for row in seen if row[0] == id(x)) == 40 * stop_after  # finished work is not done again
    seen.clear()
    run(x, y, path, way)
    assert seen == []


def test_parts_of_the_source_are_merged(tmp_path: Path) -> None:
    """Rows are in several parts: of equal neighbours the lowest index wins, as in a single search.

    Similarities are multiples of 1/4, which are exact in a product of any shape on any processor.
    """
    sides = []
    for seed, rows in ((1, 230), (2, 120)):
        draw = np.random.default_rng(seed)
        signs = draw.choice([-1.0, 1.0], (rows, 16))
        four = draw.permuted(np.tile(np.arange(16) < 4, (rows, 1)), axis=1)
        np.save(tmp_path / f"{seed}.npy", (signs * four).astype(np.float32))
        sides.append(Side(VectorFile(tmp_path / f"{seed}.npy"), np.arange(rows)))
    x, y = sides
    doubled = np.concatenate([np.arange(100), np.arange(100)])
    both = Side(x.vectors, doubled)
    whole = run(both, y, tmp_path / "whole.npz", "flat")
    edges = [0, 70, 71, 200]  # one part has a single row, fewer than k
    parts = [
        run(Side(x.vectors, doubled[a:b]), y, tmp_path / f"part{a}.npz", "flat")
        for a, b in zip(edges, edges[1:], strict=False)
    ]
    assert_same(merge(parts, tmp_path, 200, len(y), 4), whole)


def test_files_that_are_no_vectors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.npy: no such file; check the name"):
        VectorFile(tmp_path / "absent.npy")
    cure = "give a .npy file of floats [sentences, size], as xrep-encode writes it"
    for name, content in (("flat", np.ones(3)), ("whole", np.ones((2, 2), int)), ("empty", np.ones((0, 4)))):
        np.save(tmp_path / f"{name}.npy", content)
        with pytest.raises(UserError) as caught:
            VectorFile(tmp_path / f"{name}.npy")
        assert str(caught.value) == f"{tmp_path / name}.npy: not an array [N, D] of floats; {cure}"
    (tmp_path / "text.npy").write_text("0.1 0.2\n")
    with pytest.raises(UserError, match="not a file of vectors"):
        VectorFile(tmp_path / "text.npy")
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(UserError, match="save it in C order"):
        VectorFile(tmp_path / "columns.npy")


def test_a_survey_names_the_row_that_is_not_finite_and_tells_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xrep.retrieval.vectors._SURVEY_BYTES", 3 * 16 * 4)
    rows = vectors(50, 16, seed=1)
    rows[20] = 0
    np.save(tmp_path / "a.npy", rows)
    blocks = [(start, block.copy(), zero) for start, block, zero in VectorFile(tmp_path / "a.npy").survey()]
    assert [start for start, *_ in blocks] == list(range(0, 50, 3))
    assert np.array_equal(np.concatenate([block for _, block, _ in blocks]), rows)
    assert np.flatnonzero(np.concatenate([zero for *_, zero in blocks])).tolist() == [20]
    rows[33, 5] = np.nan
    np.save(tmp_path / "b.npy", rows)
    with pytest.raises(UserError, match=r"b\.npy:34: the vector of this row is not finite"):
        list(VectorFile(tmp_path / "b.npy").survey())


def test_what_was_found_by_another_search_is_refused(make_side: Callable[..., Side], tmp_path: Path) -> None:
    x, y = make_side(50, 1), make_side(60, 2)
    path = tmp_path / "found.npz"
    run(x, y, path, "flat")
    with pytest.raises(UserError, match=r"found\.npz: of another search; remove it to begin anew"):
        run(x, y, path, "flat", k=3)
    whole = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    for damaged in (whole[:100], whole[: len(whole) // 2], (tmp_path / "array.npy").read_bytes(), b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"found\.npz: a damaged file of neighbours; remove it to begin anew"):
            run(x, y, path, "flat")


@pytest.mark.parametrize("way", ["flat", "ivf", "ivf-pq"])
@pytest.mark.parametrize("empty", [0, 1])
def test_a_side_without_sentences_has_no_neighbours(
    make_side: Callable[..., Side], tmp_path: Path, way: str, empty: int
) -> None:
    sides = [make_side(50, seed, np.arange(0) if seed == empty else None) for seed in (0, 1)]
    nearest = run(*sides, tmp_path / "state.npz", way)
    assert (nearest.xy == -1).all() and (nearest.yx == -1).all()


@pytest.mark.parametrize(("size", "bytes_a_row"), [(16, 4 + 8), (15, 2 * 15 + 8)])
def test_parts_are_sized_for_the_index_that_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, bytes_a_row: int
) -> None:
    """Product quantisation needs an even number of dimensions; other vectors take 16 bits for each."""
    monkeypatch.setattr(ivf, "_PART_BYTES", 300 * bytes_a_row)
    monkeypatch.setattr(ivf, "_QUERIES", 1000)
    sides = []
    for seed in (0, 1):
        np.save(tmp_path / f"{seed}.npy", vectors(900, size, seed))
        sides.append(Side(VectorFile(tmp_path / f"{seed}.npy"), np.arange(900)))
    units = list(ivf._units(*sides, True))
    assert [part for *_, part, _ in units] == 2 * [(0, 300), (300, 600), (600, 900)]


@pytest.mark.parametrize("way", ["flat", "ivf"])
def test_progress_moves_within_a_block(
    make_side: Callable[..., Side], tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """A single block of a very large search takes longer than a person waits."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)  # every line is printed
    x, y = make_side(110, 1), make_side(90, 2)
    state = SearchState.begin(tmp_path / "state.npz", len(x), len(y), 4)
    if way == "flat":
        search_flat(x, y, state, show_progress=True)
        expected, total = "comparisons", 110 * 90
    else:
        search_ivf(x, y, state, probes=1000, show_progress=True)
        expected, total = "queries", 90 * 2 + 110  # x is indexed in two parts
    lines = [
        re.match(rf"search: ([\d,]+) of {total:,} {expected}, ", line) for line in capsys.readouterr().err.splitlines()
    ]
    counts = [int(line[1].replace(",", "")) for line in lines]
    assert counts == sorted(counts) and counts[-1] == total
    assert len(set(counts)) > state.done  # which is the number of blocks
