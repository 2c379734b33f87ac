"""Nearest neighbours between two sides of any size, as units of a job: strips of rows, or parts of an index of faiss.

Strips, parts and blocks depend on the data alone, and ``TopK.merge`` does not depend on the order of its arguments, so
the neighbours are the same, whoever finds them and in whatever order.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch

from xrep.jobs.plan import Advance, Job, Result, Stage
from xrep.retrieval.ivf import PartIndex, parts_of, trained_index
from xrep.retrieval.tiles import TILE, Operand, search_tile
from xrep.retrieval.topk import TopK
from xrep.store import addresses
from xrep.store.arrays import ArrayFile
from xrep.store.vectors import Vectors

_STRIP_BYTES = 1 << 28
"""Bytes of the float32 rows of x that are held while all of y is read, at most."""
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

    def numbers(self, sentences: np.ndarray) -> np.ndarray:
        """Return the rows of some sentences in the vectors."""
        return sentences if self.rows is None else self.rows.read(sentences)

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return the vectors of some sentences: float32 [n, D], L2-normalised."""
        return self.vectors.read(rows if self.rows is None else self.rows.read(rows))


class Source(Protocol):
    """What a side is made from in each process, when the stages before are complete."""

    def side(self, job: Job) -> Side: ...

    def neighbours(self, job: Job) -> int:
        """Return how many neighbours are wanted for each sentence of this side; 0: none."""
        ...


class Found:
    """The neighbours [N, k] of a side in files, one after the other, of which few are open at a time."""

    def __init__(self, results: Sequence[Result], label: Label, k: int) -> None:
        self.k, self._starts = k, [0, *accumulate(result.facts[label]["rows"] for result in results)]
        self._open = lru_cache(maxsize=64)(lambda number: results[number].array(f"{label}.npy"))

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
        for number, (start, stop) in enumerate(pairwise(edges)):
            if start < stop:
                pieces.append(self._open(number).read(rows[start:stop] - self._starts[number]))
        bits = np.concatenate(pieces)
        similarity, index = (np.ascontiguousarray(part) for part in np.split(bits, [self.k], axis=1))
        return TopK(torch.from_numpy(similarity.view(np.float32)), torch.from_numpy(index.view(np.int64)))


def _bits(best: TopK) -> np.ndarray:
    """Return similarities and indices as they are in a file, int32 [n, 3 k]."""
    similarity, index = (part.cpu().numpy().view(np.int32) for part in (best.similarity, best.index))
    return np.concatenate((similarity, index), axis=1)


def blocks(rows: int, size: int) -> list[tuple[int, int]]:
    """Return where blocks of at most ``size`` rows, but at least one, begin and end."""
    return [(start, min(start + size, rows)) for start in range(0, rows, max(1, size))]


class Search(Stage):
    """A search for the neighbours of x and of y among each other.

    A unit writes the neighbours of some rows of a side to ``{side}.npy``. Its facts of that side are the number of
    these ``rows``, and the ``layer``: units of one layer have the neighbours of all rows, one after the other, among
    the same part of the other side.
    """

    name, unit = "search", "queries"

    def __init__(self, x: Source, y: Source) -> None:
        self._sources: dict[Label, Source] = {"x": x, "y": y}

    def sides(self, job: Job) -> dict[Label, Side]:
        return {label: source.side(job) for label, source in self._sources.items()}

    def k(self, job: Job) -> dict[Label, int]:
        """Return how many neighbours are wanted for each sentence of a side."""
        return {label: source.neighbours(job) for label, source in self._sources.items()}

    @abstractmethod
    def divide(self, job: Job) -> list[tuple[Any, ...]]:
        """Return what each unit does: first the side, and last where its rows begin and end."""

    def units(self, job: Job) -> list[tuple[Any, ...]]:
        return job.once((self.name, "units"), lambda: self.divide(job))

    def count(self, job: Job) -> int:
        return len(self.units(job))

    def weights(self, job: Job) -> list[int]:
        return [stop - start for *_, (start, stop) in self.units(job)]

    def layers(self, job: Job, label: Label) -> list[Found]:
        """Return neighbours of all rows of a side among parts of the other side, to be merged."""
        layers = dict[int, list[Result]]()
        for result in job.results(self):
            if label in result.facts:
                layers.setdefault(result.facts[label]["layer"], []).append(result)
        return [Found(results, label, self.k(job)[label]) for results in layers.values()]


class SearchAll(Search):
    """An exact search: a unit compares a strip of one side with all of the other. Memory: about 500 MB, and the
    neighbours of the rows that are compared.

    Args:
        device: Where products are computed in this process; others take a GPU if they have one.
    """

    def __init__(self, x: Source, y: Source, device: str) -> None:
        super().__init__(x, y)
        self._named: str | None = device

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_named": None}

    @property
    def _device(self) -> str:
        return self._named or ("cuda" if torch.cuda.is_available() else "cpu")

    def divide(self, job: Job) -> list[tuple[Label, tuple[int, int]]]:
        """Return the side whose rows are a strip, and where the strip begins and ends, of each unit."""
        sides, k = self.sides(job), self.k(job)
        both = max(map(len, sides.values())) <= _BOTH_ROWS
        return [
            (label, strip)
            for label, side in sides.items()
            if k[label] and not (label == "y" and both and k["x"])
            for strip in blocks(len(side), _strip_rows(side))
        ]

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        units, sides, k = self.units(job), self.sides(job), self.k(job)
        label, (start, stop) = units[number]
        other = OTHER[label]
        k_other = k[other] if all(unit[0] == "x" for unit in units) else 0
        of_other = ArrayFile.create(folder / f"{other}.npy", np.int32, (3 * k_other,)) if k_other else None
        rows, best = self._operand(sides[label], start, stop), TopK.none(stop - start, k[label], device=self._device)
        for first, last in blocks(len(sides[other]), _panel_rows(sides[other])):
            columns = self._operand(sides[other], first, last)
            best_other = TopK.none(last - first, k_other, device=self._device)
            search_tile(rows, columns, best, best_other, start, first)
            if of_other is not None:
                of_other.append(_bits(best_other))
        np.save(folder / f"{label}.npy", _bits(best))
        advance(stop - start)
        if of_other is None:
            return {label: {"layer": 0, "rows": stop - start}}
        of_other.close()
        return {label: {"layer": 0, "rows": stop - start}, other: {"layer": number, "rows": len(sides[other])}}

    def _operand(self, side: Side, start: int, stop: int) -> Operand:
        return Operand.of(torch.from_numpy(side.read(slice(start, stop))).to(self._device))


def _strip_rows(side: Side) -> int:
    """Return the number of rows of each strip but the last one, which depends on the data alone."""
    rows, most = len(side), max(1, min(MOST_ROWS, _STRIP_BYTES // (4 * side.size)) // TILE) * TILE
    strips = max(math.ceil(rows / most), min(_STRIPS, rows // _LEAST_STRIP), 1)
    return math.ceil(math.ceil(rows / strips) / TILE) * TILE


def _panel_rows(side: Side) -> int:
    return max(1, min(MOST_ROWS, _PANEL_BYTES // (4 * side.size)) // TILE) * TILE


class TrainIndex(Stage):
    """Train an index of faiss for each side that is searched, on some of its rows; a unit is a side."""

    name, unit = "train-index", "indexes"

    def __init__(self, search: SearchIndex, index: str) -> None:
        self._search, self._index = search, index

    def _searched(self, job: Job) -> list[Label]:
        return [OTHER[label] for label, k in self._search.k(job).items() if k]

    def count(self, job: Job) -> int:
        return len(self._searched(job))

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        import faiss

        label = self._searched(job)[number]
        faiss.write_index(trained_index(self._index, self._search.sides(job)[label]), str(folder / _TRAINED))
        return {}

    def index(self, job: Job, label: Label) -> Any:
        """Return the index of a side, still empty."""
        import faiss

        result = job.results(self)[self._searched(job).index(label)]
        return faiss.deserialize_index(np.frombuffer(addresses.read(result.files[_TRAINED]), np.uint8))


class SearchIndex(Search):
    """A search with an index of faiss: a unit adds a part of one side to it and searches a block of the other.

    Where a sentence has fewer than k neighbours, the index is -1 and the similarity -inf.
    """

    def __init__(self, x: Source, y: Source, index: str, probes: int) -> None:
        super().__init__(x, y)
        self._index, self._probes, self.train = index, probes, TrainIndex(self, index)
        self._built: tuple[Any, PartIndex] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_built": None}

    def divide(self, job: Job) -> list[tuple[Label, int, tuple[int, int], tuple[int, int]]]:
        """Return of each unit the side whose neighbours are searched, the number of the part of the other side, where
        that begins and ends, and the rows of the queries."""
        sides = self.sides(job)
        return [
            (label, part, bounds, queries)
            for label, k in self.k(job).items()
            if k
            for part, bounds in enumerate(parts_of(self._index, sides[OTHER[label]]))
            for queries in blocks(len(sides[label]), MOST_ROWS)
        ]

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        label, part, (first, last), (start, stop) = self.units(job)[number]
        sides, searched = self.sides(job), OTHER[label]
        if self._built is None or self._built[0] != (label, part):
            self._built = None  # free its memory before the next one is built
            trained = self.train.index(job, searched)
            self._built = (label, part), PartIndex(self._index, trained, sides[searched], first, last, self._probes)
        best = TopK.none(stop - start, self.k(job)[label])
        self._built[1].search(sides[label], start, stop, best, advance)
        np.save(folder / f"{label}.npy", _bits(best))
        return {label: {"layer": part, "rows": stop - start}}


class Merge(Search):
    """Merge the neighbours that different units have found of the same rows; a unit is a block of rows."""

    name, unit = "merge", "blocks"

    def __init__(self, x: Source, y: Source, search: Search) -> None:
        super().__init__(x, y)
        self._search = search

    def divide(self, job: Job) -> list[tuple[Label, list[Found], tuple[int, int]]]:
        """Return of each unit the side, the neighbours of all of its rows, and where the block begins and ends."""
        units = list[tuple[Label, list[Found], tuple[int, int]]]()
        for label in OTHER:
            layers = self._search.layers(job, label)
            if len(layers) > 1:
                units.extend((label, layers, block) for block in blocks(len(layers[0]), MOST_ROWS))
        return units

    def weights(self, job: Job) -> list[int]:
        return [1] * self.count(job)

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        label, (first, *others), block = self.units(job)[number]
        best = first.slice(*block)
        for other in others:
            best.merge(other.slice(*block))
        np.save(folder / f"{label}.npy", _bits(best))
        return {label: {"layer": 0, "rows": len(best)}}

    def found(self, job: Job, label: Label) -> Found:
        """Return the neighbours of all rows of a side among all of the other side."""
        return (self.layers(job, label) or self._search.layers(job, label))[0]


def searching(x: Source, y: Source, index: str, probes: int, device: str) -> tuple[list[Stage], Merge]:
    """Return the stages of a search for neighbours, exact if ``index`` is flat, and the last one, which has them."""
    search = SearchAll(x, y, device) if index == "flat" else SearchIndex(x, y, index, probes)
    merge = Merge(x, y, search)
    return [*([search.train] if isinstance(search, SearchIndex) else []), search, merge], merge
