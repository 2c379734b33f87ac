"""Batches and their plans are the same wherever they are made; ranks agree on a step while they compute another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.runs import SMALL_MODEL
from xrep.config import Part
from xrep.criteria.cmlm import CMLM
from xrep.criteria.criterion import Criterion, Planned
from xrep.criteria.dap import DAP
from xrep.criteria.hictl import HiCTL
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.criteria.tlm import TLM
from xrep.data.stream import Plan, stream
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.task import Task
from xrep.training.batches import Agreement, PlannedBatches, agreed

PARTS = {
    "mlm": (MLM, MLM.Config()),
    "tlm": (TLM, TLM.Config(position_reset=True)),
    "cmlm": (CMLM, CMLM.Config(projections=2)),
    "dap": (DAP, DAP.Config(rtl_layers=1, reconstruction_ratio=0.5)),
    "hictl": (HiCTL, HiCTL.Config()),
}


def named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """All tensors and arrays in a plan, with the names by which they are found there."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, np.ndarray):
        yield name, torch.from_numpy(value)
    elif isinstance(value, list | tuple):
        yield from named(name, dict(enumerate(value)))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from named(f"{name}.{key}", item)
    elif hasattr(value, "__dict__"):
        yield from named(name, vars(value))


def assert_equal(one: Planned, other: Planned) -> None:
    assert one.sizes == other.sizes and len(one.pieces) == len(other.pieces)
    mine, theirs = dict(named("", one)), dict(named("", other))
    assert mine.keys() == theirs.keys() and len(mine) > 5
    assert all(mine[name].dtype == other.dtype and torch.equal(mine[name], other) for name, other in theirs.items())


@pytest.fixture(scope="module")
def everything(data_directory: Path) -> tuple[Task, Criterion]:
    """All criteria that draw their plans at random, as parts of one, which cuts what two of them read into pieces."""
    config = BitextTask.Config(data=str(data_directory), batch_size=20, max_length=32)
    tasks = [Part(name, BitextTask, config, 1.0, 1.0) for name in PARTS]
    task = MixtureTask(MixtureTask.Config(parts=tasks, mixing="weight"), 1)
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SMALL_MODEL), task.text)
    parts = [Part(name, own, options, 1.0, 1.0) for name, (own, options) in PARTS.items()]
    criterion = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, task.text)
    criterion.set_micro_batch(7)
    return task, criterion


def planned(batches: PlannedBatches, count: int, **given: Any) -> list[tuple[Planned, Plan]]:
    made = stream(batches, **given)
    found = list(islice(made, count))
    made.close()
    return found


@pytest.mark.slow
def test_workers_plan_what_the_main_process_plans(everything: tuple[Task, Criterion]) -> None:
    """Masks and all, from the start and from a later place, whatever else was drawn before."""
    batches = PlannedBatches(*everything, 5, 0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    here = planned(batches, 6)
    assert torch.equal(torch.get_rng_state(), before), "plans draw from their own generator alone"
    torch.manual_seed(2)
    for plans, first in ((planned(batches, 6, workers=2), 0), (planned(batches, 2, cursor=here[3][1].cursor), 4)):
        for (one, plan), (other, expected) in zip(plans, here[first:], strict=True):
            assert_equal(one, other)
            assert (plan.cursor, plan.examples) == (expected.cursor, expected.examples)
            assert len(one.pieces) == 2 * 3 + 1


def test_a_plan_goes_whole_where_batches_go(
    everything: tuple[Task, Criterion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what Python reads stays in host memory, and what goes to a GPU was page-locked before."""
    ((plan, _),) = planned(PlannedBatches(*everything, 5, 0), 1)
    locked: list[Tensor] = []

    def lock(tensor: Tensor) -> Tensor:
        locked.append(tensor.clone())
        return locked[-1]

    monkeypatch.setattr(Tensor, "pin_memory", lock)
    pinned = plan.pin_memory()
    moved = dict(named("", pinned.to("meta")))
    staying = {name for name, value in moved.items() if not value.is_meta}
    assert {name.rsplit(".", 1)[1] for name in staying} == {"indices", "languages", "host_lengths"}
    before = dict(named("", pinned))
    assert before.keys() == moved.keys() and len(before.keys() - staying) > 5
    assert all(any(before[name] is one for one in locked) for name in before.keys() - staying)
    assert_equal(pinned, plan)


def test_masks_depend_on_seed_rank_and_place(data_directory: Path) -> None:
    task = BitextTask(BitextTask.Config(data=str(data_directory), batch_size=20, max_length=32), 1)
    criterion = MLM(MLM.Config(), DualEncoder(DualEncoder.Config(**SMALL_MODEL), task.text), task.text)
    what = next(task.plan()).what
    places = [(5, 0, 20), (5, 0, 40), (6, 0, 20), (5, 1, 20), (5, 0, 20 + task.examples)]
    plans = [PlannedBatches(task, criterion, seed, rank).make((what, number)) for seed, rank, number in places]
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


def steps_of(world: Any, count: int = 3) -> Iterator[tuple[Any, Callable[[], Agreement]]]:
    def groups() -> Iterator[Any]:
        for number in range(1, count + 1):
            world.log.append(f"make {number}")
            batch: Any = SimpleNamespace(token_count=number)
            yield [(Counted(batch, {"pairs": 3.0, "words": 5.0}), None)]

    exchanging: Any = SimpleNamespace(exchanged=lambda batch: (batch,))
    return agreed(groups(), world, exchanging, lambda: (7.0, False))


def test_ranks_agree_on_a_step_while_they_compute_the_one_before() -> None:
    world = TwoRanks()
    for number, (group, wait) in enumerate(steps_of(world), 1):
        assert wait() == Agreement({"pairs": 7.0, "words": 11.0}, 2 * number + 1, 15.0, True)
        world.log.append(f"compute {number}")
        assert group[0][0].rank_rows == [1, 2 * 10 * number + 1]
    before = "make 1, tell 1, make 2, tell 2, wait 1, compute 1, make 3, tell 3, wait 2, compute 2, wait 3, compute 3"
    assert ", ".join(world.log) == before


@pytest.mark.parametrize("count, steps", [(3, 1), (2, 2), (1, 1)])
def test_no_message_is_left_under_way(count: int, steps: int) -> None:
    world = TwoRanks()
    steps_of_run: Any = steps_of(world, count)
    for _ in range(steps):
        next(steps_of_run)[1]()
    steps_of_run.close()
    told, waited = ([line[5:] for line in world.log if line.startswith(what)] for what in ("tell", "wait"))
    assert told == waited and len(told) == min(count, steps + 1)
