"""Hashes sorted on disk, against numpy."""

import numpy as np

from xrep.data import disk_sort
from xrep.data.disk_sort import DiskSort


def test_rows_come_in_the_order_of_their_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_sort, "_RUN", 100)
    generator = np.random.default_rng(1)
    hashes = generator.integers(0, 2**64, 300, dtype=np.uint64)[generator.integers(0, 300, 1000)]
    rows = np.stack([hashes, np.arange(1000, dtype=np.uint64)], axis=1)
    runs = DiskSort(tmp_path, 2)
    for part in np.array_split(rows, 17):
        runs.add(part)
    parts = [part for part in runs.parts() if len(part)]
    assert len(parts) > 100 and np.array_equal(np.concatenate(parts), rows[np.argsort(hashes, kind="stable")])
    assert all(before[-1, 0] < after[0, 0] for before, after in zip(parts, parts[1:], strict=False))
    assert not list(tmp_path.iterdir())


def test_distinct_hashes_are_the_file_that_numpy_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_sort, "_RUN", 100)
    hashes = np.random.default_rng(1).integers(0, 2**64, 300, dtype=np.uint64).repeat(3)
    for number, some in enumerate((hashes, hashes[:0])):
        runs = DiskSort(tmp_path)
        runs.add(some[: len(some) // 2])
        runs.add(some[len(some) // 2 :])
        runs.save_distinct(tmp_path / f"{number}.npy")
        np.save(tmp_path / "expected.npy", np.unique(some))
        assert (tmp_path / f"{number}.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()
