"""The cache of vectors finds all that was added, by any process and however that process ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import environment
from xrep.data.teacher_vectors import VectorCache

WIDTH = 5


def vectors_of(keys: np.ndarray) -> np.ndarray:
    return np.stack([np.random.default_rng(abs(int(key))).normal(size=WIDTH) for key in keys]).astype(np.float32)


def check(cache: VectorCache, keys: np.ndarray) -> None:
    vectors, known = cache.read(keys)
    assert known.all()
    np.testing.assert_array_equal(vectors, vectors_of(keys))


def lacks(cache: VectorCache, keys: np.ndarray) -> int:
    return int((~cache.read(keys)[1]).sum())


def add(cache: VectorCache, keys: np.ndarray) -> None:
    cache.add(keys, vectors_of(keys))


@pytest.mark.parametrize("step", [45, 150])
def test_what_one_added_is_found_by_all(tmp_path: Path, step: int) -> None:
    random = np.random.default_rng(0)
    keys = random.choice(np.iinfo(np.int64).max, 500, replace=False) * random.choice([-1, 1], 500)
    cache, other = VectorCache(tmp_path / "c", WIDTH, "x"), VectorCache(tmp_path / "c", WIDTH, "x")
    assert lacks(cache, keys) == 500
    for start in range(0, 450, step):
        add(cache, keys[start : start + step])
        for each in (cache, other):
            check(each, random.permutation(keys[: start + step]))
            assert lacks(each, keys[start + step :]) == 500 - start - step
        cache, other = other, cache
    again = VectorCache(tmp_path / "c", WIDTH, "x")
    check(again, keys[:450])
    assert cache.read(np.zeros(0, np.int64))[0].shape == (0, WIDTH)
    assert lacks(VectorCache(tmp_path / "c", WIDTH, "vectors of another encoder"), keys) == 500


@pytest.mark.parametrize("kind", ["keys", "vectors"])
def test_what_a_killed_process_left_half_written_does_not_count(tmp_path: Path, kind: str) -> None:
    add(VectorCache(tmp_path, WIDTH, "x"), np.arange(20))
    (file,) = (tmp_path / "x").glob(f"*.{kind}")
    file.write_bytes(file.read_bytes()[:-3])
    cache = VectorCache(tmp_path, WIDTH, "x")
    assert lacks(cache, np.arange(20)) == 1
    add(cache, np.arange(19, 40))
    for each in (cache, VectorCache(tmp_path, WIDTH, "x")):
        check(each, np.arange(40))


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Even if they are killed at their end."""
    script = (
        "import os, signal, sys, numpy as np\n"
        "from xrep.data.teacher_vectors import VectorCache\n"
        "cache, first = VectorCache(sys.argv[1], 5, 'x'), int(sys.argv[2])\n"
        "for start in range(first, first + 1000, 50):\n"
        "    keys = np.arange(start, start + 50)\n"
        "    vectors = [np.random.default_rng(key).normal(size=5) for key in keys]\n"
        "    cache.add(keys, np.stack(vectors).astype(np.float32))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    commands = [[sys.executable, "-c", script, str(tmp_path), str(first)] for first in (0, 1000)]
    processes = [subprocess.Popen(command, env=environment()) for command in commands]
    assert [process.wait() for process in processes] == [-9, -9]
    cache = VectorCache(tmp_path, WIDTH, "x")
    check(cache, np.arange(2000))
