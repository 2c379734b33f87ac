"""Cache of sentence vectors on disk, so that a frozen encoder computes each vector only once.

Layout of a directory::

    cache.json    format, schema, width of the vectors, fingerprint of the encoder that made them
    vectors       the rows, float32, little-endian
    index         key (int64) and checksum (uint64) of each row

Any number of processes read the files and append to them, one after the other, under a lock. A row is written before
its entry in the index, so the index only has entries of complete rows, even if a process is killed. The next process
that appends cuts off any incomplete data at the end. The checksum detects rows that were lost when a machine lost
power.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.files import naming
from xrep.hashing import GOLDEN, find_sorted, mix

FORMAT, SCHEMA = "xrep-vectors", 2
MANIFEST = "cache.json"
_ENTRY = np.dtype([("key", "<i8"), ("check", "<u8")])
_FLOAT = np.dtype("<f4")


def check_cache(directory: str | Path) -> None:
    """Raise UserError if no cache can be in a directory, because something in its place is in the way."""
    directory = Path(directory)
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        cure = "name another `cache_source` directory"
        raise UserError("no directory in which files can be written", path=existing, cure=cure)


class VectorCache:
    """Vectors [D] by key, stored in ``directory``, which is created if it does not exist.

    Args:
        width: Size D of the vectors.
        fingerprint: Digest of everything that the vectors depend on besides the key; vectors with different
            fingerprints must not be mixed.

    Raises:
        UserError: The directory holds something else, or vectors of another encoder.
        OSError: The directory cannot be read or written.
    """

    def __init__(self, directory: str | Path, width: int, fingerprint: str) -> None:
        self.directory, self.width = Path(directory), width
        self._vectors_path, self._index_path = self.directory / "vectors", self.directory / "index"
        self._count = 0
        self._levels: list[np.ndarray] = []
        """Keys, sorted, and their rows: int64 [2, N], each at least twice as long as the next."""
        self._rows, self._entries = np.zeros((0, width), _FLOAT), np.zeros(0, _ENTRY)
        self._open({"format": FORMAT, "schema": SCHEMA, "width": width, "fingerprint": fingerprint})
        self._read_new()

    def __len__(self) -> int:
        """Return the number of rows on disk that this process knows of."""
        return self._count

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the places of the vectors of ``keys`` (int64 [N]) for ``read``, int64 [N]; -1 if there is none."""
        places = self._look_up(keys)
        if (places < 0).any():
            self._read_new()
            places = self._look_up(keys)
        return places

    def read(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at these places, float32 [N, D]. Raises UserError if a row differs from what was written,
        or is not finite."""
        if places.max(initial=-1) >= len(self._rows):
            self._rows = np.asarray(np.memmap(self._vectors_path, _FLOAT, "r", shape=(self._count, self.width)))
            self._entries = np.asarray(np.memmap(self._index_path, _ENTRY, "r", shape=(self._count,)))
        vectors = self._rows[places]
        lost = _checksum(vectors) != self._entries["check"][places]
        wrong = places[lost | ~np.isfinite(vectors).all(axis=1)]
        if len(wrong):
            problem = f"row {wrong[0]} is not what was written"
            raise UserError(problem, path=self._vectors_path, cure=f"remove {self.directory}, to be made anew")
        return vectors

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Write the vectors, float32 [N, D], of ``keys``, int64 [N]. Raises UserError if the file system has no locks,
        without which several processes could write at the same time."""
        vectors = np.ascontiguousarray(vectors, _FLOAT)
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["check"] = keys, _checksum(vectors)
        with naming(self.directory), open(self._index_path, "ab") as index, open(self._vectors_path, "ab") as rows:
            try:
                fcntl.flock(index, fcntl.LOCK_EX)  # until the file is closed
            except OSError:
                cure = "name a `cache_source` on another one"
                raise UserError("this file system has no locks", path=self.directory, cure=cure) from None
            count = self._whole()
            for file, size, data in ((rows, self.width * _FLOAT.itemsize, vectors), (index, _ENTRY.itemsize, entries)):
                file.truncate(count * size)
                file.write(data.tobytes())
                file.flush()
        self._read_new()

    def _open(self, facts: dict[str, object]) -> None:
        path = self.directory / MANIFEST
        if not path.exists():
            with naming(self.directory), suppress(FileExistsError):
                self.directory.mkdir(parents=True)
            # Another process may be at this point, too, so hidden files do not count, and its manifest may appear now.
            others = not self.directory.is_dir() or any(file.name[0] != "." for file in self.directory.iterdir())
            if others and not path.exists():
                problem = "holds something else than cached vectors"
                raise UserError(problem, path=self.directory, cure="name another `cache_source` directory")
            with naming(path), tempfile.TemporaryDirectory(prefix=".", dir=self.directory) as folder:
                aside = Path(folder) / MANIFEST
                aside.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
                with suppress(FileExistsError):  # the manifest of the fastest process stays
                    os.link(aside, path)
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            stored = None
        if stored != facts:
            problem = "holds vectors of another encoder, or of another version of xrep"
            cure = "name another `cache_source` directory, or remove this one"
            raise UserError(problem, path=self.directory, cure=cure)

    def _whole(self) -> int:
        """Return the number of complete rows on disk that have an entry in the index."""
        paths = {self._index_path: _ENTRY.itemsize, self._vectors_path: self.width * _FLOAT.itemsize}
        return min(path.stat().st_size // size if path.exists() else 0 for path, size in paths.items())

    def _read_new(self) -> None:
        """Learn the keys of the rows that were added since the last call, by any process."""
        count, first = self._whole(), self._count
        if count <= first:
            return
        entries = np.fromfile(self._index_path, _ENTRY, count - first, offset=first * _ENTRY.itemsize)
        new = np.stack([entries["key"], np.arange(first, count)])
        while self._levels and self._levels[-1].shape[1] < 2 * new.shape[1]:
            new = np.concatenate([self._levels.pop(), new], axis=1)
        self._levels.append(new[:, np.argsort(new[0], kind="stable")])
        self._count = count

    def _look_up(self, keys: np.ndarray) -> np.ndarray:
        places = np.full(len(keys), -1, np.int64)
        for known, rows in self._levels:
            spots = find_sorted(known, keys)
            places = np.where(spots >= 0, rows[spots], places)
        return places


def _checksum(vectors: np.ndarray) -> np.ndarray:
    """Return checksums, uint64 [N], of float32 [N, D]. A row of zeros does not give 0, because lost data reads as 0."""
    return vectors.view("<u4").sum(axis=1, dtype=np.uint64) + np.uint64(1)


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
