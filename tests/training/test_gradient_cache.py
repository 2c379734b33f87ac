"""A batch that is encoded in pieces has the same gradient as the whole batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.corpus import sentence_pairs
from tests.support.planning import plan
from tests.training.pieces import KINDS, Setting, assert_near, batches_of, expected, step

TOLERANCE = {torch.float32: 64 * torch.finfo(torch.float32).eps, torch.float64: 1e-10}
"""Largest error of a gradient, relative to its largest number: that of sums in another order over some dozen subwords,
and in float64 of the second step."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_does_not_depend_on_the_pieces(text: Any, batches: list[Any], kind: str) -> None:
    """Two steps of two batches in float64: gradients, weights and queues, loss and metrics."""
    given = batches_of(kind, batches)
    whole = step(Setting(kind, rows=None), text, given)
    for rows in (1, 3):
        mine = step(Setting(kind, rows=rows), text, given)
        assert_near(mine.gradient, whole.gradient, TOLERANCE[torch.float64])
        for name, tensor in whole.state.items():
            torch.testing.assert_close(mine.state[name], tensor, rtol=1e-9, atol=1e-9, msg=name)
        assert mine.outcome.values == pytest.approx(whole.outcome.values, rel=1e-6)
        assert mine.outcome.loss == pytest.approx(whole.outcome.loss, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dtype", "precision"),
    [
        *((kind, torch.float64, "float32") for kind in KINDS),
        ("everything", torch.float32, "float32"),
        ("dual_moco", torch.float32, "bf16"),
        ("parts", torch.float32, "bf16"),
    ],
)
def test_dropout_is_that_of_one_graph(text: Any, batches: list[Any], kind: str, dtype: Any, precision: str) -> None:
    """Random numbers continue alike. There are two steps in float64 and with a queue, which is empty in the first;
    otherwise there is one, because rounding changes the weights of the second."""
    setting = Setting(kind, dropout=0.2, dtype=dtype, precision=precision)
    given, steps = batches_of(kind, batches), 2 if dtype == torch.float64 or kind == "dual_moco" else 1
    mine, theirs = (run(setting, text, given, steps=steps) for run in (step, expected))
    assert_near(mine.gradient, theirs.gradient, TOLERANCE[dtype])
    assert mine.outcome.loss == pytest.approx(theirs.outcome.loss, rel=TOLERANCE[dtype])
    assert torch.equal(mine.random, theirs.random)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_in_pieces_is_forward(text: Any, batches: list[Any], kind: str) -> None:
    modules = [Setting(kind, rows=rows).make(text) for rows in (None, 3)]
    whole, pieces = (module(plan(module.criterion, batches_of(kind, batches)[0])) for module in modules)
    assert whole.terms.keys() == pieces.terms.keys() and whole.metrics.keys() == pieces.metrics.keys()
    for name, term in whole.terms.items():
        torch.testing.assert_close(term.sum, pieces.terms[name].sum, rtol=1e-10, atol=1e-10)
        assert term.weight == pieces.terms[name].weight
    for name, metric in whole.metrics.items():
        torch.testing.assert_close(metric.double(), pieces.metrics[name].double(), rtol=1e-6, atol=1e-6)


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


def test_keys_are_encoded_once_and_in_pieces(text: Any, batches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rows: dict[str, list[int]] = {"queries": [], "keys": []}
    make = Setting.make

    def watched(setting: Setting, text: Any) -> Any:
        module = make(setting, text)
        for name, model in (("queries", module.model), ("keys", module.criterion.momentum_encoder.model)):
            note = lambda _, given, __, name=name: rows[name].append(len(given[0]))  # noqa: E731
            model.encoders["shared"].register_forward_hook(note)
        return module

    monkeypatch.setattr(Setting, "make", watched)
    step(Setting("dual_moco"), text, [replace(batches[0], negatives=None)], steps=1)
    assert rows == {"queries": [6, 6, 4] * 2, "keys": [6, 6, 4]}, "both sides, 3, 3 and 2 pairs"
