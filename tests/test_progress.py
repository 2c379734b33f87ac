"""Progress lines, on a terminal and in a log file."""

import io

import numpy as np
import pytest

from xrep import progress
from xrep.hashing import find_sorted, mix
from xrep.progress import Counter, ProgressLine, duration


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("xrep.progress.time.monotonic", lambda: now[0])
    return now


def test_a_line_is_rewritten_on_a_terminal(clock: list[float]) -> None:
    line = ProgressLine(screen := Screen(True))
    line.show("ten of ten")
    line.show("too soon")
    clock[0] += 1
    line.show("short")
    line.say("done")
    assert screen.getvalue() == "\rten of ten\rshort     \r     \rdone\n"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_log_file_has_a_line_now_and_then(clock: list[float], at_once: bool) -> None:
    line = ProgressLine(screen := Screen(False), at_once=at_once)
    for second in range(25):
        line.show(f"{second}")
        clock[0] += 1
    line.clear()
    assert screen.getvalue().split() == (["0", "10", "20"] if at_once else ["10", "20"])


def test_a_counter_says_how_fast_and_how_long(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen(False))
    with Counter("lines", "encoding", done=1000, total=5000) as counter, Counter("pairs") as other:
        clock[0] += progress.SECONDS_BETWEEN_LINES + 10
        counter.update(2000)
        other.update(4000)
    with Counter("lines", shown=False) as counter:
        clock[0] += 100
        counter.update(1)
    assert (
        screen.getvalue()
        == "encoding:  60%|██████    | 3.00k/5.00k [00:20<00:20, 100 lines/s]\n4.00k pairs [00:20, 200 pairs/s]\n"
    )
    assert duration(3725.9) == "1:02:05"


def test_mixed_numbers_are_those_of_splitmix64() -> None:
    step = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(n) for n in mix(step)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


def test_values_are_found_in_a_sorted_array() -> None:
    assert find_sorted(np.array([1, 5, 9]), np.array([[5, 0], [9, 10]])).tolist() == [[1, -1], [2, -1]]
    assert find_sorted(np.zeros(0), np.array([5, 0])).tolist() == [-1, -1]
