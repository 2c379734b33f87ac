"""Neighbours between files of vectors: those of a plain product, whatever the blocks, parts and interruptions."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.retrieval.test_neighbours import Both, assert_same, plain, vectors
from xrep import progress
from xrep.errors import UserError
from xrep.inference import nearest
from xrep.inference.nearest import FoundNeighbours, Side, SideSource, search_stages
from xrep.inference.settings import SearchOptions
from xrep.jobs.engines import LOCAL, run_job
from xrep.jobs.plan import Job, UnitResult
from xrep.retrieval import ivf, tiles
from xrep.retrieval.ivf import make_index
from xrep.retrieval.topk import TopK
from xrep.store.arrays import ArrayFile
from xrep.store.vectors import Vectors

WAYS = ["flat", "ivf"]


class Stopped(BaseException):
    pass


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (tiles, "TILE_ROWS", 20), (nearest, "TILE_ROWS", 20), (nearest, "_STRIP_BYTES", 40 * 4 * 16),
        (nearest, "MOST_ROWS", 50), (nearest, "_LEAST_STRIP", 40),
        (nearest, "_PANEL_BYTES", 60 * 4 * 16), (ivf, "_BLOCK", 32),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def make_side(tmp_path: Path) -> Callable[..., Side]:
    def make(rows: int | np.ndarray, seed: int, chosen: np.ndarray | None = None, dtype: str = "float32") -> Side:
        """A side of random vectors with 16 numbers, or of those given."""
        path, own = tmp_path / f"{seed}.npy", 3 * vectors(rows, 16, seed) if isinstance(rows, int) else rows
        np.save(path, own.astype(dtype))
        if chosen is None:
            return Side(Vectors(path), None)
        np.save(tmp_path / f"{seed}-rows.npy", chosen)
        return Side(Vectors(path), ArrayFile.open(tmp_path / f"{seed}-rows.npy", "rows", ""))

    return make


class Given(SideSource):
    """A side that is there before the job begins."""

    def __init__(self, side: Side, k: int) -> None:
        self.side, self.k = side, k


PART = 100 * (2 * 16 + 8 + 4 * 16) / 1e9
"""Gigabytes of 100 vectors of float32 and of their index, in which numbers have 16 bits."""


def run(
    x: Side, y: Side, folder: Path, way: str, k: int = 4, *, gigabytes: float = PART, show_progress: bool = False
) -> Both:
    options = SearchOptions(index=way, probes=1000, index_gigabytes=gigabytes)
    stages, merge = search_stages(Given(x, k), Given(y, k), options)
    job, found = Job(f"{folder}.job", "search", {}, stages), list[TopK]()

    def finish() -> dict[str, Any]:
        found.extend(whole(merge.found(label)) for label in ("x", "y"))
        return {}

    run_job(job, LOCAL, finish, str(folder), show_progress=show_progress)
    return found[0], found[1]


def whole(found: FoundNeighbours) -> TopK:
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
    np.testing.assert_array_equal(side.read(np.array([5, 3])), stored[[7, 5]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PQ8x4", "IVF4,SQ8", "OPQ8,IVF4,PQ8x4fs"])
def test_strings_of_the_factory_of_faiss(make_side, tmp_path, name):
    """What the index finds has exact similarities, and is most of what there is."""
    x, y = make_side(300, 1), make_side(900, 2)
    found, expected = run(x, y, tmp_path / "found", name, gigabytes=0.001)[0], plain(every(x), every(y), 4)[0]
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


@pytest.mark.parametrize("way", WAYS)
def test_a_search_goes_on_where_it_stopped(make_side, tmp_path, monkeypatch, way):
    """A search is ended each time it reads a side for the n-th time; units that are done are not done again."""
    x, y = make_side(230, 1), make_side(310, 2)
    expected = run(x, y, tmp_path / "whole", way)
    original, seen, begun, do = Side.read, list[Side](), list[tuple[str, int]](), Job.do

    def read(side: Side, rows: slice | np.ndarray) -> np.ndarray:
        seen.append(side)
        if len(seen) == most:
            raise Stopped
        return original(side, rows)

    def noted(job: Job, stage: Any, number: int, advance: Any) -> bool:
        begun.append((stage.name, number))
        return do(job, stage, number, advance)

    monkeypatch.setattr(Side, "read", read)
    monkeypatch.setattr(Job, "do", noted)
    most = stops = 0
    while stops < 100:
        most += 3
        seen.clear()
        try:
            assert_same(run(x, y, tmp_path / "found", way), expected)
            break
        except Stopped:
            stops += 1
    assert stops > 2 and len(begun) == len({*begun}) + stops
    assert not list(tmp_path.glob("*.job"))


@pytest.mark.parametrize("both", [True, False])
def test_equal_neighbours_are_those_with_the_lowest_index(make_side, tmp_path, monkeypatch, both):
    """Each row of x is there twice, in different strips, also where each direction is searched alone."""
    monkeypatch.setattr(nearest, "_BOTH_ROWS", 1 << 20 if both else 100)
    x, y = make_side(vectors(100, 16, 1)[np.arange(200) % 100], 1), make_side(120, 2)
    assert_same(run(x, y, tmp_path / "found", "flat"), plain(every(x), every(y), 4))


def test_few_of_many_files_are_open_at_a_time(tmp_path: Path) -> None:
    before, paths = len(os.listdir("/dev/fd")), [tmp_path / f"{number}.npy" for number in range(100)]
    for number, path in enumerate(paths):
        np.save(path, np.full((2, 3), number, np.int32))
    results = [UnitResult({"x.npy": str(path)}, {"x": {"layer": 0, "rows": 2}}) for path in paths]
    found = FoundNeighbours(results, "x", 1)
    assert found.take(np.array([199, 0, 7])).index.tolist() == [[99 * (2**32 + 1)], [0], [3 * (2**32 + 1)]]
    assert len(found) == 200 and len(os.listdir("/dev/fd")) < before + len(paths)


@pytest.mark.parametrize("way", WAYS)
def test_progress_moves_with_the_queries(make_side, tmp_path, way, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)  # every line is printed
    x, y = make_side(110, 1), make_side(90, 2)
    run(x, y, tmp_path / "found", way, show_progress=True)
    # x is indexed in two parts, which y searches in two blocks; of exact searches x has three strips.
    total = {"flat": 110, "ivf": 90 * 2 + 110}[way]
    numbers = [float(n) for n in re.findall(rf"search: .*\| ([\d.]+)/{total} .* queries/s", capsys.readouterr().err)]
    assert numbers == sorted(numbers) and numbers[-1] == total and len({*numbers}) >= 3


@pytest.mark.parametrize("k", [1, 2, 5])
def test_one_row_can_be_read(make_side: Callable[..., Side], tmp_path: Path, k: int) -> None:
    """The bytes of an odd number of neighbours are no multiple of those of a number of 64 bits."""
    x, y = make_side(6, 1), make_side(7, 2)
    stages, merge = search_stages(Given(x, k), Given(y, k), SearchOptions())
    rows = list[TopK]()

    def finish() -> dict[str, Any]:
        rows.extend(merge.found("x").take(np.array([row])) for row in range(6))
        return {}

    job = Job(f"{tmp_path}/found.job", "search", {}, stages)
    run_job(job, LOCAL, finish, str(tmp_path / "found"), show_progress=False)
    expected, _ = plain(every(x), every(y), k)
    assert [row.index.tolist() for row in rows] == [[row] for row in expected.index.tolist()]
