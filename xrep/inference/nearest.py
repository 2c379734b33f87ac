"""Nearest neighbours between two sides of any size, as units of a job: strips of rows, or parts of an index of faiss.

Strips, parts and blocks depend on the data alone, and ``TopK.merge`` does not depend on the order of its arguments, so
the neighbours are the same, whoever finds them and in whatever order.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from xrep.inference.settings import SearchOptions
from xrep.jobs.plan import Advance, Remade, Stage, UnitResult
from xrep.retrieval.ivf import PartIndex, parts_of, trained_index
from xrep.retrieval.tiles import TILE_ROWS, Operand, search_tile
from xrep.retrieval.topk import TopK
from xrep.store import addresses
from xrep.store.arrays import READ_BYTES, ArrayFile, block_bounds
from xrep.store.vectors import Vectors, as_directions

_STRIP_BYTES = 1 << 28
"""Most memory of a strip of x, against which all of y is compared: bytes of float32 rows."""
_STRIPS, _LEAST_STRIP = 4, 75_000
"""Number of strips that x is cut into at least, unless they would have fewer rows: the neighbours of y are unknown at
the beginning of each strip, which costs time."""
_PANEL_BYTES = 1 << 25
"""Bytes of the float32 rows of y that are read at a time."""
MOST_ROWS = 1 << 18
"""Most rows whose neighbours are in memory at a time."""
_TRAINED = "trained.faiss"
_BOTH_ROWS = 1 << 24
"""Up to so many rows of a side, one product serves both directions. Then each strip leaves neighbours of all of y,
which must be merged: beyond, twice the products are less work."""
Label = Literal["x", "y"]
OTHER: dict[Label, Label] = {"x": "y", "y": "x"}


@dataclass(frozen=True)
class Side:
    """The sentences of one side that are searched: vectors, and which rows of them in ascending order, int64 [N] (None:
    all)."""

    vectors: Vectors
    rows: ArrayFile | None

    def __len__(self) -> int:
        return len(self.vectors if self.rows is None else self.rows)

    @property
    def size(self) -> int:
        return self.vectors.size

    @property
    def dtype(self) -> np.dtype:
        """The type of the numbers in the file."""
        return self.vectors.dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the vectors of some sentences: float32 [n, D], L2-normalised."""
        return self.vectors.read(rows if self.rows is None else self.rows.read(rows))

    def held(self, start: int, stop: int) -> HeldRows:
        """Read the vectors of some sentences into memory."""
        held = np.empty((stop - start, self.size), self.dtype)
        for first, last in block_bounds(stop - start, max(1, READ_BYTES // (self.size * self.dtype.itemsize))):
            some = slice(start + first, start + last)
            held[first:last] = self.vectors.stored(some if self.rows is None else self.rows.read(some))
        return HeldRows(held)


@dataclass(frozen=True)
class HeldRows:
    """Vectors in memory, [N, D], in the type that they have in a file."""

    stored: np.ndarray

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def size(self) -> int:
        return self.stored.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.stored.dtype

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some of the vectors: float32 [n, D], L2-normalised."""
        return as_directions(self.stored[rows])


class SideSource(Remade):
    """What a search needs of a side when the stages before are complete."""

    @cached_property
    def side(self) -> Side:
        raise NotImplementedError

    @cached_property
    def k(self) -> int:
        """How many neighbours are wanted for each sentence of this side; 0: none."""
        raise NotImplementedError


class FoundNeighbours:
    """The neighbours [N, k] of a side in files, one after the other, of which few are open at a time."""

    def __init__(self, results: Sequence[UnitResult], label: Label, k: int) -> None:
        self.k, self._stored = k, k
        self._starts = [0, *accumulate(result.facts[label]["rows"] for result in results)]
        self._open = lru_cache(maxsize=64)(lambda number: results[number].array(f"{label}.npy"))

    def __len__(self) -> int:
        return self._starts[-1]

    def first(self, k: int) -> FoundNeighbours:
        """Return the k nearest of them."""
        fewer = copy.copy(self)
        fewer.k = k
        return fewer

    def slice(self, start: int, stop: int) -> TopK:
        """Return the neighbours of some rows, which are read from the files."""
        return self._read(np.arange(start, min(stop, len(self))))

    def take(self, rows: np.ndarray) -> TopK:
        """Return the neighbours of some rows, in the order of ``rows``, which may be repeated."""
        distinct, place = np.unique(rows, return_inverse=True)
        best = self._read(distinct)
        return TopK(best.similarity[place], best.index[place])

    def _read(self, rows: np.ndarray) -> TopK:
        pieces = [np.empty((0, 3 * self._stored), np.int32)]
        edges = np.searchsorted(rows, self._starts).tolist()
        for number, (start, stop) in enumerate(pairwise(edges)):
            if start < stop:
                pieces.append(self._open(number).read(rows[start:stop] - self._starts[number]))
        bits = np.concatenate(pieces)
        similarity, index = (part.copy() for part in np.split(bits, [self._stored], axis=1))
        similarity, index = similarity.view(np.float32)[:, : self.k], index.view(np.int64)[:, : self.k]
        return TopK(torch.from_numpy(similarity), torch.from_numpy(index))


def _bits(best: TopK) -> np.ndarray:
    """Return similarities and indices as they are in a file, int32 [n, 3 k]."""
    similarity, index = (part.cpu().numpy().view(np.int32) for part in (best.similarity, best.index))
    return np.concatenate((similarity, index), axis=1)


class Search(Stage):
    """A search for the neighbours of x and of y among each other.

    A unit writes the neighbours of some rows of a side to ``{side}.npy``. Its facts of that side are the number of
    these ``rows``, and the ``layer``: units of one layer have the neighbours of all rows, one after the other, among
    the same part of the other side.
    """

    name, unit = "search", "queries"

    def __init__(self, x: SideSource, y: SideSource) -> None:
        self._sources: dict[Label, SideSource] = {"x": x, "y": y}

    def weight(self, unit: tuple[Any, ...]) -> int:
        *_, (start, stop) = unit
        return stop - start

    @cached_property
    def sides(self) -> dict[Label, Side]:
        return {label: source.side for label, source in self._sources.items()}

    @cached_property
    def k(self) -> dict[Label, int]:
        """How many neighbours are wanted for each sentence of a side."""
        return {label: source.k for label, source in self._sources.items()}

    def layers(self, label: Label) -> list[FoundNeighbours]:
        """Return neighbours of all rows of a side among parts of the other side, to be merged."""
        layers = dict[int, list[UnitResult]]()
        for result in self.results:
            if label in result.facts:
                layers.setdefault(result.facts[label]["layer"], []).append(result)
        return [FoundNeighbours(results, label, self.k[label]) for results in layers.values()]


class SearchAll(Search):
    """An exact search: a unit compares a strip of one side with all of the other. Memory: about 500 MB, and the
    neighbours of the rows that are compared.

    Args:
        device: Where products are computed in this process; others take a GPU if they have one.
    """

    def __init__(self, x: SideSource, y: SideSource, device: str) -> None:
        super().__init__(x, y)
        self.device = device

    @cached_property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def units(self) -> Sequence[tuple[int, Label, int, tuple[int, int]]]:
        """The number of each unit, the side whose rows are a strip, the number of neighbours that are wanted of the
        rows of the other side, and where the strip begins and ends."""
        both = max(map(len, self.sides.values())) <= _BOTH_ROWS
        strips: list[tuple[Label, int, tuple[int, int]]] = [
            (label, self.k[OTHER[label]] if both else 0, strip)
            for label, side in self.sides.items()
            if self.k[label] and not (label == "y" and both and self.k["x"])
            for strip in block_bounds(len(side), _strip_rows(side))
        ]
        return [(number, *strip) for number, strip in enumerate(strips)]

    def run(self, unit: tuple[int, Label, int, tuple[int, int]], folder: Path, advance: Advance) -> dict[str, Any]:
        number, label, k_other, (start, stop) = unit
        other, facts = OTHER[label], {label: {"layer": 0, "rows": stop - start}}
        rows, best = self._operand(label, start, stop), TopK.none(stop - start, self.k[label], device=self.device)
        of_other = ArrayFile.create(folder / f"{other}.npy", np.int32, (3 * k_other,)) if k_other else None
        for first, last in block_bounds(len(self.sides[other]), _panel_rows(self.sides[other])):
            columns, best_other = (
                self._operand(other, first, last),
                TopK.none(last - first, k_other, device=self.device),
            )
            search_tile(rows, columns, best, best_other, start, first)
            if of_other is not None:
                of_other.append(_bits(best_other))
        if of_other is not None:
            of_other.close()
            facts[other] = {"layer": number, "rows": len(self.sides[other])}
        np.save(folder / f"{label}.npy", _bits(best))
        advance(stop - start)
        return facts

    def _operand(self, label: Label, start: int, stop: int) -> Operand:
        return Operand.of(torch.from_numpy(self.sides[label].read(slice(start, stop))).to(self.device))


def _strip_rows(side: Side) -> int:
    """Return the number of rows of each strip but the last one, which depends on the data alone."""
    rows, most = len(side), max(1, min(MOST_ROWS, _STRIP_BYTES // (4 * side.size)) // TILE_ROWS) * TILE_ROWS
    strips = max(math.ceil(rows / most), min(_STRIPS, rows // _LEAST_STRIP), 1)
    return math.ceil(math.ceil(rows / strips) / TILE_ROWS) * TILE_ROWS


def _panel_rows(side: Side) -> int:
    return max(1, min(MOST_ROWS, _PANEL_BYTES // (4 * side.size)) // TILE_ROWS) * TILE_ROWS


class TrainIndex(Search):
    """Train an index of faiss for each side that is searched, on some of its rows; a unit is a side."""

    name, unit = "train-index", "indexes"

    def __init__(self, x: SideSource, y: SideSource, index: str) -> None:
        super().__init__(x, y)
        self._index = index

    @cached_property
    def units(self) -> Sequence[Label]:
        return [OTHER[label] for label, k in self.k.items() if k]

    def weight(self, unit: Any) -> int:
        return 1

    def run(self, unit: Label, folder: Path, advance: Advance) -> dict[str, Any]:
        import faiss

        faiss.write_index(trained_index(self._index, self.sides[unit]), str(folder / _TRAINED))
        return {}

    def index(self, label: Label) -> Any:
        """Return the index of a side, still empty."""
        import faiss

        file = self.results[self.units.index(label)].files[_TRAINED]
        return faiss.deserialize_index(np.frombuffer(addresses.read(file), np.uint8))


class SearchParts(Search):
    """A search with an index of faiss: a unit adds a part of one side to it and searches a block of the other.

    Where a sentence has fewer than k neighbours, the index is -1 and the similarity -inf.
    """

    def __init__(self, train: TrainIndex, x: SideSource, y: SideSource, options: SearchOptions) -> None:
        super().__init__(x, y)
        self._train, self._options = train, options

    @cached_property
    def units(self) -> Sequence[tuple[Label, int, tuple[int, int], tuple[int, int]]]:
        """The side whose neighbours are searched, the number of the part of the other side, where that begins and
        ends, and the rows of the queries."""
        return [
            (label, part, bounds, queries)
            for label, k in self.k.items()
            if k
            for part, bounds in enumerate(
                parts_of(self._options.index, self.sides[OTHER[label]], self._options.index_gigabytes)
            )
            for queries in block_bounds(len(self.sides[label]), MOST_ROWS)
        ]

    @cached_property
    def _held(self) -> dict[tuple[Label, int], PartIndex]:
        """The part that was built last."""
        return {}

    def run(
        self, unit: tuple[Label, int, tuple[int, int], tuple[int, int]], folder: Path, advance: Advance
    ) -> dict[str, Any]:
        label, part, bounds, (start, stop) = unit
        if (label, part) not in self._held:
            self._held.clear()  # to free its memory before the next one is built
            other = OTHER[label]
            trained, rows = self._train.index(other), self.sides[other].held(*bounds)
            how = self._options.index, trained, rows, bounds[0], self._options.probes
            self._held[label, part] = PartIndex(*how)
        best = TopK.none(stop - start, self.k[label])
        self._held[label, part].search(self.sides[label], start, stop, best, advance)
        np.save(folder / f"{label}.npy", _bits(best))
        return {label: {"layer": part, "rows": stop - start}}


class Merge(Search):
    """Merge the neighbours that different units have found of the same rows; a unit is a block of rows."""

    name, unit = "merge", "blocks"

    def __init__(self, search: Search, x: SideSource, y: SideSource) -> None:
        super().__init__(x, y)
        self._search = search

    @cached_property
    def units(self) -> Sequence[tuple[Label, list[FoundNeighbours], tuple[int, int]]]:
        """The side, the neighbours of all of its rows, and where the block begins and ends."""
        found: dict[Label, list[FoundNeighbours]] = {label: self._search.layers(label) for label in OTHER}
        return [
            (label, layers, block)
            for label, layers in found.items()
            if len(layers) > 1
            for block in block_bounds(len(layers[0]), MOST_ROWS)
        ]

    def weight(self, unit: tuple[Any, ...]) -> int:
        return 1

    def run(
        self, unit: tuple[Label, list[FoundNeighbours], tuple[int, int]], folder: Path, advance: Advance
    ) -> dict[str, Any]:
        label, (first, *others), block = unit
        best = first.slice(*block)
        for other in others:
            best.merge(other.slice(*block))
        np.save(folder / f"{label}.npy", _bits(best))
        return {label: {"layer": 0, "rows": len(best)}}

    def found(self, label: Label) -> FoundNeighbours:
        """Return the neighbours of all rows of a side among all of the other side."""
        return (self.layers(label) or self._search.layers(label))[0]


def search_stages(x: SideSource, y: SideSource, options: SearchOptions) -> tuple[list[Stage], Merge]:
    """Return the stages of a search for neighbours, and the last one, which has them."""
    if options.index == "flat":
        first, search = [], SearchAll(x, y, options.device)
    else:
        train = TrainIndex(x, y, options.index)
        first, search = [train], SearchParts(train, x, y, options)
    merge = Merge(search, x, y)
    return [*first, search, merge], merge
