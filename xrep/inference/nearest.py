"""Nearest neighbours between two sides of any size, kept in files, from which an interrupted search goes on.

The file ``SIDE-BLOCK.PART.npy`` in the folder of a search has the neighbours of a block of rows of a side, the source
``x`` or the target ``y``, among the parts of the other side up to PART. It appears when it is complete, and then the
one of the part before is removed. Blocks and parts depend on the data alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from xrep.interrupts import StopRequest
from xrep.progress import Counter
from xrep.retrieval.ivf import PartIndex, parts_of
from xrep.retrieval.tiles import TILE, Operand, search_tile
from xrep.retrieval.topk import TopK
from xrep.store.arrays import ArrayFile
from xrep.store.vectors import Vectors

_STRIP_BYTES = 1 << 27
"""Bytes of the float32 rows of x that are held while all of y is read."""
_PANEL_BYTES = 1 << 25
"""Bytes of the float32 rows of y that are read at a time."""
MOST_ROWS = 1 << 18
"""Most rows whose neighbours are in memory at a time."""


@dataclass(frozen=True)
class Side:
    """The sentences of one side that are searched: vectors, and which rows of them in ascending order, int64 [N] (None:
    all), of which ``start`` to ``stop`` - 1 are of this side."""

    vectors: Vectors
    rows: ArrayFile | None
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> int:
        return self.vectors.size

    def numbers(self, sentences: np.ndarray) -> np.ndarray:
        """Return the rows of some sentences in the vectors."""
        return sentences + self.start if self.rows is None else self.rows.read(sentences + self.start)

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the vectors of some sentences: float32 [n, D], L2-normalised."""
        if not isinstance(rows, slice):
            return self.vectors.read(self.numbers(rows))
        some = slice(self.start + rows.start, min(self.start + rows.stop, self.stop))
        return self.vectors.read(some if self.rows is None else self.rows.read(some))

    def part(self, number: int, parts: int) -> Side:
        """Return the ``number``-th of so many parts, from 1."""
        return Side(self.vectors, self.rows, *(len(self) * n // parts for n in (number - 1, number)))


class Found:
    """The neighbours [N, k] of a side in files, one after the other, of which few are open at a time."""

    def __init__(self, paths: Sequence[Path], k: int) -> None:
        self.k, self._paths = k, paths
        self._open = lru_cache(maxsize=64)(_neighbours)
        self._starts = [0, *accumulate(len(self._open(path)) for path in paths)]

    def __len__(self) -> int:
        return self._starts[-1]

    def slice(self, start: int, stop: int) -> TopK:
        """Return the neighbours of some rows, which are read from the files."""
        return self._read(np.arange(start, min(stop, len(self))))

    def take(self, rows: np.ndarray) -> TopK:
        """Return the neighbours of some rows, in the order of ``rows``, which may be repeated."""
        distinct, place = np.unique(rows, return_inverse=True)
        best = self._read(distinct)
        return TopK(best.similarity[place], best.index[place])

    def _read(self, rows: np.ndarray) -> TopK:
        pieces = [np.empty((0, 3 * self.k), np.int32)]
        edges = np.searchsorted(rows, self._starts).tolist()
        for path, first, start, stop in zip(self._paths, self._starts, edges, edges[1:], strict=False):
            if start < stop:
                pieces.append(self._open(path).read(rows[start:stop] - first))
        bits = np.concatenate(pieces)
        similarity, index = (np.ascontiguousarray(part) for part in np.split(bits, [self.k], axis=1))
        return TopK(torch.from_numpy(similarity.view(np.float32)), torch.from_numpy(index.view(np.int64)))


def _neighbours(path: Path) -> ArrayFile:
    return ArrayFile.open(path, "neighbours", "remove it to begin anew")


def _latest(folder: Path, side: str) -> dict[int, tuple[int, Path]]:
    """Return for each block of a side the number of its last part, and the file."""
    found = {}
    for path in sorted(folder.glob(f"{side}-*.*.npy")):
        block, part = path.name[len(side) + 1 : -len(".npy")].split(".")
        found[int(block)] = int(part), path
    return found


def found_in(folders: Sequence[Path], side: str, k: int) -> Found:
    """Return the neighbours of a side that complete searches of consecutive parts of it left in some folders."""
    return Found([path for folder in folders for _, path in _latest(folder, side).values()], k)


@contextmanager
def _replacing(folder: Path, side: str, block: int, part: int, k: int) -> Iterator[tuple[Found, ArrayFile]]:
    """Context manager that yields the neighbours of a block so far, none at first, and the file to write those to that
    include a further part."""
    before = _latest(folder, side).get(block)
    path = folder / f"{side}-{block:08}.{part:08}.npy"
    aside = path.with_name(f"{path.name}.partial")
    file = ArrayFile.create(aside, np.int32, (3 * k,))
    yield Found([before[1]] if before and k else [], k), file
    file.close()
    os.replace(aside, path)
    if before and before[1] != path:  # a strip of x is found again if the process was killed before that of y was there
        before[1].unlink()


def _append(file: ArrayFile, best: TopK) -> None:
    similarity, index = (part.cpu().numpy().view(np.int32) for part in (best.similarity, best.index))
    if best.k:
        file.append(np.concatenate((similarity, index), axis=1))


def _blocks(rows: int, size: int) -> list[tuple[int, int]]:
    return [(start, min(start + size, rows)) for start in range(0, rows, max(1, size))]


def _best(found: Found, start: int, stop: int) -> TopK:
    return found.slice(start, stop) if len(found) else TopK.none(stop - start, found.k)


def search_flat(
    x: Side, y: Side, k_x: int, k_y: int, folder: Path, *, device: str = "cpu", show_progress: bool = False
) -> None:
    """Find exact neighbours: each strip of x is compared with all of y, and one product serves both directions.

    Numbers of x are those of the whole side, also for a part of it. Memory: about 300 MB, and the neighbours of the
    rows that are compared.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the strips up to the one that was worked on are saved.
    """
    strips, panels = (
        _blocks(len(side), min(MOST_ROWS, max(1, size // (4 * side.size) // TILE) * TILE))
        for side, size in ((x, _STRIP_BYTES), (y, _PANEL_BYTES))
    )
    done = _latest(folder, "y").get(0, (-1, folder))[0] + 1
    counter = Counter("comparisons", "search", total=len(x) * len(y), shown=show_progress)
    counter.skip(sum(last - first for first, last in strips[:done]) * len(y))
    with counter, StopRequest().watching() as stop:
        for strip, (first, last) in list(enumerate(strips))[done:]:
            rows, best_x = _operand(x, first, last, device), TopK.none(last - first, k_x, device=device)
            with _replacing(folder, "y", 0, strip, k_y) as (before, after):
                for start, end in panels:
                    best_y = _best(before, start, end)
                    best_y = TopK(best_y.similarity.to(device), best_y.index.to(device))
                    columns = _operand(y, start, end, device)
                    search_tile(rows, columns, best_x, best_y, x.start + first, y.start + start, counter.update)
                    _append(after, best_y)
                with _replacing(folder, "x", strip, 0, k_x) as (_, of_strip):
                    _append(of_strip, best_x)
            if stop.signal:
                raise KeyboardInterrupt


def _operand(side: Side, start: int, stop: int, device: str) -> Operand:
    return Operand.of(torch.from_numpy(side.read(slice(start, stop))).to(device))


def search_index(
    x: Side, y: Side, k_x: int, k_y: int, folder: Path, name: str, probes: int, *, show_progress: bool = False
) -> None:
    """Find neighbours with an index of faiss (``make_index``), in one direction after the other.

    Where a sentence has fewer than k neighbours, the index is -1 and the similarity -inf.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the blocks up to the one that was worked on are saved.
    """
    units = [
        (label, queries, side, k, part, bounds, block, queried)
        for label, queries, side, k in (("x", x, y, k_x), ("y", y, x, k_y))
        for part, bounds in enumerate(parts_of(name, side) if k else ())
        for block, queried in enumerate(_blocks(len(queries), MOST_ROWS))
    ]
    built, index = None, None
    counter = Counter("queries", "search", total=sum(stop - start for *_, (start, stop) in units), shown=show_progress)
    with counter, StopRequest().watching() as stopping:
        for label, queries, side, k, part, bounds, block, (start, stop) in units:
            if _latest(folder, label).get(block, (-1,))[0] >= part:
                counter.skip(stop - start)
                continue
            if built != (label, part):
                index = None  # free its memory before the next one is built
                index = PartIndex(name, side, *bounds, side.start, probes, counter.update)
                built = label, part
            assert index is not None
            with _replacing(folder, label, block, part, k) as (before, after):
                best = _best(before, 0, stop - start)
                index.search(queries, start, stop, best, counter.update)
                _append(after, best)
            if stopping.signal:
                raise KeyboardInterrupt


def merge_found(parts: Sequence[Path], k: int, path: Path) -> Found:
    """Merge the neighbours of all of y that searches of parts of x left in some folders, into a file."""
    found, file = [found_in([part], "y", k) for part in parts], ArrayFile.create(path, np.int32, (3 * k,))
    for start, stop in _blocks(len(found[0]), MOST_ROWS):
        best = found[0].slice(start, stop)
        for other in found[1:]:
            best.merge(other.slice(start, stop))
        _append(file, best)
    file.close()
    return Found([path], k)
