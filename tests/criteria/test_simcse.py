"""simcse against the plain formula in float64, on two encodings with dropout."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of, token_batch
from xrep.criteria.simcse import SimCSE
from xrep.data.batching import TokenBatch
from xrep.models.dual_encoder import DualEncoder

TAU = 0.1
SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}


def make_model(text, dropout: float = 0.2, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    return DualEncoder(DualEncoder.Config(**SMALL, **rates, **options), text).double().train()


def make_criterion(model: DualEncoder, text, **options: Any) -> SimCSE:
    return SimCSE(SimCSE.Config(temperature=TAU, **options), model, text).train()


@pytest.fixture
def batch(make_batch):
    """Return 7 pairs in which the first German sentence and an English sentence are repeated."""
    some = sentence_pairs(7)
    return make_batch([*some[:5], (some[0][0], some[5][1]), (some[6][0], some[1][1])])


def twice(side: TokenBatch) -> TokenBatch:
    return token_batch(torch.cat([side.tokens] * 2), torch.cat([side.lengths] * 2))


def plain(both: Tensor, ids: Tensor | None) -> tuple[Tensor, int]:
    """Return the sum of equation 4 of the paper over sentences, and how many sentences find themselves."""
    h, other = both.split(len(both) // 2)
    loss, found = torch.zeros((), dtype=torch.float64), 0
    for i in range(len(h)):
        scores = [h[i] @ other[j] / TAU for j in range(len(h)) if ids is None or i == j or ids[i] != ids[j]]
        right = h[i] @ other[i] / TAU
        loss = loss - torch.log(right.exp() / sum(score.exp() for score in scores))
        found += sum(bool(right <= score) for score in scores) == 1  # the sentence itself
    return loss, found


@pytest.mark.parametrize("side", ["source", "target", "both"])
@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("masked", [False, True])
def test_loss_gradient_and_accuracy(text, batch, side: str, towers: str, masked: bool) -> None:
    model = make_model(text, towers=towers)
    criterion = make_criterion(model, text, side=side, mask_equal_sentences=masked)
    torch.manual_seed(3)
    if side == "both":
        encoded = model.encode_pair(twice(batch.source), twice(batch.target))
        columns = [0, 1]
    else:
        columns = [("source", "target").index(side)]
        tower = model.tower("de" if side == "source" else "en")
        encoded = [model.encode(tower, twice(getattr(batch, side)))[0]]
    results = [
        plain(both, batch.ids[:, column] if masked else None) for both, column in zip(encoded, columns, strict=True)
    ]
    expected = sum(loss for loss, _ in results)
    gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)

    torch.manual_seed(3)
    loss = loss_of(criterion, model, batch)
    (term,) = loss.terms.values()
    term.sum.backward()
    assert sizes_of(criterion, batch) == {"simcse": 7 * len(columns)}
    torch.testing.assert_close(term.sum, expected, rtol=1e-10, atol=1e-10)
    assert float(loss.metrics["accuracy"]) == pytest.approx(100 * sum(f for _, f in results) / (7 * len(columns)))
    idle = 0
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert (parameter.grad is None) is (gradient is None), name
        if gradient is None:
            idle += 1
        else:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-9, msg=name)
    assert criterion.idle_parameters is (idle > 0) is (towers == "separate" and side != "both")


def test_dropout_makes_the_two_encodings(text, batch) -> None:
    for dropout, same in ((0.2, False), (0.0, True)):
        model = make_model(text, dropout, towers="shared")
        criterion = make_criterion(model, text)
        one, other, *_ = criterion.encode(model, plan(criterion, batch)).vectors
        assert torch.allclose(one, other, rtol=1e-9) is same
        warnings = criterion.warnings(SimpleNamespace(examples=100))
        assert [w.startswith("simcse without dropout") for w in warnings] == [True] * same


def test_equal_sentences_matter(text, batch) -> None:
    """With masks a repeated sentence has one negative less; each side is masked by its own sentences."""
    model = make_model(text, 0.0, towers="shared")
    sums = {}
    for side, masked in itertools.product(("source", "target", "both"), (False, True)):
        criterion = make_criterion(model, text, side=side, mask_equal_sentences=masked)
        sums[side, masked] = float(loss_of(criterion, model, batch).terms["simcse"].sum.detach())
    for masked in (False, True):
        assert sums["both", masked] == pytest.approx(sums["source", masked] + sums["target", masked], rel=1e-9)
    assert sums["source", True] < sums["source", False] and sums["target", True] < sums["target", False]


def test_a_batch_of_no_rows(text, batch) -> None:
    for side in ("source", "both"):
        model = make_model(text, towers="shared")
        loss = loss_of(make_criterion(model, text, side=side), model, batch.rows(0, 0))
        loss.terms["simcse"].sum.backward()
        assert float(loss.terms["simcse"].sum.detach()) == float(loss.metrics["accuracy"]) == 0
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_problems() -> None:
    assert SimCSE.Config(temperature=0.0).problems() == ["temperature must lie in [0.0001, 10000], not 0.0"]
    assert SimCSE.Config().problems() == []
