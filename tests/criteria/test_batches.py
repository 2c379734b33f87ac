"""Criteria on empty batches, in half precision, and without waiting for the device."""

from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of
from xrep.criteria.criterion import Criterion, percentage
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.frozen_source import FrozenSource
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batching import PairBatch
from xrep.kernels.processor import fast_float32_is_exact, multiplies_bfloat16
from xrep.models.dual_encoder import DualEncoder

aten = torch.ops.aten
SMALL = {"layers": 2, "hidden_size": 32, "heads": 4, "feedforward_size": 64, "max_positions": 48}
CRITERIA = {
    "dual_moco": (DualMoco, {"queue_size": 7, "temperature": 0.1, "momentum": 0.5}),
    "dual_moco, masked": (DualMoco, {"queue_size": 7, "mask_equal_sentences": True, "queue_dtype": "bfloat16"}),
    "frozen_source": (FrozenSource, {"queue_size": 7, "temperature": 0.5}),
    "frozen_source, masked": (FrozenSource, {"queue_size": 7, "mask_equal_sentences": True}),
    "frozen_source, trained": (FrozenSource, {"source": "trained", "temperature": 0.1}),
    "translation_ranking": (TranslationRanking, {}),
    "translation_ranking, masked": (TranslationRanking, {"mask_equal_sentences": True}),
}


def make(text, name: str, **options: Any) -> tuple[DualEncoder, Criterion]:
    torch.manual_seed(0)
    kind, given = CRITERIA[name]
    if kind is FrozenSource and "trained" not in name:  # a frozen tower is not shared
        options["towers"] = "separate"
    model = DualEncoder(DualEncoder.Config(**{**SMALL, **options}), text).train()
    criterion = kind(kind.Config(**given), model, text).train()
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(parameter_name.startswith(f"{part}.") for part in criterion.frozen))
    return model, criterion


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def make_batches(make_batch) -> list[PairBatch]:
    """Return batches without padding, packed, with little padding, and empty."""
    pairs = sentence_pairs(20)
    uneven = [(german * (1 + n % 3), english) for n, (german, english) in enumerate(pairs[:5])]
    packed = make_batch(uneven)
    tight = make_batch(pairs[5:12])
    lengths = tight.source.lengths
    alone = make_batch(pairs[12:13])
    assert lengths.sum() > 0.8 * tight.source.tokens.numel() and not alone.source.is_padded
    return [packed, tight, tight.rows(0, 0), alone, packed.rows(0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("kind", ["float32", "float64", "bf16 autocast"])
def test_a_batch_of_no_rows_is_worth_nothing(text, make_batch, name: str, kind: str) -> None:
    batches = make_batches(make_batch)[1:]
    for number, (norm, pooling) in enumerate(itertools.product(["post", "pre"], ["mean", "max", "cls"])):
        towers, projection = ("shared", 20) if number % 2 else ("separate", None)
        model, criterion = make(text, name, towers=towers, norm=norm, pooling=pooling, projection_size=projection)
        if kind == "float64":
            nn.ModuleList([model, criterion]).double()
        for batch in batches:
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16) if "bf16" in kind else nullcontext():
                loss = loss_of(criterion, model, batch)
            (term,) = loss.terms.values()
            term.sum.backward()
            criterion.after_step(model)
            assert torch.isfinite(term.sum) and term.sum.dtype == (torch.float64 if "64" in kind else torch.float32)
            assert torch.isfinite(loss.metrics["accuracy"]) and [*sizes_of(criterion, batch).values()] == [len(batch)]
            for parameter in trained(model):
                assert parameter.grad is not None and torch.isfinite(parameter.grad).all()
                assert len(batch) or not parameter.grad.any()
            if not len(batch):
                assert float(term.sum.detach()) == float(loss.metrics["accuracy"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_half_precision_is_near_to_float32(text, make_batch, name: str, towers: str) -> None:
    model, criterion = make(text, name, towers=towers, dropout=0.0, attention_dropout=0.0, projection_size=20)
    other, other_criterion = copy.deepcopy(model), copy.deepcopy(criterion)
    for number, batch in enumerate(make_batches(make_batch)[:2] * 2):
        nn.ModuleList([model, other]).zero_grad()
        exact = loss_of(criterion, model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            vectors = other.encode_pair(batch.source, batch.target)
            half = loss_of(other_criterion, other, batch)
        (mine,), (theirs,) = half.terms.values(), exact.terms.values()
        mine.sum.backward()
        theirs.sum.backward()
        assert mine.sum.dtype == torch.float32 and mine.sum.isfinite()
        assert all(v.dtype == torch.float32 for v in vectors)
        for vector in vectors:
            torch.testing.assert_close(vector.norm(dim=1), torch.ones(len(batch)))
        if number or "moco" not in name:
            assert float(mine.sum.detach()) == pytest.approx(float(theirs.sum.detach()), rel=2e-2)
            assert float(mine.sum.detach()) != float(theirs.sum.detach()), "nothing was rounded"
        for one, two in zip(trained(other), trained(model), strict=True):
            assert one.dtype == one.grad.dtype == torch.float32
            slack = 0.1 * float(two.grad.abs().max()) + 0.02
            torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=slack)
        criterion.after_step(model)
        other_criterion.after_step(other)


class NoWaiting(TorchDispatchMode):
    """A context that forbids reading a tensor's values, or a size that depends on them, because that would wait for a
    GPU."""

    FORBIDDEN = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.repeat_interleave)

    def __enter__(self):
        for ask in (fast_float32_is_exact, multiplies_bfloat16):  # the first products of a process do so, and read
            ask()
        self._on_gpu = patch("xrep.kernels.pair_sweep._are_small", return_value=False)  # lengths are read on CPUs alone
        self._on_gpu.start()
        return super().__enter__()

    def __exit__(self, *error):
        self._on_gpu.stop()
        super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        waits = by_mask or func.overloadpacket in self.FORBIDDEN
        assert not waits or kwargs.get("output_size") is not None, func
        return func(*args, **kwargs)


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_a_step_does_not_wait_for_the_device(text, make_batch, name: str, towers: str) -> None:
    model, criterion = make(text, name, towers=towers, projection_size=20)
    planned = [plan(criterion, batch).to("cpu") for batch in make_batches(make_batch)]
    with NoWaiting():
        for each in planned:
            loss = criterion(model, each)
            (term,) = loss.terms.values()
            term.sum.backward()
            criterion.after_step(model)
            assert not any(metric.requires_grad for metric in loss.metrics.values())
    for ask in (lambda x: int(x.sum()), lambda x: x.nonzero(), lambda x: x[x > 1], lambda x: x.repeat_interleave(x)):
        with pytest.raises(AssertionError), NoWaiting():
            ask(torch.arange(3))


def test_percentage() -> None:
    assert float(percentage(torch.tensor([True, False, False, True, True]))) == 60
    assert float(percentage(torch.zeros(0, dtype=torch.bool))) == 0
