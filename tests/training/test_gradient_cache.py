"""A batch that is encoded in pieces has the same gradient as the whole batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.corpus import sentence_pairs
from tests.support.planning import plan
from tests.training.pieces import KINDS, Setting, assert_near, batches_of, direction, step
from xrep.kernels.precision import multiplies_bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_does_not_depend_on_the_pieces(text: Any, batches: list[Any], kind: str) -> None:
    """Two steps of two batches in float64: gradients, weights and queues, loss and metrics."""
    given = batches_of(kind, batches)
    whole = step(Setting(kind, rows=None), text, given)
    for rows in (1, 3):
        mine = step(Setting(kind, rows=rows), text, given)
        assert_near(mine.gradient, whole.gradient, 1e-10)
        for name, tensor in whole.state.items():
            torch.testing.assert_close(mine.state[name], tensor, rtol=1e-9, atol=1e-9, msg=name)
        assert mine.numbers.values == pytest.approx(whole.numbers.values, rel=1e-6)
        assert mine.numbers.loss == pytest.approx(whole.numbers.loss, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simcse", "everything", "parts"])
def test_dropout_of_both_passes_is_the_same(text: Any, batches: list[Any], kind: str) -> None:
    """The gradient is the slope of the loss for the same random numbers. The queue is empty in the first step."""
    setting, given, away = Setting(kind, dropout=0.2), batches_of(kind, batches), 1e-5
    here, below, above = (step(setting, text, given, moved=moved) for moved in (0.0, -away, away))
    trained = [p for p in setting.make(text).parameters() if p.requires_grad]
    way = torch.cat([part.flatten() for part in direction(trained)])
    slope = (above.numbers.loss - below.numbers.loss) / (2 * away)
    assert float(here.gradient.nan_to_num() @ way) == pytest.approx(slope, rel=1e-5)
    assert step(setting, text, given, steps=1).numbers.loss != pytest.approx(here.numbers.loss, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["everything", "dual_moco"])
def test_pieces_in_bf16(text: Any, batches: list[Any], kind: str) -> None:
    half = Setting(kind, dtype=torch.float32, precision="bf16")
    mine, whole = (step(each, text, batches_of(kind, batches)) for each in (half, replace(half, rows=None)))
    assert_near(mine.gradient, whole.gradient, 0.05)
    full = step(Setting(kind, dtype=torch.float32), text, batches_of(kind, batches))
    if multiplies_bfloat16():  # other processors compute the products in float32
        assert not torch.allclose(mine.gradient.nan_to_num(), full.gradient.nan_to_num(), rtol=1e-5)


def test_random_numbers_go_on_behind_those_of_the_batch(text: Any, batches: list[Any]) -> None:
    """The second pass draws none."""
    setting = Setting("translation_ranking", dropout=0.2)
    step(setting, text, batches, steps=1)
    found, module = torch.get_rng_state(), setting.make(text)
    torch.manual_seed(7)
    for batch in batches:
        module(plan(module.criterion, batch))
    assert torch.equal(found, torch.get_rng_state())


@pytest.mark.parametrize("kind", KINDS)
def test_forward_in_pieces_is_forward(text: Any, batches: list[Any], kind: str) -> None:
    modules = [Setting(kind, rows=rows).make(text) for rows in (None, 3)]
    whole, pieces = (module(plan(module.criterion, batches_of(kind, batches)[0]))[0] for module in modules)
    assert whole.terms.keys() == pieces.terms.keys() and whole.metrics.keys() == pieces.metrics.keys()
    for name, term in whole.terms.items():
        torch.testing.assert_close(term.sum, pieces.terms[name].sum, rtol=1e-10, atol=1e-10)
        assert term.weight == pieces.terms[name].weight
    for name, metric in whole.metrics.items():
        torch.testing.assert_close(metric.double(), pieces.metrics[name].double(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_activations_of_one_piece_are_held(text: Any, make_batch: Any) -> None:
    now, peaks = 0, list[int]()

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now
            # Detached, because an output that its own graph holds is never freed.
            self.tensor, self.bytes = tensor.detach(), tensor.numel() * tensor.element_size()
            now += self.bytes
            peaks[-1] = max(peaks[-1], now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.bytes

    batch = make_batch([(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(64))])
    for rows in (None, 8):
        peaks.append(0)
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            step(Setting("dual_moco", dropout=0.1, rows=rows), text, [batch], steps=1)
        assert now == 0
    assert peaks[1] < 0.3 * peaks[0]
