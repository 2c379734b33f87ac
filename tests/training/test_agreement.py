"""What ranks agree on before a step, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from xrep.criteria.criterion import Planned
from xrep.training.batches import Agreement, agreed


class TwoRanks:
    """The second of two ranks, whose other rank says one more of everything."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.rank, self.log = size, size - 1, list[str]()

    def sums_later(self, values: list[float]) -> Callable[[], list[float]]:
        self.log.append(f"tell {values[1]:g}")

        def wait() -> list[float]:
            self.log.append(f"wait {values[1]:g}")
            return [value * 2 + 1 for value in values] if self.size > 1 else values

        return wait


def planned(tokens: int) -> Planned:
    batch: Any = SimpleNamespace(token_count=tokens)
    return Counted(batch, {"pairs": 3.0, "words": 5.0})


class Counted(Planned):
    def __len__(self) -> int:
        return 10 * self.token_count


EXCHANGING: Any = SimpleNamespace(exchanged=lambda batch: (batch,))


def groups(world: TwoRanks, count: int = 3) -> Iterator[Any]:
    for number in range(1, count + 1):
        world.log.append(f"make {number}")
        yield [(planned(number), None)]


def run(world: Any, count: int = 3) -> Iterator[tuple[Any, Callable[[], Agreement]]]:
    return agreed(groups(world, count), world, EXCHANGING, lambda: (7.0, False))


def test_ranks_agree_on_a_step_while_they_compute_the_one_before() -> None:
    world = TwoRanks()
    for (group, wait), number in zip(run(world), (1, 2, 3), strict=True):
        agreement = wait()
        world.log.append(f"compute {number}")
        assert agreement == Agreement({"pairs": 7.0, "words": 11.0}, 2 * number + 1, 15.0, True)
        assert group[0][0].rank_rows == [1, 2 * 10 * number + 1]
    before = "make 1, tell 1, make 2, tell 2, wait 1, compute 1, make 3, tell 3, wait 2, compute 2, wait 3, compute 3"
    assert ", ".join(world.log) == before


def test_one_rank_makes_a_batch_when_it_is_needed() -> None:
    world = TwoRanks(size=1)
    for (group, wait), number in zip(run(world), (1, 2, 3), strict=True):
        assert wait() == Agreement({"pairs": 3.0, "words": 5.0}, number, 7.0, False)
        assert group[0][0].rank_rows is None
        world.log.append(f"compute {number}")
    assert world.log[:5] == ["make 1", "tell 1", "wait 1", "compute 1", "make 2"]


@pytest.mark.parametrize("count, steps", [(3, 1), (2, 2), (1, 1)])
def test_no_message_is_left_under_way(count: int, steps: int) -> None:
    world = TwoRanks()
    steps_of_run: Any = run(world, count)
    for _ in range(steps):
        next(steps_of_run)[1]()
    steps_of_run.close()
    told, waited = ([line[5:] for line in world.log if line.startswith(what)] for what in ("tell", "wait"))
    assert told == waited and len(told) == min(count, steps + 1)
