"""The plan of a batch, for every criterion: what it depends on, and where its data are."""

import copy
import pickle
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from tests.criteria.objectives import FIRST, OBJECTIVES, Maker, Objective, align, hictl, mlm, rank
from tests.support.planning import plan
from xrep.config import Part
from xrep.criteria.contrastive import encode_in_pieces
from xrep.criteria.criterion import Criterion, Planned
from xrep.criteria.multitask import Multitask
from xrep.registry import CRITERIA
from xrep.tasks.mixture import MixedBatch

PARTS: dict[str, Objective] = {"hictl": hictl(), "mlm": mlm("sentences"), "dap": align("pairs"), "ranking": rank()}
CASES: dict[str, int | None] = {
    **dict.fromkeys([*FIRST, "dap, half of the tokens", "hictl, monolingual", "hictl, no language model"]),
    "tlm, next sentence": None, "translation_ranking, negatives": None, "multitask": None,
    "multitask, in pieces": 4, "hictl, in pieces": 4, "nli_triplet, in pieces": 4,
}  # fmt: skip
"""Number of rows that are encoded at a time, by case."""
DRAWING = ("cmlm", "mlm", "tlm", "multitask", "dap, half", "hictl, monolingual", "hictl, in pieces")
"""Beginnings of the cases in which the plan needs random numbers."""


def draws(name: str) -> bool:
    return name.startswith(DRAWING) or name == "hictl"


def made(make: Maker, name: str) -> tuple[nn.Module, Criterion, Any]:
    """Return model, criterion and batch of a case."""
    of = name.removesuffix(", in pieces")
    if of == "multitask":
        loaded = {part: CRITERIA.load(own.kind) for part, own in PARTS.items()}
        parts = [Part(n, kind, kind.Config(**PARTS[n].options), 1.0, 1.0) for n, kind in loaded.items()]
        model, _ = make.build(rank())
        criterion: Criterion = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, make.text).double()
        batch: Any = MixedBatch({part: make.batch(own.batch) for part, own in PARTS.items()})
    else:
        model, criterion, batch = make(of)
    if CASES[name] is not None:
        encode_in_pieces(criterion, CASES[name])
    return model, criterion, batch


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors, arrays and numbers in a plan, with their places."""
    if is_dataclass(value):
        yield path, type(value).__name__
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}")
    else:
        yield path, value


def contents(planned: Planned) -> list[tuple[str, Any]]:
    """What a plan says, such that equal plans are equal."""
    found = []
    for path, value in leaves(planned):
        listed = isinstance(value, Tensor | np.ndarray)
        found.append((path, (type(value).__name__, str(value.dtype), value.tolist()) if listed else value))
    return found


def global_state() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in np.random.get_state()]]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_depends_only_on_the_batch_and_the_generator(make: Maker, name: str) -> None:
    """It does not touch the weights: where it is made there may be no GPU. On meta nothing can be read."""
    _, criterion, batch = made(make, name)
    before = contents(batch)
    planned = plan(criterion, batch, 3)
    torch.manual_seed(100)
    state = global_state()
    assert contents(plan(criterion, batch, 3)) == contents(planned)
    assert contents(plan(copy.deepcopy(criterion).eval().to("meta"), batch, 3)) == contents(planned)
    assert contents(pickle.loads(pickle.dumps(planned))) == contents(planned), "plans come from worker processes"
    assert planned.sizes and len(planned) == len(batch)
    assert global_state() == state and contents(batch) == before
    other = plan(criterion, batch, 4)
    assert (contents(other) != contents(planned)) is draws(name)
    by_themselves = ("dap, half of the tokens", "tlm, next sentence")  # drawn tokens, or drawn sentences
    assert other.sizes == planned.sizes or name in by_themselves
    generator = Generator().manual_seed(3)
    first, second = (contents(criterion.plan(batch, generator)) for _ in range(2))
    assert first == contents(planned) and (second != first) is draws(name), "later batches have other masks"


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_python_reads_stays_in_host_memory(make, name, pinned, monkeypatch):
    """Lengths, languages and indices; all else goes to the device, and before that into page-locked memory."""
    _, criterion, batch = made(make, name)
    planned = plan(criterion, batch)
    assert contents(planned.to("cpu")) == contents(planned)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.to("meta"))  # real pinning needs a GPU
    there = planned.pin_memory() if pinned else planned.to("meta")
    assert type(there) is type(planned) and there.sizes == planned.sizes and len(there) == len(planned)
    assert there.token_count == planned.token_count
    here = dict(leaves(planned))
    for path, value in leaves(there):
        if isinstance(value, Tensor):
            # Of a mixture, the plans of the parts are computed with, and the batches are only for messages.
            on_host = path.endswith((".indices", ".languages")) or path.startswith(".batch.parts.")
            assert value.is_meta is not on_host, path
            assert value.shape == here[path].shape and value.dtype == here[path].dtype
        if path.endswith("host_lengths"):
            assert isinstance(value, np.ndarray) and np.array_equal(value, here[path])
    assert [path for path, _ in leaves(there)] == list(here)


def test_every_criterion_is_in_the_table() -> None:
    of_text = {name for name in CRITERIA.names() if CRITERIA.target(name).startswith("xrep.")}
    assert of_text - {own.kind for own in OBJECTIVES.values()} == {"classification", "span", "tagging"}
