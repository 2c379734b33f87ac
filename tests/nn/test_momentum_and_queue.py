"""Momentum encoder, queue and pooling: equation 1 in each step, a plain list of the last K vectors, and by hand."""

import copy

import pytest
import torch
from torch import nn

from tests.support.closeness import assert_near
from xrep.nn.momentum import MomentumEncoder
from xrep.nn.pooling import pool
from xrep.nn.queue import Queue


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


@pytest.mark.parametrize(
    "size, batches", [(8, [4, 4, 4]), (7, [3, 3, 3, 3, 3]), (5, [12, 1, 5, 7]), (10, [1, 2, 3]), (1, [2])], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_holds_the_last_k(size: int, batches: list[int], dtype: torch.dtype) -> None:
    queue, history = Queue(size, 3, dtype), list[tuple[float, ...]]()
    for number in batches:
        numbers = torch.arange(len(history) + 1, len(history) + 1 + number).float()
        vectors = torch.stack([numbers, -numbers, 2 * numbers], 1).requires_grad_()
        ids = torch.stack([numbers + 100, numbers + 200], 1).long()
        history += map(tuple, torch.cat([vectors.detach(), ids.float()], 1).tolist())
        queue.enqueue(vectors, ids)
        rows = torch.cat([queue.vectors[: queue.filled].float(), queue.ids[: queue.filled].float()], 1).tolist()
        assert sorted(map(tuple, rows)) == sorted(history[-size:])
        assert not queue.vectors.requires_grad and queue.vectors.dtype == dtype


def test_the_oldest_are_replaced_first_and_a_copy_goes_on_alike() -> None:
    whole, other = (nn.ModuleDict({"queue": Queue(5, 1)}) for _ in range(2))
    whole["queue"].enqueue(torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3, 2, dtype=torch.int64))
    other.load_state_dict(whole.state_dict())
    for one in (copy.deepcopy(whole), whole, other):
        queue = one["queue"]
        assert queue.filled == int(queue.count) == 3
        queue.enqueue(torch.tensor([[4.0], [5.0], [6.0]]), torch.ones(3, 2, dtype=torch.int64))
        assert queue.vectors.flatten().tolist() == [6, 2, 3, 4, 5] and queue.ids[:, 0].tolist() == [1, 0, 0, 1, 1]
        assert queue.filled == 5
    whole.load_state_dict(nn.ModuleDict({"queue": Queue(5, 1)}).state_dict())
    assert whole["queue"].filled == 0
