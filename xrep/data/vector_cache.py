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

import fcntl
import functools
import itertools
import json
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import TokenBatch
from xrep.errors import UserError
from xrep.files import naming, write_aside

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
        self._own: _Writer | None = None
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
        first = self._own.shard.count
        self._own.append(keys, np.ascontiguousarray(vectors, _FLOAT))
        self._note(keys, (self._own.number << _SHARD) + first + np.arange(len(keys)))

    def _open(self, facts: dict[str, object]) -> None:
        path = self.directory / MANIFEST
        if not path.exists():
            if self.directory.exists() and (not self.directory.is_dir() or any(self.directory.iterdir())):
                problem = "holds something else than cached vectors"
                raise UserError(problem, path=self.directory, cure="name another `cache_source` directory")
            with naming(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
            with write_aside(path) as aside:
                aside.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            found = None
        if found != facts:
            problem = "holds vectors of another encoder, or of another version of xrep"
            cure = "name another `cache_source` directory, or remove this one"
            raise UserError(problem, path=self.directory, cure=cure)

    def _take(self) -> _Writer:
        """Lock the first pair of files that no other process writes to."""
        for number in itertools.count():
            path = self.directory / f"{number:05d}"
            file = path.with_suffix(".index").open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            except OSError:
                problem = "this file system has no locks"
                raise UserError(problem, path=self.directory, cure="name a `cache_source` on another one") from None
            shard = self._shards.setdefault(number, _Shard(path, self.width))
            writer = _Writer(number, shard, file)
            self._note_new(number)
            return writer
        raise AssertionError

    def _read_others(self) -> None:
        for path in self.directory.glob("*.index"):
            self._shards.setdefault(int(path.stem), _Shard(path.with_suffix(""), self.width))
        for number in self._shards:
            if self._own is None or number != self._own.number:
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
            spots = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
            places = np.where(self._keys[spots] == keys, self._places[spots], places)
        if self._recent:
            missing = np.flatnonzero(places < 0)
            places[missing] = [self._recent.get(key, -1) for key in keys[missing].tolist()]
        return places


class _Shard:
    """A pair of files, read through memory maps; ``path`` is their path without the suffix."""

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


class _Writer:
    """Writer that appends to a pair of files; it holds their lock as long as ``index`` is open."""

    def __init__(self, number: int, shard: _Shard, index: BinaryIO) -> None:
        self.number, self.shard, self._index = number, shard, index
        self._vectors = shard.vectors.open("ab")
        whole = shard.whole()
        self._vectors.truncate(whole * shard.width * _FLOAT.itemsize)
        self._index.truncate(whole * _ENTRY.itemsize)

    def append(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["check"] = keys, _checksum(vectors)
        for path, file, data in (
            (self.shard.vectors, self._vectors, vectors),
            (self.shard.index, self._index, entries),
        ):
            with naming(path):
                file.write(data.tobytes())
                file.flush()
        self.shard.count += len(keys)


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
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.int64)
