"""The different sentences of a text as a stage of a job, and as a side of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.disk_sort import DiskSort
from xrep.inference.encoding import Read, TextSource, VectorSource
from xrep.inference.nearest import Side, SideSource
from xrep.jobs.plan import Advance, Stage
from xrep.retrieval.margins import check_neighbours
from xrep.store.arrays import ArrayFile, block_bounds
from xrep.store.texts import HASHES, SomeTexts

_ROWS, _NUMBERS = "rows.npy", "numbers.npy"
_BLOCK = 1 << 18
"""Number of rows that are numbered at a time."""
HASHED_BYTES = 1 << 20
"""Bytes of hashes that are read at a time."""


class Distinct(TextSource, Stage):
    """Choose the first of equal sentences, of which another stage has written the hashes, and number them in their
    order. Memory holds a byte for each row.

    Args:
        hashed: That stage. If it has lines, this one is a source of those that were chosen.
        least: The smallest number of sentences that will do.
        numbered: Note also which sentence each row has, -1 if none.
        more: What to do about too few sentences.
    """

    unit = "texts"

    def __init__(
        self, name: str, hashed: Stage, least: int, *, numbered: bool = False, more: str = "give more sentences"
    ) -> None:
        self.name, self._hashed, self._least, self._numbered = f"distinct-{name}", hashed, least, numbered
        self._more = more
        self.files: Sequence[str] = hashed.files if isinstance(hashed, Read) else ()

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        keys, rows, filled = DiskSort(folder, width=2), sum(result.facts["rows"] for result in self._hashed.results), 0
        for hashes_N2 in self._hashes():
            keys.add(hashes_N2)
            filled += len(hashes_N2)
        first, numbers = np.zeros(rows, bool), np.full(0, -1)
        if self._numbered:
            numbers = np.lib.format.open_memmap(folder / _NUMBERS, "w+", np.int64, (rows,))
            numbers[:] = -1
        for part_N2 in keys.parts():
            _, at, which = np.unique(part_N2[:, 0], return_index=True, return_inverse=True)
            row_N = part_N2[:, 1].astype(np.int64)
            first[row_N[at]] = True
            if self._numbered:
                numbers[row_N] = row_N[at[which]]  # the number of a sentence is at first that of its first row
        count, chosen = 0, ArrayFile.create(folder / _ROWS, np.int64)
        for start, stop in block_bounds(rows, _BLOCK):
            firsts = start + np.flatnonzero(first[start:stop])
            chosen.append(firsts)
            if self._numbered:
                others = start + np.flatnonzero((numbers[start:stop] >= 0) & ~first[start:stop])
                numbers[firsts] = np.arange(count, count + len(firsts))
                numbers[others] = numbers[numbers[others]]
            count += len(firsts)
        check_neighbours(self._least, count, more=self._more)
        chosen.close()
        if isinstance(numbers, np.memmap):
            numbers.flush()
        return {"sentences": count, "empty": rows - filled, "duplicates": filled - count}

    def _hashes(self) -> Iterator[np.ndarray]:
        """Yield hashes, each with its row among all rows, some at a time in the order of the rows, uint64 [n, 2]."""
        rows = 0
        for result in self._hashed.results:
            for _, hashes in result.array(HASHES).blocks(HASHED_BYTES):
                yield hashes + np.array([0, rows], np.uint64)
            rows += result.facts["rows"]

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of sentences, and of empty and repeated rows."""
        return self.results[0].facts

    @cached_property
    def rows(self) -> ArrayFile:
        """The first row that has each sentence."""
        return self.results[0].array(_ROWS)

    @cached_property
    def numbers(self) -> ArrayFile:
        """The sentence of each row."""
        return self.results[0].array(_NUMBERS)

    @cached_property
    def hashes(self) -> np.ndarray:
        """The hash of each sentence, uint64 [N]."""
        hashes_N2 = np.concatenate([*self._hashes()])
        return hashes_N2[np.searchsorted(hashes_N2[:, 1], self.rows.read(slice(None)).astype(np.uint64)), 0]

    @cached_property
    def texts(self) -> SomeTexts:
        assert isinstance(self._hashed, Read)
        return SomeTexts(self._hashed.texts, self.rows)


class SearchedSide(SideSource):
    """A side of a search: the vectors of a stage, or the rows of them that another one has chosen.

    Args:
        k: The number of neighbours that are searched of each sentence.
    """

    def __init__(self, origin: VectorSource, k: int, distinct: Distinct | None = None) -> None:
        self.origin, self._k, self._distinct = origin, k, distinct

    @cached_property
    def k(self) -> int:
        return self._k

    @cached_property
    def side(self) -> Side:
        return Side(self.origin.vectors, self._distinct and self._distinct.rows)

    def searched(self, k: int) -> SearchedSide:
        """Return the same side, of which another number of neighbours is searched."""
        return SearchedSide(self.origin, k, self._distinct)
