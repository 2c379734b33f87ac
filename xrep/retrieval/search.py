"""Nearest neighbours between two files of vectors of any size, in bounded memory; an interrupted search can resume."""

from __future__ import annotations

import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, TypeVar

import numpy as np
import torch

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.interrupts import StopRequest
from xrep.memory import check_memory
from xrep.progress import Counter
from xrep.retrieval.mapped import allocate, blocks_of, release
from xrep.retrieval.tiles import TILE, Operand, search_tile
from xrep.retrieval.topk import TopK
from xrep.retrieval.vectors import VectorFile

_UNIT_BYTES = 1 << 27
"""Bytes of the float32 rows of x that are held while all of y is read."""
_PANEL_BYTES = 1 << 25
"""Bytes of the float32 rows of y that are read at a time."""
MOST_ROWS = 1 << 18
"""Most rows whose neighbours are in memory at a time."""
SAVE_SECONDS = 60.0
"""Results are saved after a unit of work if this time has passed since the last save, and after the last unit."""

_Unit = TypeVar("_Unit")


@dataclass(frozen=True)
class Neighbours:
    """The k nearest rows of the other side, nearest first: of x ``xy`` [N, k], of y ``yx`` [M, k]."""

    xy: np.ndarray
    xy_similarity: np.ndarray
    yx: np.ndarray
    yx_similarity: np.ndarray

    def both(self) -> tuple[TopK, TopK]:
        """Return the neighbours of both sides."""
        xy, yx = ((self.xy_similarity, self.xy), (self.yx_similarity, self.yx))
        return TopK(*map(torch.from_numpy, xy)), TopK(*map(torch.from_numpy, yx))


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
        vectors = self.vectors.read(slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows)
        release(self.rows)
        return vectors

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """Return (start, stop) of each block of ``size`` rows."""
        return ((start, min(start + size, len(self))) for start in range(0, len(self), max(1, size)))


@dataclass
class SearchState:
    """The best neighbours of both sides so far and the number of finished units of work, kept in the file ``path``.

    Between two saves the neighbours are in files without names.
    """

    nearest: Neighbours
    path: Path
    device: str = "cpu"
    done: int = 0
    _saved: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(
        cls,
        path: Path,
        sources: int,
        targets: int,
        k: int,
        device: str = "cpu",
        backward: int | None = None,
        folder: Path | None = None,
    ) -> SearchState:
        """Load what an earlier run left in ``path``, as ``load_neighbours`` does, or start without neighbours."""
        of_y = k if backward is None else backward
        held = [min(rows, MOST_ROWS) for rows in (sources, targets)]
        what = f"{k:,} neighbours of each of {held[0]:,} sentences and {of_y:,} of each of {held[1]:,}"
        check_memory(12 * (k * held[0] + of_y * held[1]), what, device=device, cure="lower `neighbours`")
        if not path.exists():
            return cls(no_neighbours(folder or path.parent, sources, targets, k, of_y), path, device)
        nearest, done = load_neighbours(path, sources, targets, k, of_y, folder)
        return cls(nearest, path, device, done)

    @contextmanager
    def best(self, side: Literal["xy", "yx"], start: int, stop: int) -> Iterator[TopK]:
        """Context manager that yields the best neighbours of some rows of x (``xy``) or y (``yx``) on the device, to be
        updated."""
        arrays = vars(self.nearest)[f"{side}_similarity"], vars(self.nearest)[side]
        best = TopK(*(torch.from_numpy(array[start:stop]).to(self.device) for array in arrays))
        yield best
        for array, tensor in zip(arrays, (best.similarity, best.index), strict=True):
            array[start:stop] = tensor.cpu().numpy()
        release(*arrays)

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
        arrays = {"done": np.array([self.done]), **vars(self.nearest)}
        with write_aside(self.path) as aside, zipfile.ZipFile(aside, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
                    for block in blocks_of(array):
                        file.write(block.tobytes())
        self._saved = time.monotonic()


def no_neighbours(folder: Path, sources: int, targets: int, k: int, backward: int) -> Neighbours:
    """Return no neighbours yet, in files without names in a folder: similarity -inf, index -1."""
    nearest = Neighbours(
        allocate(folder, sources, k, dtype=np.int64),
        allocate(folder, sources, k, dtype=np.float32),
        allocate(folder, targets, backward, dtype=np.int64),
        allocate(folder, targets, backward, dtype=np.float32),
    )
    for array in vars(nearest).values():
        for block in blocks_of(array):
            block.fill(-1 if array.dtype == np.int64 else -np.inf)
    return nearest


def load_neighbours(
    path: Path, sources: int, targets: int, k: int, backward: int | None = None, folder: Path | None = None
) -> tuple[Neighbours, int]:
    """Load the file that ``SearchState`` saves: the neighbours, which are copied to files without names, and the
    number of finished units of work.

    Args:
        k, backward: Number of neighbours of each source and, if it is another one, of each target.
        folder: Where the files without names are; None: where the file is.

    Raises:
        UserError: The file is missing or damaged, or belongs to a search with other numbers of sentences or neighbours.
    """
    if not path.is_file():
        raise UserError("no such file", path=path, cure="run that part of the search first")
    nearest = no_neighbours(folder or path.parent, sources, targets, k, k if backward is None else backward)
    done = np.zeros(1, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with zipfile.ZipFile(path) as archive:
                for name, array in {"done": done, **vars(nearest)}.items():
                    with archive.open(f"{name}.npy") as file:
                        _read(file, array)
        except UserError as error:
            raise UserError(error.problem, path=path, cure="remove it to begin anew") from None
        except Exception:  # numpy and zipfile raise errors of many types
            raise UserError("a damaged file of neighbours", path=path, cure="remove it to begin anew") from None
    return nearest, int(done[0])


def _read(file: IO[bytes], array: np.ndarray) -> None:
    """Read a .npy file into an array of its shape and type.

    Raises:
        UserError: It has another shape.
        ValueError: It is damaged.
    """
    np.lib.format.read_magic(file)
    shape, in_fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if shape != array.shape:
        raise UserError("of another search")
    if dtype != array.dtype or in_fortran_order:
        raise ValueError("of another type")
    for block in blocks_of(array):
        block[:] = np.frombuffer(file.read(block.nbytes), dtype).reshape(block.shape)


def search_flat(x: Side, y: Side, state: SearchState, *, device: str = "cpu", show_progress: bool = False) -> None:
    """Find exact neighbours: for each block of x, all of y is read, and one product serves both directions.

    ``state`` is updated in place; units of work that it already contains are skipped. Memory: about 300 MB, and the
    neighbours of the rows that are compared. A GPU multiplies float16 files in float16.
    """
    units, panels = (
        list(side.blocks(min(MOST_ROWS, max(1, size // (4 * x.vectors.size) // TILE) * TILE)))
        for side, size in ((x, _UNIT_BYTES), (y, _PANEL_BYTES))
    )
    sizes = [(last - first) * len(y) for first, last in units]
    for (first, last), advance in state.work(units, sizes, "comparisons", show_progress):
        x_BD = _operand(x, first, last, device)
        with state.best("xy", first, last) as best_x:
            for start, stop in panels:
                y_CD = _operand(y, start, stop, device)
                with state.best("yx", start, stop) as best_y:
                    search_tile(x_BD, y_CD, best_x, best_y, first, start, advance)


def _operand(side: Side, start: int, stop: int, device: str) -> Operand:
    return Operand.of(torch.from_numpy(side.read(start, stop)).to(device))


def merge(parts: Iterable[Neighbours], folder: Path, sources: int, targets: int, k: int) -> Neighbours:
    """Merge the k neighbours of consecutive parts of x with all of y into those of all of x with y, in ``folder``."""
    merged, first = no_neighbours(folder, sources, targets, k, k), 0
    for part in parts:
        for mine, theirs in ((merged.xy, part.xy), (merged.xy_similarity, part.xy_similarity)):
            place = first
            for block in blocks_of(theirs):
                mine[place : place + len(block)] = block
                place += len(block)
                release(mine)
        for start in range(0, targets, MOST_ROWS):
            some = slice(start, start + MOST_ROWS)
            best = TopK(torch.from_numpy(merged.yx_similarity[some]), torch.from_numpy(merged.yx[some]))
            index = np.where(part.yx[some] < 0, -1, part.yx[some] + first)
            best.merge(TopK(torch.from_numpy(part.yx_similarity[some]), torch.from_numpy(index)))
            release(*vars(merged).values(), *vars(part).values())
        first += len(part.xy)
    return merged
