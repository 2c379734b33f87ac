"""Sentence vectors on disk: those that a frozen encoder computes, each only once, and those of another system."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from xrep.data.batch import TokenBatch
from xrep.data.build import cached_at, chunks
from xrep.data.disk_sort import DiskSort
from xrep.data.table import HASH, MANIFEST_FILE, ColumnType, DataDirectory, TableWriter, write_manifest
from xrep.errors import UserError
from xrep.files import build_once, naming
from xrep.hashing import GOLDEN, find_sorted, mix
from xrep.store.vectors import Vectors
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.lines import read_lines

_LAYOUT = (
    "`teacher_vectors` must be floats [N, D] (.npy, or a folder of xrep-encode), a row for each line of `teacher_text`"
)


def check_cache(directory: str | Path) -> None:
    """Raise UserError if no cache can be in a directory, because something in its place is in the way."""
    directory = Path(directory)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        cure = "name another `cache_source` directory"
        raise UserError("no directory in which files can be written", path=existing, cure=cure)


class VectorCache:
    """Vectors [D] by key, in ``directory/fingerprint``, which is created if it does not exist.

    Each process that adds vectors writes two files of its own, ``{name}.vectors`` (float32, little-endian) and
    ``{name}.keys`` (int64), and finds the vectors of all processes. The keys are written after their vectors, so a
    process that is killed leaves at most vectors without keys, which do not count. Memory holds 24 bytes a vector.

    Args:
        width: Size D of the vectors.
        fingerprint: Digest of everything that the vectors depend on besides the key.
    """

    def __init__(self, directory: str | Path, width: int, fingerprint: str) -> None:
        self.folder, self.width = Path(directory) / fingerprint, width
        with naming(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._own: Sequence[IO[bytes]] = ()
        self._vectors = dict[str, np.ndarray]()
        """The complete vectors of each file, by its name."""
        self._levels = list[np.ndarray]()
        """Keys, sorted, and the numbers of their files and rows: int64 [3, N], each at least twice as long as the
        next."""
        self._read_new()

    def read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of ``keys``, int64 [N]: float32 [N, D], and which of them are known, bool [N]."""
        files, rows = self._find(keys)
        if (files < 0).any():
            self._read_new()
            files, rows = self._find(keys)
        vectors = np.zeros((len(keys), self.width), np.float32)
        for number, stored in enumerate(self._vectors.values()):
            vectors[files == number] = stored[rows[files == number]]
        # Where a machine lost its power, rows that were not on disk yet read as zeros.
        return vectors, (files >= 0) & vectors.any(axis=1)

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Write the vectors, float32 [N, D], of ``keys``, int64 [N]."""
        with naming(self.folder):
            if not self._own:
                name = secrets.token_hex(8)
                self._own = [(self.folder / f"{name}.{kind}").open("xb") for kind in ("vectors", "keys")]
            for file, data in zip(self._own, (vectors.astype("<f4"), keys.astype("<i8")), strict=True):
                file.write(data.tobytes())
                file.flush()
        self._read_new()

    def _read_new(self) -> None:
        """Learn the keys of the vectors that were added since the last call, by any process."""
        for path in self.folder.glob("*.keys"):
            stored = self._vectors.setdefault(path.stem, np.empty((0, self.width), "<f4"))
            sizes = {path: 8, path.with_suffix(".vectors"): 4 * self.width}
            first, count = len(stored), min(file.stat().st_size // size for file, size in sizes.items())
            if count > first:
                mapped = np.memmap(path.with_suffix(".vectors"), "<f4", "r", shape=(count, self.width))
                self._vectors[path.stem] = np.asarray(mapped)
                keys = np.fromfile(path, "<i8", count - first, offset=8 * first)
                number = [*self._vectors].index(path.stem)
                self._learn(np.stack([keys, np.full(len(keys), number), np.arange(first, count)]))

    def _learn(self, new: np.ndarray) -> None:
        while self._levels and self._levels[-1].shape[1] < 2 * new.shape[1]:
            new = np.concatenate([self._levels.pop(), new], axis=1)
        self._levels.append(new[:, np.argsort(new[0], kind="stable")])

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Return the numbers of file and row of each key, int64 [2, N]; -1 if there is none."""
        found = np.full((2, len(keys)), -1)
        for level in self._levels:
            places = find_sorted(level[0], keys)
            found = np.where(places >= 0, level[1:, places], found)
        return found


class TeacherVectors:
    """Vectors that another system computed for the lines of a text: row i of ``vectors`` belongs to line i of ``text``.

    Sentences are looked up by the same hash that training data stores. Lines that differ only in case or punctuation
    therefore count as one sentence, which gets the vector of the first of these lines. Sentences without words have no
    such hash, and so no vector.

    Args:
        vectors: The address of vectors [N, D] as xrep-encode writes them: a ``.npy`` file or a folder.
        text: The address of a UTF-8 file with one sentence per line, optionally compressed.

    Raises:
        UserError: A file does not exist, or the two files do not belong together.
    """

    def __init__(self, vectors: str | Path, text: str | Path) -> None:
        self.path, self.text = vectors, text
        self._vectors = Vectors(self.path, cure=_LAYOUT)
        self.width = self._vectors.size
        data = _sorted_lines(text)
        if data.manifest["lines"] != len(self._vectors):
            problem = f"{len(self._vectors)} vectors, but {self.text} has {data.manifest['lines']} lines"
            raise UserError(problem, path=self.path, cure=_LAYOUT)
        (table,) = data.splits["train"]
        self._hashes, self._lines = table.hashes, table["lines"].values

    def rows(self, hashes: np.ndarray) -> np.ndarray:
        """Return the row of the vector of each sentence, int64 [N], given the sentences' hashes, uint64 [N]. Raises
        UserError if a sentence has no vector."""
        if wordless := np.count_nonzero(hashes == NO_KEY):
            problem = f"{wordless} of {len(hashes)} training pairs have a source sentence without words"
            raise UserError(problem, path=self.text, cure="remove these pairs; such lines cannot be told apart")
        places = find_sorted(self._hashes, hashes)
        if missing := np.count_nonzero(places < 0):
            problem = f"lacks the source sentences of {missing} of {len(hashes)} training pairs"
            raise UserError(problem, path=self.text, cure="add them, and their vectors, or drop pairs without words")
        return self._lines[places]

    def read(self, hashes: np.ndarray) -> np.ndarray:
        """Return the vectors of the sentences with these hashes (uint64 [N]), float32 [N, D]. Raises UserError if a
        sentence has no vector, or its vector is not finite."""
        rows = self.rows(hashes)
        vectors = self._vectors.stored(rows).astype(np.float32)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            problem = f"the vector of line {int(rows[~finite][0]) + 1} is not finite"
            raise UserError(problem, path=self.path, cure="check the system that made it")
        return vectors


def _sorted_lines(text: str | Path) -> DataDirectory:
    """Return a table of the sentences of a text: their hashes, sorted, and the first line that has each of them."""
    kind, schema = "lines", {"hashes": HASH, "lines": ColumnType("<i8")}

    directory = cached_at("tables", [kind], [text])

    def write(folder: Path) -> None:
        print(f"sorting the sentences of {text} (once; kept in {directory})")
        order, count = DiskSort(folder, 2), 0
        for lines in chunks(line for _, line in read_lines(text)):
            numbers = np.arange(count, count + len(lines), dtype=np.uint64)
            order.add(np.stack([sentence_hashes(lines), numbers], 1))
            count += len(lines)
        with TableWriter(folder, "train.text", schema) as table:
            for rows in order.parts():
                hashes, first = np.unique(rows[:, 0], return_index=True)
                table.append({"hashes": hashes, "lines": rows[first, 1]})
        splits = {"train": [{"name": "text", **table.facts}]}
        write_manifest(folder, kind, splits, None, {"lines": count})

    build_once(directory, MANIFEST_FILE, write)
    return DataDirectory(directory, kind)


def token_keys(batch: TokenBatch) -> Tensor:
    """Return a hash of the real tokens of each row, int64 [B].

    The hash is Σ (token + 1) · factor of its position, modulo 2⁶⁴. Two different rows have equal keys with probability
    2⁻⁶⁴, multiplied by the largest power of two that divides all differences of their ids.
    """
    factors = torch.from_numpy(_factors(batch.tokens.size(1))).to(batch.tokens.device)
    return ((batch.tokens + 1) * batch.mask * factors).sum(1)


@functools.lru_cache
def _factors(count: int) -> np.ndarray:
    """Return pseudo-random numbers from splitmix64, int64 [count], which are the same on every machine."""
    return mix(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)).view(np.int64)
