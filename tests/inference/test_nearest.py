"""Neighbours between files of vectors: those of a plain product, whatever the blocks, parts and interruptions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.retrieval.test_neighbours import Both, assert_same, plain, vectors
from xrep import progress
from xrep.errors import UserError
from xrep.inference import nearest
from xrep.inference.nearest import Found, Side, found_in, merge_found, search_flat, search_index
from xrep.retrieval import ivf, tiles
from xrep.retrieval.ivf import make_index
from xrep.retrieval.topk import TopK
from xrep.store.arrays import ArrayFile
from xrep.store.vectors import Vectors

WAYS = ["flat", "ivf"]


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (tiles, "TILE", 20), (nearest, "TILE", 20), (nearest, "_STRIP_BYTES", 40 * 4 * 16), (nearest, "MOST_ROWS", 50),
        (nearest, "_PANEL_BYTES", 60 * 4 * 16), (ivf, "_BLOCK", 32), (ivf, "_PART_BYTES", 100 * (2 * 16 + 8)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def make_side(tmp_path: Path) -> Callable[..., Side]:
    def make(rows: int | np.ndarray, seed: int, chosen: np.ndarray | None = None, dtype: str = "float32") -> Side:
        """A side of random vectors with 16 numbers, or of those given."""
        path, own = tmp_path / f"{seed}.npy", 3 * vectors(rows, 16, seed) if isinstance(rows, int) else rows
        np.save(path, own.astype(dtype))
        if chosen is None:
            return Side(Vectors(path), None, 0, len(own))
        of_chosen = ArrayFile.temporary(tmp_path, np.int64)
        of_chosen.append(chosen)
        return Side(Vectors(path), of_chosen, 0, len(chosen))

    return make


def run(x: Side, y: Side, folder: Path, way: str, k: int = 4) -> Both:
    folder.mkdir(exist_ok=True)
    if way == "flat":
        search_flat(x, y, k, k, folder)
    else:
        search_index(x, y, k, k, folder, way, probes=1000)
    return whole(found_in([folder], "x", k)), whole(found_in([folder], "y", k))


def whole(found: Found) -> TopK:
    return found.slice(0, len(found))


def every(side: Side) -> np.ndarray:
    return side.read(slice(0, len(side)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("way", WAYS)
def test_neighbours_in_files_are_those_in_memory(make_side, tmp_path, way, dtype):
    """Search every cell of the inverted files. Only some of the rows are compared."""
    chosen = np.flatnonzero(np.random.default_rng(0).random(230) < 0.7)
    x, y = make_side(230, 1, chosen, dtype), make_side(310, 2, dtype=dtype)
    assert_same(run(x, y, tmp_path / "found", way), plain(every(x), every(y), 4))


def test_rows_are_read_whatever_lies_between_them(make_side: Callable[..., Side]) -> None:
    rows = np.array([0, 1, 3, 5, 6, 7])
    side = make_side(9, 1, rows)
    stored = side.vectors.read(np.arange(9))
    for start in range(6):
        for stop in range(start + 1, 7):
            np.testing.assert_array_equal(side.read(slice(start, stop)), stored[rows[start:stop]])
    np.testing.assert_array_equal(side.part(2, 3).read(slice(0, 9)), stored[[3, 5]])
    np.testing.assert_array_equal(side.part(2, 2).read(np.array([2, 0])), stored[[7, 5]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PQ8x4", "IVF4,SQ8", "OPQ8,IVF4,PQ8x4fs"])
def test_strings_of_the_factory_of_faiss(make_side, tmp_path, monkeypatch, name):
    """What the index finds has exact similarities, and is most of what there is."""
    x, y = make_side(300, 1), make_side(900, 2)
    monkeypatch.setattr(ivf, "_PART_BYTES", 1 << 20)
    found, expected = run(x, y, tmp_path / "found", name)[0], plain(every(x), every(y), 4)[0]
    exact = every(x).astype(np.float64) @ every(y).astype(np.float64).T
    np.testing.assert_allclose(found.similarity, np.take_along_axis(exact, found.index.numpy(), 1), atol=1e-7)
    assert (
        np.mean([len({*a} & {*b}) / 4 for a, b in zip(found.index.tolist(), expected.index.tolist(), strict=True)])
        > 0.85
    )


def test_strings_that_faiss_cannot_use_are_refused(make_side, tmp_path):
    for name, reason in (("IVF4096,XY", "could not parse code"), ("PQ7", "The dimension of the vector"), ("", "")):
        with pytest.raises(UserError, match=f"`index` {name} is not possible: {reason}.*; choose another `index`"):
            make_index(name, 16)
    for name, reason in (("IVF4096,Flat", "Number of training points"), ("IDMap2,IVF4,Flat", "add does not make")):
        with pytest.raises(UserError, match=f"`index` {name} is not possible: {reason}"):
            run(make_side(20, 1), make_side(20, 2), tmp_path / name, name)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_search_goes_on_where_it_stopped(make_side, tmp_path, monkeypatch, way):
    """A search is ended each time it reads a side for the n-th time, until it reaches its end."""
    x, y = make_side(230, 1), make_side(310, 2)
    expected = run(x, y, tmp_path / "whole", way)
    original, seen = Side.read, list[Side]()

    def read(side: Side, rows: slice | np.ndarray) -> np.ndarray:
        seen.append(side)
        if len(seen) == most:
            raise Stopped
        return original(side, rows)

    monkeypatch.setattr(Side, "read", read)
    most = stops = 0
    while stops < 100:
        most += 3
        seen.clear()
        try:
            assert_same(run(x, y, tmp_path / "found", way), expected)
            break
        except Stopped:
            stops += 1
    assert stops > 5 and len(list((tmp_path / "found").glob("*.npy"))) == len(list((tmp_path / "whole").glob("*.npy")))
    seen.clear()
    run(x, y, tmp_path / "found", way)
    assert not seen  # finished work is not done again


def test_parts_of_the_source_are_merged(make_side: Callable[..., Side], tmp_path: Path) -> None:
    """Each row is in two parts, and of equal neighbours the lowest index wins, as in a single search. One part has
    fewer rows than there are neighbours."""
    x, y = make_side(vectors(100, 16, 1)[np.arange(200) % 100], 1), make_side(120, 2)
    expected, folders = run(x, y, tmp_path / "whole", "flat"), []
    edges = [0, 70, 71, 200]
    for start, stop in zip(edges, edges[1:], strict=False):
        folders.append(tmp_path / f"part{start}")
        run(Side(x.vectors, None, start, stop), y, folders[-1], "flat")
    xy = whole(found_in(folders, "x", 4))
    assert_same((xy, whole(merge_found(folders, 4, tmp_path / "merged.npy"))), expected)
    some = np.array([150, 3, 3, 199, 70])
    assert found_in(folders, "x", 4).take(some).index.tolist() == expected[0].index[some].tolist()


def test_few_of_many_files_are_open_at_a_time(tmp_path: Path) -> None:
    before, paths = len(os.listdir("/dev/fd")), [tmp_path / f"{number}.npy" for number in range(100)]
    for number, path in enumerate(paths):
        np.save(path, np.full((2, 3), number, np.int32))
    found = Found(paths, 1)
    assert found.take(np.array([199, 0, 7])).index.tolist() == [[99 * (2**32 + 1)], [0], [3 * (2**32 + 1)]]
    assert len(found) == 200 and len(os.listdir("/dev/fd")) < before + len(paths)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("empty", [0, 1])
def test_a_side_without_sentences_has_no_neighbours(make_side, tmp_path, way, empty):
    x, y = (make_side(50, seed, np.arange(0) if seed == empty else None) for seed in (0, 1))
    assert all((found.index == -1).all() for found in run(x, y, tmp_path / "found", way))


@pytest.mark.parametrize("way", WAYS)
def test_progress_moves_within_a_block(make_side, tmp_path, way, monkeypatch, capsys):
    """A single block of a very large search takes longer than a person waits."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)  # every line is printed
    x, y = make_side(110, 1), make_side(90, 2)
    if way == "flat":
        search_flat(x, y, 4, 4, tmp_path, show_progress=True)
    else:
        search_index(x, y, 4, 4, tmp_path, way, 1000, show_progress=True)
    # x is indexed in two parts.
    what, total, blocks = {"flat": ("comparisons", 110 * 90, 3), "ivf": ("queries", 90 * 2 + 110, 7)}[way]
    counts = re.findall(rf"search: ([\d,]+) of {total:,} {what}, ", capsys.readouterr().err)
    numbers = [int(n.replace(",", "")) for n in counts]
    assert numbers == sorted(numbers) and numbers[-1] == total and len(set(numbers)) > blocks
