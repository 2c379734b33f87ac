"""The custom operators obey torch's rules, and torch.compile captures the kernels whole without changing results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters
from torch.library import opcheck

from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.queue_infonce import queue_infonce

LAYOUTS = ["rows together", "rows apart"]


class Maker:
    """Makes random tensors whose rows are contiguous in memory or not."""

    def __init__(self, layout: str = LAYOUTS[0], dtype: torch.dtype = torch.float32) -> None:
        self.layout, self.dtype, self.generator = layout, dtype, torch.Generator().manual_seed(0)

    def matrix(self, rows: int, size: int, *, learnable: bool = True) -> Tensor:
        values = torch.randn(rows, size, generator=self.generator).to(self.dtype)
        if self.layout == "rows apart":
            values = values.t().contiguous().t()
        return values.requires_grad_(learnable)

    def vector(self, size: int) -> Tensor:
        return torch.rand(size, generator=self.generator) + 0.1

    def ids(self, rows: int) -> Tensor:
        return torch.randint(4, (rows, 2), generator=self.generator)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operators_of_queue_infonce_keep_the_rules(layout: str, dtype: torch.dtype) -> None:
    make = Maker(layout, dtype)
    query, positive, queue = make.matrix(4, 6), make.matrix(4, 6), make.matrix(9, 6, learnable=False)
    tau, filled = torch.tensor(0.2, requires_grad=True), torch.tensor(7)
    for ids in ((None, None), (make.ids(4), make.ids(9))):
        opcheck(torch.ops.xrep.queue_infonce, (query, positive, queue, tau, filled, *ids, 0.1, torch.float32, True))
    without = [tensor.detach() for tensor in (query, positive, queue, tau)]
    opcheck(torch.ops.xrep.queue_infonce, (*without, filled, None, None, 0.0, torch.float32, False))
    mixture, rows = Maker(dtype=torch.float32).matrix(4, 6, learnable=False), [make.vector(4) for _ in range(3)]
    inputs = (rows[0], *without[:2], without[3], mixture, *rows[1:])
    opcheck(torch.ops.xrep.queue_infonce_backward, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wanted", list(itertools.product([True, False], repeat=3)), ids=str)
def test_operators_of_linear_cross_entropy_keep_the_rules(layout: str, wanted: tuple[bool, ...]) -> None:
    make = Maker(layout)
    hidden, weight = make.matrix(5, 6, learnable=wanted[0]), make.matrix(7, 6, learnable=wanted[1])
    target = torch.tensor([0, 1, -100, 3, 6])
    bias = make.vector(7).requires_grad_(wanted[2])
    opcheck(torch.ops.xrep.linear_cross_entropy, (hidden, weight, target, bias, None, None, 0.1, -100, *wanted))
    biases, groups = make.matrix(2, 7, learnable=wanted[2]), torch.tensor([0, 0, 1, 1, 0])
    weights = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0])
    for some in (None, weights):
        given = (hidden, weight, target, biases, groups, some, 0.1, -100, *wanted)
        opcheck(torch.ops.xrep.linear_cross_entropy, given)
    if not wanted[2]:
        opcheck(torch.ops.xrep.linear_cross_entropy, (hidden, weight, target, None, None, None, 0.0, -100, *wanted))
    like = hidden.detach().bfloat16()
    opcheck(torch.ops.xrep.linear_cross_entropy_backward, (hidden.detach().contiguous(), torch.tensor(2.0), like))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["rows", "rows and columns", "hard"])
def test_operators_of_negatives_keep_the_rules(layout: str, kind: str) -> None:
    make = Maker(layout)
    rows, columns, tau = make.matrix(4, 6), make.matrix(5, 6), torch.tensor(0.2, requires_grad=True)
    hard = [make.vector(size) for size in (4, 5, 4)] + [torch.tensor(0.5)] if kind == "hard" else []
    for tensor in hard[:2]:
        tensor.requires_grad_()
    column_shift = make.vector(5) if kind == "rows and columns" else None
    excluded = torch.tensor([[0, 1], [1, 2], [4, 4], [2, 0]])
    for ids, keep in (([], False), ([make.ids(4), make.ids(5)], True)):
        inputs = (rows, columns, tau, make.vector(4), column_shift, excluded, ids, hard, torch.float32, keep)
        opcheck(torch.ops.xrep.negatives, inputs)
        statistics = [tensor.detach() for tensor in torch.ops.xrep.negatives(*inputs)[5:]]
        gradients = (make.vector(4), make.vector(0 if column_shift is None else 5))
        detached = [tensor.detach() for tensor in (rows, columns, tau)]
        rest = (excluded, ids, [tensor.detach() for tensor in hard], torch.float32, True)
        opcheck(torch.ops.xrep.negatives_backward, (*gradients, statistics, *detached, *rest))


QUEUE = Maker().matrix(50, 6, learnable=False)
WEIGHT = Maker().matrix(30, 6, learnable=False)


def queue_loss(x: Tensor, y: Tensor, tau: Tensor, valid: int | Tensor = 40) -> Tensor:
    return queue_infonce(x, y, QUEUE, tau, valid=valid, margin=0.1).loss.mean()


def inbatch_loss(x: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    result = inbatch_infonce(x, y, tau, margin=0.1)
    return (result.forward + 2 * result.backward).mean()


def hard_loss(x: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    result = hard_infonce(x, y, tau, exponent=0.5)
    return (result.forward + 2 * result.backward).mean()


def vocabulary_loss(x: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    target = torch.arange(x.size(0), device=x.device) % 30
    return linear_cross_entropy(x * tau, torch.cat([y, WEIGHT]), target, label_smoothing=0.1).loss


LOSSES = [queue_loss, inbatch_loss, hard_loss, vocabulary_loss]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def leaves(batch: int = 7) -> list[Tensor]:
    make = Maker()
    return [make.matrix(batch, 6), make.matrix(batch, 6), torch.tensor(0.3, requires_grad=True)]


def differentiate(function: Callable[..., Tensor], batch: int = 7) -> list[Tensor]:
    inputs = leaves(batch)
    loss = function(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, inputs)]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_a_compiled_loss_is_the_same(loss: Callable[..., Tensor], autocast: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext():
        expected, found = differentiate(loss), differentiate(compiled(loss))
    assert all(tensor.abs().sum() > 0 for tensor in expected)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_batches_of_all_sizes_share_one_compilation(loss: Callable[..., Tensor]) -> None:
    function = compiled(loss)
    for batch in (5, 7, 11):
        inputs = leaves(batch)
        for tensor in inputs[:2]:
            torch._dynamo.mark_dynamic(tensor, 0)
        found = [*torch.autograd.grad(function(*inputs), inputs)]
        torch.testing.assert_close(found, differentiate(loss, batch)[1:], rtol=1e-6, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 1


def test_a_queue_that_fills_up_is_not_compiled_again() -> None:
    function = compiled(queue_loss)
    losses = [float(function(*leaves(), torch.tensor(valid)).detach()) for valid in (0, 1, 13, 50)]
    assert counters["stats"]["unique_graphs"] == 1
    assert losses == sorted(losses) and len(set(losses)) == 4
