"""The momentum encoder against equation 1 in each step, and pooling by hand."""

import pytest
import torch
from torch import nn

from tests.support.closeness import assert_near
from xrep.nn.momentum import MomentumEncoder
from xrep.nn.pooling import pool


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


@pytest.mark.parametrize("momentum", [0.9, 0.3, 1.0, 0.0])
def test_equation_1(momentum: float) -> None:
    model = make_model()
    encoder = MomentumEncoder(model, momentum, dropout=True)
    expected = [p.detach().double() for p in model.parameters()]
    for step in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
            model[1].running_mean += step
        encoder.update(model)
        pairs = zip(expected, model.parameters(), strict=True)
        expected = [momentum * mine + (1 - momentum) * base.double() for mine, base in pairs]
        for mine, theirs in zip(encoder.model.parameters(), expected, strict=True):
            assert_near(mine, theirs, 2e-6)
        assert torch.equal(encoder.model[1].running_mean, model[1].running_mean)
    with torch.no_grad():
        model[0].weight.zero_()
    assert encoder.model[0].weight.any(), "it is a copy"
    assert not any(p.requires_grad for p in encoder.parameters()) and all(p.requires_grad for p in model.parameters())


def test_pooling_by_hand() -> None:
    tokens = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[-1.0, 5.0], [float("nan"), 7.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert pool(tokens, mask, "mean").tolist() == [[2.0, -3.0], [-1.0, 5.0]]
    assert pool(tokens, mask, "max").tolist() == [[3.0, -2.0], [-1.0, 5.0]]
    assert pool(tokens, mask, "cls").tolist() == [[1.0, -4.0], [-1.0, 5.0]]
