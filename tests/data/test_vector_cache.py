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


@pytest.mark.parametrize("step", [1, 45, 150])
def test_what_was_added_is_found(tmp_path: Path, step: int) -> None:
    random = np.random.default_rng(0)
    keys = random.choice(np.iinfo(np.int64).max, 500, replace=False) * random.choice([-1, 1], 500)
    cache = VectorCache(tmp_path / "c", WIDTH, "x")
    assert (cache.find(keys) == -1).all() and len(cache) == 0
    for start in range(0, 450, step):
        add(cache, keys[start : start + step])
        check(cache, random.permutation(keys[: start + step]))
        assert (cache.find(keys[start + step :]) == -1).all()
    again = VectorCache(tmp_path / "c", WIDTH, "x")
    assert len(again) == 450
    check(again, keys[:450])
    assert cache.read(np.zeros(0, np.int64)).shape == (0, WIDTH)


def test_processes_write_beside_each_other_and_read_each_other(tmp_path: Path) -> None:
    one, two = VectorCache(tmp_path, WIDTH, "x"), VectorCache(tmp_path, WIDTH, "x")
    add(one, np.arange(10))
    add(two, np.arange(10, 30))
    check(one, np.arange(30))
    check(two, np.arange(30))
    add(one, np.arange(40, 45))
    check(two, np.arange(40, 45))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.json", "index", "vectors"] and len(two) == 35


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


@pytest.mark.slow
def test_a_process_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, numpy as np\n"
        "from tests.data.test_vector_cache import *\n"
        "cache = VectorCache(sys.argv[1], WIDTH, 'x')\n"
        "for start in range(0, 60, 20): add(cache, np.arange(start, start + 20))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment(), capture_output=True)
    assert killed.returncode == -9, killed.stderr
    check(VectorCache(tmp_path, WIDTH, "x"), np.arange(60))


def test_a_lost_row_is_not_used(tmp_path: Path) -> None:
    add(VectorCache(tmp_path, WIDTH, "x"), np.arange(20))
    data = bytearray((tmp_path / "vectors").read_bytes())
    data[7 * WIDTH * 4 : 8 * WIDTH * 4] = bytes(WIDTH * 4)
    (tmp_path / "vectors").write_bytes(data)
    cache = VectorCache(tmp_path, WIDTH, "x")
    check(cache, np.r_[:7, 8:20])
    with pytest.raises(UserError, match=r"vectors: row 7 is not what was written; remove"):
        cache.read(cache.find(np.arange(20)))


def test_directories_that_are_not_its_own(tmp_path: Path) -> None:
    VectorCache(tmp_path / "c", WIDTH, "x")
    for width, fingerprint in ((WIDTH, "y"), (WIDTH + 1, "x")):
        with pytest.raises(UserError, match="holds vectors of another encoder"):
            VectorCache(tmp_path / "c", width, fingerprint)
    (tmp_path / "c" / "cache.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="holds vectors of another encoder"):
        VectorCache(tmp_path / "c", WIDTH, "x")
    with pytest.raises(UserError, match="holds something else than cached vectors"):
        VectorCache(tmp_path, WIDTH, "x")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="holds something else"):
        VectorCache(tmp_path / "file", WIDTH, "x")


def test_ranks_that_open_it_at_the_same_time_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest of another rank appears after the look whether there is one."""
    (tmp_path / "c" / ".left by a killed process").mkdir(parents=True)
    VectorCache(tmp_path / "c", WIDTH, "x")
    looks, exists = [], Path.exists

    def stale(path: Path) -> bool:
        looks.append(path)
        return exists(path) and len(looks) % 2 == 0

    monkeypatch.setattr(Path, "exists", stale)
    cache = VectorCache(tmp_path / "c", WIDTH, "x")
    assert len(looks) >= 2 and looks[0] == looks[1] == tmp_path / "c" / "cache.json"
    looks.clear()
    with pytest.raises(UserError, match="holds vectors of another encoder"):
        VectorCache(tmp_path / "c", WIDTH, "y")
    monkeypatch.undo()
    add(cache, np.arange(5))
    check(VectorCache(tmp_path / "c", WIDTH, "x"), np.arange(5))


@pytest.mark.slow
def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "from tests.data.test_vector_cache import *\n"
        "cache = VectorCache(sys.argv[1], WIDTH, 'x')\n"
        "first = int(sys.argv[2])\n"
        "for start in range(first, first + 1000, 10): add(cache, np.arange(start, start + 10))\n"
    )
    commands = [[sys.executable, "-c", script, str(tmp_path), str(first)] for first in (0, 1000, 2000)]
    processes = [subprocess.Popen(command, env=environment()) for command in commands]
    assert [process.wait() for process in processes] == [0, 0, 0]
    cache = VectorCache(tmp_path, WIDTH, "x")
    assert len(cache) == 3000
    check(cache, np.arange(3000))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    cache = VectorCache(tmp_path, WIDTH, "x")
    vectors = vectors_of(np.arange(4))
    vectors[2, 1] = value
    cache.add(np.arange(4), vectors)
    check(cache, np.array([0, 1, 3]))
    with pytest.raises(UserError, match="vectors: row 2 is not what was written"):
        cache.read(cache.find(np.arange(4)))
