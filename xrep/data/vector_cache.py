"""Cache of sentence vectors on disk, so that a frozen encoder computes each vector only once.

Layout of a directory::

    cache.json       format, schema, width of the vectors, fingerprint of the encoder that made them
    00000.vectors    the rows, float32, little-endian
    00000.index      key (int64) and checksum (uint64) of each row
    00001.vectors    rows of another process, and so on

Each process appends to its own pair of files, which it locks, and reads the files of all processes. A row is written
before its entry in the index, so the index only has entries of complete rows, even if a process is killed. The next
process that locks the pair cuts off any incomplete data at the end. The checksum detects rows that were lost when a
machine lost power.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import TokenBatch
from xrep.errors import UserError
from xrep.files import naming, try_lock
from xrep.hashing import GOLDEN, find_sorted, mix

FORMAT, SCHEMA = "xrep-vectors", 1
MANIFEST = "cache.json"
_ENTRY = np.dtype([("key", "<i8"), ("check", "<u8")])
_FLOAT = np.dtype("<f4")
_SHARD = 40
"""Number of low bits of a place that hold the row; the bits above hold the number of the pair of files."""
_RECENT = 65536
"""Number of keys that are collected in a dictionary before they are merged into the sorted keys."""


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
        self._shards: dict[int, _Shard] = {}
        self._own: int | None = None
        self._keys, self._places = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._recent: dict[int, int] = {}
        self._open({"format": FORMAT, "schema": SCHEMA, "width": width, "fingerprint": fingerprint})
        self._read_others()

    def __len__(self) -> int:
        """Return the number of rows on disk that this process knows of."""
        return sum(shard.count for shard in self._shards.values())

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the places of the vectors of ``keys`` (int64 [N]) for ``read``, int64 [N]; -1 if there is none."""
        places = self._look_up(keys)
        if (places < 0).any():
            self._read_others()
            places = self._look_up(keys)
        return places

    def read(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at these places, float32 [N, D].

        Raises:
            UserError: A row differs from what was written.
        """
        numbers, rows = places >> _SHARD, places & ((1 << _SHARD) - 1)
        vectors = np.empty((len(places), self.width), np.float32)
        for number in np.unique(numbers):
            chosen = numbers == number
            vectors[chosen] = self._shards[int(number)].read(rows[chosen])
        return vectors

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Write the vectors, float32 [N, D], of ``keys``, int64 [N].

        Raises:
            UserError: The file system has no locks, without which several processes could write to the same file.
        """
        if self._own is None:
            self._own = self._take()
        shard = self._shards[self._own]
        first = shard.count
        shard.append(keys, np.ascontiguousarray(vectors, _FLOAT))
        self._note(keys, (self._own << _SHARD) + first + np.arange(len(keys)))

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
        except ValueError:
            stored = None
        if stored != facts:
            problem = "holds vectors of another encoder, or of another version of xrep"
            cure = "name another `cache_source` directory, or remove this one"
            raise UserError(problem, path=self.directory, cure=cure)

    def _take(self) -> int:
        """Lock the first pair of files that no other process writes to, and return its number."""
        for number in itertools.count():
            shard = self._shards.get(number) or _Shard(self.directory / f"{number:05d}", self.width)
            if shard.take():
                self._shards[number] = shard
                self._note_new(number)
                return number
        raise AssertionError

    def _read_others(self) -> None:
        for path in self.directory.glob("*.index"):
            self._shards.setdefault(int(path.stem), _Shard(path.with_suffix(""), self.width))
        for number in self._shards:
            if number != self._own:
                self._note_new(number)

    def _note_new(self, number: int) -> None:
        shard = self._shards[number]
        first = shard.count
        keys = shard.grow()
        self._note(keys, (number << _SHARD) + first + np.arange(len(keys)))

    def _note(self, keys: np.ndarray, places: np.ndarray) -> None:
        if len(keys) + len(self._recent) > max(_RECENT, len(self._keys) // 8):
            self._keys = np.concatenate([self._keys, keys, np.fromiter(self._recent, np.int64)])
            self._places = np.concatenate([self._places, places, np.fromiter(self._recent.values(), np.int64)])
            order = np.argsort(self._keys, kind="stable")
            self._keys, self._places = self._keys[order], self._places[order]
            self._recent.clear()
        else:
            self._recent.update(zip(keys.tolist(), places.tolist(), strict=True))

    def _look_up(self, keys: np.ndarray) -> np.ndarray:
        places = np.full(len(keys), -1, np.int64)
        if len(self._keys):
            spots = find_sorted(self._keys, keys)
            places = np.where(spots >= 0, self._places[spots], -1)
        if self._recent:
            missing = np.flatnonzero(places < 0)
            places[missing] = [self._recent.get(key, -1) for key in keys[missing].tolist()]
        return places


class _Shard:
    """A pair of files, read through memory maps and written to by one process; ``path`` lacks their suffixes."""

    def __init__(self, path: Path, width: int) -> None:
        self.vectors, self.index = path.with_suffix(".vectors"), path.with_suffix(".index")
        self.width, self.count = width, 0
        self._rows = np.zeros((0, width), _FLOAT)
        self._entries = np.zeros(0, _ENTRY)

    def whole(self) -> int:
        """Return the number of complete rows on disk that have an entry in the index."""
        sizes = [path.stat().st_size if path.exists() else 0 for path in (self.index, self.vectors)]
        return min(sizes[0] // _ENTRY.itemsize, sizes[1] // (self.width * _FLOAT.itemsize))

    def grow(self) -> np.ndarray:
        """Return the keys of the rows added since the last call, int64 [N]."""
        count = self.whole()
        if count <= self.count:
            return np.zeros(0, np.int64)
        entries = np.fromfile(self.index, _ENTRY, count - self.count, offset=self.count * _ENTRY.itemsize)
        self.count = count
        return entries["key"]

    def read(self, rows: np.ndarray) -> np.ndarray:
        if rows.max(initial=-1) >= len(self._rows):
            self._rows = np.asarray(np.memmap(self.vectors, _FLOAT, "r", shape=(self.count, self.width)))
            self._entries = np.asarray(np.memmap(self.index, _ENTRY, "r", shape=(self.count,)))
        vectors = self._rows[rows]
        wrong = np.flatnonzero(_checksum(vectors) != self._entries["check"][rows])
        if len(wrong):
            problem = f"row {int(rows[wrong[0]])} is not what was written"
            raise UserError(problem, path=self.vectors, cure=f"remove {self.vectors.parent}, to be made anew")
        return vectors

    def take(self) -> bool:
        """Lock the files for writing and cut off incomplete rows; return False if another process writes to them."""
        self._index_file = self.index.open("ab")
        try:
            if not try_lock(self._index_file):
                return False
        except OSError:
            cure = "name a `cache_source` on another one"
            raise UserError("this file system has no locks", path=self.index.parent, cure=cure) from None
        self._vectors_file = self.vectors.open("ab")
        whole = self.whole()
        self._vectors_file.truncate(whole * self.width * _FLOAT.itemsize)
        self._index_file.truncate(whole * _ENTRY.itemsize)
        return True

    def append(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Write rows to the files, which ``take`` has locked."""
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["check"] = keys, _checksum(vectors)
        for path, file, data in (
            (self.vectors, self._vectors_file, vectors),
            (self.index, self._index_file, entries),
        ):
            with naming(path):
                file.write(data.tobytes())
                file.flush()
        self.count += len(keys)


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
