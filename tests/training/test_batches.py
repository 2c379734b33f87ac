"""Plans draw from their place in the data; ranks agree on a step while they compute the one before."""

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.runs import SMALL_MODEL
from xrep.criteria.criterion import Planned
from xrep.criteria.mlm import MLM
from xrep.data.stream import Plan
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.training.batches import Group, planned_batch, steps_ahead


def test_masks_depend_on_seed_rank_and_place(data_directory: Path) -> None:
    task = BitextTask(BitextTask.Config(data=str(data_directory), batch_size=20, max_length=32), 1)
    criterion = MLM(MLM.Config(), DualEncoder(DualEncoder.Config(**SMALL_MODEL), task.text), task.text)
    what = next(task.plan()).rows
    places = [(5, 0, 20), (5, 0, 40), (6, 0, 20), (5, 1, 20), (5, 0, 20 + task.examples)]
    plans = [planned_batch(task, criterion, seed, rank, Plan(what, 0, number)) for seed, rank, number in places]
    assert all(torch.equal(plan.batch.source.tokens, plans[0].batch.source.tokens) for plan in plans)
    assert len({str(plan.details["shared"].positions.tolist()) for plan in plans}) == len(places)


# -- what ranks agree on ----------------------------------------------------------------------------------------------


class TwoRanks:
    """The second of two ranks, whose other rank says one more of everything."""

    size, rank = 2, 1

    def __init__(self) -> None:
        self.log = list[str]()

    def sums_later(self, values: list[float]) -> Callable[[], list[float]]:
        self.log.append(f"tell {values[1]:g}")

        def wait() -> list[float]:
            self.log.append(f"wait {values[1]:g}")
            return [value * 2 + 1 for value in values]

        return wait


class Counted(Planned):
    def __len__(self) -> int:
        return 10 * self.token_count


def steps_of(world: Any, count: int = 3) -> Generator[Group, None, None]:
    def groups() -> Generator[Group, None, None]:
        for number in range(1, count + 1):
            world.log.append(f"make {number}")
            batch: Any = SimpleNamespace(token_count=number)
            yield Group([Counted(batch, {"pairs": 3.0, "words": 5.0})], Plan(None, None, number))

    return steps_ahead(groups(), world, lambda: (7.0, False))


def test_ranks_agree_on_a_step_while_they_compute_the_one_before() -> None:
    world = TwoRanks()
    for number, group in enumerate(steps_of(world), 1):
        assert (group.sizes, group.plan.examples) == ({"pairs": 7.0, "words": 11.0}, number)
        assert (group.tokens, group.seconds, group.stop) == (2 * number + 1, 15.0, True)
        world.log.append(f"compute {number}")
        assert group.batches[0].rank_rows == [1, 2 * 10 * number + 1]
    before = "make 1, tell 1, make 2, tell 2, wait 1, compute 1, make 3, tell 3, wait 2, compute 2, wait 3, compute 3"
    assert ", ".join(world.log) == before


def test_ranks_tell_their_rows_of_each_part() -> None:
    parts = {name: Counted(SimpleNamespace(token_count=count), {}) for name, count in (("a", 1), ("b", 2))}
    batch: Any = SimpleNamespace(token_count=3)
    group = Group([Planned(batch, {}, parts=parts)], Plan(None, None, 1))
    (_,) = steps_ahead(iter([group]), TwoRanks(), lambda: (7.0, False))
    assert [own.rank_rows for own in parts.values()] == [[1, 21], [1, 41]]


@pytest.mark.parametrize("count, steps", [(3, 1), (2, 2), (1, 1)])
def test_no_message_is_left_under_way(count: int, steps: int) -> None:
    world = TwoRanks()
    groups = steps_of(world, count)
    for _ in range(steps):
        next(groups)
    groups.close()
    told, waited = ([line[5:] for line in world.log if line.startswith(what)] for what in ("tell", "wait"))
    assert told == waited and len(told) == min(count, steps + 1)
