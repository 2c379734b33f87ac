"""Nearest neighbours between two files of vectors of any size, in bounded memory; an interrupted search can resume."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.interrupts import StopRequest
from xrep.kernels.precision import operand_dtype
from xrep.memory import check_memory
from xrep.progress import Counter
from xrep.retrieval.best import Best
from xrep.retrieval.neighbours import TILE, Neighbours, search_block
from xrep.retrieval.vectors import VectorFile

_UNIT_BYTES = 1 << 27
"""Bytes of the float32 rows of x that are held while all of y is read."""
_PANEL_BYTES = 1 << 25
"""Bytes of the float32 rows of y that are read at a time."""
SAVE_SECONDS = 60.0
"""Results are saved after a unit of work if this time has passed since the last save, and after the last unit."""

_Unit = TypeVar("_Unit")


@dataclass(frozen=True)
class Side:
    """The sentences of one side that are searched: ``rows`` int64 [N] of a file, in ascending order."""

    vectors: VectorFile
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read sentences ``start`` to ``stop`` - 1: float32 [stop - start, D], L2-normalised."""
        rows = self.rows[start:stop]
        whole = len(rows) and rows[-1] - rows[0] + 1 == len(rows)
        return self.vectors.read(slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows)

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """Return (start, stop) of each block of ``size`` rows."""
        return ((start, min(start + size, len(self))) for start in range(0, len(self), max(1, size)))


@dataclass
class SearchState:
    """The best neighbours of both sides so far and the number of finished units of work, kept in the file ``path``."""

    xy: Best
    yx: Best
    path: Path
    done: int = 0
    _saved: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls, path: Path, sources: int, targets: int, k: int, device: str = "cpu", backward: int | None = None
    ) -> SearchState:
        """Load what an earlier run left in ``path``, as ``load_neighbours`` does, or start without neighbours."""
        of_y = k if backward is None else backward
        what = f"{k:,} neighbours of each of {sources:,} sentences and {of_y:,} of each of {targets:,}"
        check_memory(12 * (k * sources + of_y * targets), what, device=device, cure="lower `neighbours`")
        if not path.exists():
            return cls(Best.none(sources, k, device=device), Best.none(targets, of_y, device=device), path)
        stored, done = load_neighbours(path, sources, targets, k, of_y)
        tensors = {name: torch.from_numpy(array).to(device) for name, array in vars(stored).items()}
        xy, yx = (Best(tensors[f"{side}_similarity"], tensors[side]) for side in ("xy", "yx"))
        return cls(xy, yx, path, done)

    def work(
        self, units: Sequence[_Unit], sizes: Sequence[int], what: str, show_progress: bool
    ) -> Iterator[tuple[_Unit, Callable[[int], None]]]:
        """Yield the units of work that are not finished, each with a function that counts what is done of it, and save
        the results from time to time.

        Args:
            sizes: How much there is to do in each unit, which may take hours.
            what: Name of what is counted, in the plural.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, and the results up to the unit that was worked on are saved.
        """
        done, total = sum(sizes[: self.done]), sum(sizes)
        counter = Counter(what, "search", done=done, total=total, shown=show_progress)
        with counter, StopRequest().watching() as stop:
            for unit in units[self.done :]:
                yield unit, counter.update
                self.step(len(units))
                if stop.signal:
                    self.save()
                    raise KeyboardInterrupt

    def step(self, total: int) -> None:
        """Count a finished unit of work, and save the results if it is time or if this was the last of ``total``."""
        self.done += 1
        if self.done == total or time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        with write_aside(self.path) as aside, aside.open("wb") as file:
            np.savez(file, done=np.int64(self.done), **vars(Neighbours.of(self.xy, self.yx)))
        self._saved = time.monotonic()


def load_neighbours(
    path: Path, sources: int, targets: int, k: int, backward: int | None = None
) -> tuple[Neighbours, int]:
    """Load the file that ``SearchState`` saves: the neighbours, and the number of finished units of work.

    Args:
        k, backward: Number of neighbours of each source and, if it is another one, of each target.

    Raises:
        UserError: The file is missing or damaged, or belongs to a search with other numbers of sentences or neighbours.
    """
    if not path.is_file():
        raise UserError("no such file", path=path, cure="run that part of the search first")
    damaged = UserError("a damaged file of neighbours", path=path, cure="remove it to begin anew")
    of_y = k if backward is None else backward
    if path.stat().st_size > 12 * (k * sources + of_y * targets) + 10_000:
        raise damaged
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            arrays = np.load(file, allow_pickle=False)
            stored = Neighbours(*(arrays[field.name] for field in fields(Neighbours)))
            done = int(arrays["done"])
        except Exception:  # numpy and zipfile raise errors of many types
            raise damaged from None
    for shape, index, similarity, others in (
        ((sources, k), stored.xy, stored.xy_similarity, targets),
        ((targets, of_y), stored.yx, stored.yx_similarity, sources),
    ):
        if index.shape != shape or similarity.shape != index.shape:
            raise UserError("of another search", path=path, cure="remove it to begin anew")
        if (index.dtype, similarity.dtype) != (np.int64, np.float32) or np.isnan(similarity).any() or done < 0:
            raise damaged
        if index.min(initial=-1) < -1 or index.max(initial=-1) >= others:
            raise damaged
    return stored, done


def search_flat(x: Side, y: Side, state: SearchState, *, device: str = "cpu", show_progress: bool = False) -> None:
    """Find exact neighbours: for each block of x, all of y is read, and one product serves both directions.

    ``state`` is updated in place; units of work that it already contains are skipped. Memory: the neighbours of both
    sides, 12 k bytes per sentence, and about 300 MB. A GPU multiplies float16 files in float16.
    """
    units, panels = (
        list(side.blocks(max(1, size // (4 * x.vectors.size) // TILE) * TILE))
        for side, size in ((x, _UNIT_BYTES), (y, _PANEL_BYTES))
    )
    sizes = [(last - first) * len(y) for first, last in units]
    for (first, last), advance in state.work(units, sizes, "comparisons", show_progress):
        x_BD = _operand(x, first, last, device)
        for start, stop in panels:
            y_CD = _operand(y, start, stop, device)
            nearest = state.xy.slice(first, last), state.yx.slice(start, stop)
            search_block(x_BD, y_CD, *nearest, first, start, advance)


def _operand(side: Side, start: int, stop: int, device: str) -> torch.Tensor:
    vectors = torch.from_numpy(side.read(start, stop)).to(device)
    return vectors.to(operand_dtype(vectors.half())) if side.vectors.dtype == np.float16 else vectors


def merge(parts: list[Neighbours]) -> Neighbours:
    """Merge the neighbours of consecutive parts of x (at least one) with all of y into those of all of x with y."""
    best, first = Best.none(*parts[0].yx.shape), 0
    for part in parts:
        index = np.where(part.yx < 0, -1, part.yx + first)
        best.merge(slice(None), torch.from_numpy(part.yx_similarity), torch.from_numpy(index))
        first += len(part.xy)
    xy, similarity = np.concatenate([part.xy for part in parts]), np.concatenate([part.xy_similarity for part in parts])
    return Neighbours(xy, similarity, best.index.numpy(), best.similarity.numpy())
