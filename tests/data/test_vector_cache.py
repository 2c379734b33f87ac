"""The cache of vectors finds all that was added, by any process and however that process ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import environment
from xrep.data.vector_cache import VectorCache
from xrep.errors import UserError

WIDTH = 5


def vectors_of(keys: np.ndarray) -> np.ndarray:
    return np.stack([np.random.default_rng(abs(int(key))).normal(size=WIDTH) for key in keys]).astype(np.float32)


def check(cache: VectorCache, keys: np.ndarray) -> None:
    places = cache.find(keys)
    assert (places >= 0).all()
    np.testing.assert_array_equal(cache.read(places), vectors_of(keys))


def add(cache: VectorCache, keys: np.ndarray) -> None:
    cache.add(keys, vectors_of(keys))


@pytest.mark.parametrize("step", [45, 150])
def test_what_one_added_is_found_by_all(tmp_path: Path, step: int) -> None:
    random = np.random.default_rng(0)
    keys = random.choice(np.iinfo(np.int64).max, 500, replace=False) * random.choice([-1, 1], 500)
    cache, other = VectorCache(tmp_path / "c", WIDTH, "x"), VectorCache(tmp_path / "c", WIDTH, "x")
    assert (cache.find(keys) == -1).all() and len(cache) == 0
    for start in range(0, 450, step):
        add(cache, keys[start : start + step])
        for each in (cache, other):
            check(each, random.permutation(keys[: start + step]))
            assert (each.find(keys[start + step :]) == -1).all()
        cache, other = other, cache
    again = VectorCache(tmp_path / "c", WIDTH, "x")
    assert len(again) == 450
    check(again, keys[:450])
    assert cache.read(np.zeros(0, np.int64)).shape == (0, WIDTH)


@pytest.mark.parametrize("ending", ["index", "vectors"])
def test_what_a_killed_process_left_half_written_is_cut_off(tmp_path: Path, ending: str) -> None:
    add(VectorCache(tmp_path, WIDTH, "x"), np.arange(20))
    file = tmp_path / ending
    file.write_bytes(file.read_bytes()[:-3] if ending == "index" else file.read_bytes() + b"half a row")
    whole = 19 if ending == "index" else 20
    cache = VectorCache(tmp_path, WIDTH, "x")
    assert (cache.find(np.arange(20)) < 0).sum() == 20 - whole
    add(cache, np.arange(20, 40))
    for each in (cache, VectorCache(tmp_path, WIDTH, "x")):
        check(each, np.r_[:whole, 20:40])


def test_a_row_that_is_not_what_was_written_is_not_used(tmp_path: Path) -> None:
    vectors = vectors_of(np.arange(20))
    vectors[3, 1] = np.nan
    VectorCache(tmp_path, WIDTH, "x").add(np.arange(20), vectors)
    data = bytearray((tmp_path / "vectors").read_bytes())
    data[7 * WIDTH * 4 : 8 * WIDTH * 4] = bytes(WIDTH * 4)
    (tmp_path / "vectors").write_bytes(data)
    cache = VectorCache(tmp_path, WIDTH, "x")
    check(cache, np.r_[:3, 4:7, 8:20])
    for row in (3, 7):
        with pytest.raises(UserError, match=rf"vectors: row {row} is not what was written; remove"):
            cache.read(cache.find(np.array([0, row])))


def test_directories_that_are_not_its_own(tmp_path: Path) -> None:
    VectorCache(tmp_path / "c", WIDTH, "x")
    for width, fingerprint in ((WIDTH, "y"), (WIDTH + 1, "x")):
        with pytest.raises(UserError, match="holds vectors of another encoder"):
            VectorCache(tmp_path / "c", width, fingerprint)
    with pytest.raises(UserError, match="holds something else than cached vectors"):
        VectorCache(tmp_path, WIDTH, "x")


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Even if they are killed at their end."""
    script = (
        "import os, signal, sys, numpy as np\n"
        "from xrep.data.vector_cache import VectorCache\n"
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
    assert len(cache) == 2000
    check(cache, np.arange(2000))
