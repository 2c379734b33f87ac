"""Batches and their plans are the same wherever they are made, and after a run was resumed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.runs import SMALL_MODEL, compose_run
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
from xrep.training.batches import PlannedBatches
from xrep.training.run import train

PARTS = {
    "mlm": (MLM, MLM.Config()),
    "tlm": (TLM, TLM.Config(position_reset=True)),
    "cmlm": (CMLM, CMLM.Config(projections=2)),
    "dap": (DAP, DAP.Config(rtl_layers=1, reconstruction_ratio=0.5)),
    "hictl": (HiCTL, HiCTL.Config()),
}
ROWS = 7
"""Of a micro-batch."""


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


def made(kind: str, data: Path) -> tuple[Task, Criterion]:
    """A criterion with what it reads. ``multitask`` has all of them as parts, and cuts what dap and hictl read."""
    config = BitextTask.Config(data=str(data), batch_size=20, max_length=32)
    task: Task = BitextTask(config, 1)
    if kind == "multitask":
        tasks = [Part(name, BitextTask, config, 1.0, 1.0) for name in PARTS]
        task = MixtureTask(MixtureTask.Config(parts=tasks, mixing="weight"), 1)
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SMALL_MODEL), task.text)
    if kind != "multitask":
        own, options = PARTS[kind]
        return task, own(options, model, task.text)
    parts = [Part(name, own, options, 1.0, 1.0) for name, (own, options) in PARTS.items()]
    criterion = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, task.text)
    criterion.set_micro_batch(ROWS)
    return task, criterion


def planned(batches: PlannedBatches, count: int, **given: Any) -> list[tuple[Planned, Plan]]:
    made = stream(batches, **given)
    found = list(islice(made, count))
    made.close()
    return found


@pytest.mark.parametrize("kind", [*PARTS, "multitask"])
def test_workers_plan_what_the_main_process_plans(kind: str, data_directory: Path) -> None:
    """Masks and all, from the start and from a later place, whatever else was drawn before."""
    task, criterion = made(kind, data_directory)
    batches = PlannedBatches(task, criterion, 5, 0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    here = planned(batches, 6)
    assert torch.equal(torch.get_rng_state(), before), "plans draw from their own generator alone"
    torch.manual_seed(2)
    for plans, first in ((planned(batches, 6, workers=2), 0), (planned(batches, 2, cursor=here[3][1].cursor), 4)):
        for (one, plan), (other, expected) in zip(plans, here[first:], strict=True):
            assert_equal(one, other)
            assert (plan.cursor, plan.examples) == (expected.cursor, expected.examples)
            assert len(one.pieces) == 2 * 3 + 1 if kind == "multitask" else not one.pieces


@pytest.mark.parametrize("kind", [*PARTS, "multitask"])
def test_a_plan_goes_whole_where_batches_go(kind: str, data_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what Python reads stays in host memory, and what goes to a GPU was page-locked before."""
    task, criterion = made(kind, data_directory)
    ((plan, _),) = planned(PlannedBatches(task, criterion, 5, 0), 1)
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


def masks(plans: list[tuple[Planned, Plan]]) -> list[list[int]]:
    return [plan.details["shared"].positions.tolist() for plan, _ in plans]


def test_masks_depend_on_seed_rank_and_place(data_directory: Path) -> None:
    task, criterion = made("mlm", data_directory)
    found = masks(planned(PlannedBatches(task, criterion, 5, 0), 2))
    assert found == masks(planned(PlannedBatches(task, criterion, 5, 0), 2)) and found[0] != found[1]
    for seed, rank in ((6, 0), (5, 1)):
        assert found[0] != masks(planned(PlannedBatches(task, criterion, seed, rank), 1))[0]
    batches = PlannedBatches(task, criterion, 5, 0)
    what = next(task.plan()).what
    one, other = (batches.make((what, number)) for number in (20, 20 + task.examples))
    assert torch.equal(one.batch.source.tokens, other.batch.source.tokens)
    assert masks([(one, None)]) != masks([(other, None)]), "another epoch has other masks"


def test_a_resumed_run_has_the_same_masks(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so has one with data workers; dropout is on, and draws from the numbers of the main process."""
    seen: list[Planned] = []
    forward = MLM.forward

    def noting(self: MLM, model: DualEncoder, plan: Planned) -> Any:
        if self.training:
            seen.append(plan)
        return forward(self, model, plan)

    monkeypatch.setattr(MLM, "forward", noting)
    given = {"criterion": "mlm", "lr_scheduler": "constant", "warmup_steps": 0, "validate_every": 0}
    found = {}
    for name, stops, workers in (("once", [6], 0), ("resumed", [2, 6], 0), ("workers", [3, 6], 2)):
        seen.clear()
        for stop in stops:
            run = compose_run(data_directory, tmp_path / name, max_steps=stop, data_workers=workers, **given)
            train(run)
        found[name] = list(seen), (tmp_path / name / "last" / "model.safetensors").read_bytes()
    plans, weights = found["once"]
    assert len(plans) == 6 and len({str(mask) for mask in masks([(plan, None) for plan in plans])}) == 6
    for name in ("resumed", "workers"):
        for one, other in zip(found[name][0], plans, strict=True):
            assert_equal(one, other)
        assert found[name][1] == weights
