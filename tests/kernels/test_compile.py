"""The custom operators obey torch's rules, and torch.compile captures the kernels whole without changing results."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters
from torch.library import opcheck
from torch.utils._pytree import tree_map_only

from tests.kernels.table import KERNELS, Draw, error
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.queue_infonce import queue_infonce

pytestmark = pytest.mark.slow
OPERATORS = {
    "queue_infonce": ("_sweep", "_gradients"),
    "linear_cross_entropy": ("_sweep", "_scale"),
}


@pytest.mark.parametrize("columns", [0, 2], ids=["", "ids"])
@pytest.mark.parametrize("name", ["queue", "vocabulary"])
def test_operators_keep_the_rules(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that a kernel makes is checked, with rows that lie apart in memory and in half precision with ids."""
    calls: list[tuple[Any, list[Any]]] = []

    def noting(operator: Any, backward: bool) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            leaf = lambda x: x.detach().requires_grad_(x.requires_grad and torch.is_grad_enabled() and not backward)  # noqa: E731
            calls.append((operator, tree_map_only(Tensor, leaf, list(given))))
            return operator(*given)

        return call

    for module_name, operators in OPERATORS.items():
        module = importlib.import_module(f"xrep.kernels.{module_name}")
        for operator in operators:
            noted = noting(getattr(module, operator), operator in ("_gradients", "_scale"))
            monkeypatch.setattr(module, operator, noted)
    dtype = torch.bfloat16 if columns else torch.float32
    problem = KERNELS[name](Draw(batch=5, many=12, columns=columns, flag=bool(columns), dtype=dtype))
    apart = {key: x.t().contiguous().t() if x.dim() == 2 and columns else x for key, x in problem.inputs.items()}
    frozen = [key for key in apart if name == "vocabulary" and columns and key != "hidden"]
    leaves = {key: tensor.detach().requires_grad_(key not in frozen) for key, tensor in apart.items()}
    problem.kernel(**leaves)[0].sum().backward()
    with torch.no_grad():
        problem.kernel(**leaves)
    assert len(calls) == (5 if name == "vocabulary" and not frozen else 3)
    for operator, given in calls:
        opcheck(operator, tuple(given))


GENERATOR = torch.Generator().manual_seed(0)
QUEUE, WEIGHT = torch.randn(50, 6, generator=GENERATOR), torch.randn(30, 6, generator=GENERATOR)


def queue_loss(x: Tensor, y: Tensor, tau: Tensor, valid: int | Tensor = 40) -> Tensor:
    return queue_infonce(x, y, QUEUE, tau, valid=valid, margin=0.1).loss.mean()


def vocabulary_loss(x: Tensor, y: Tensor, tau: Tensor) -> Tensor:
    target = torch.arange(x.size(0), device=x.device) % 30
    return linear_cross_entropy(x * tau, torch.cat([y, WEIGHT]), target, label_smoothing=0.1).loss


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def leaves_of(batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    sides = [torch.randn(batch, 6, generator=generator).requires_grad_() for _ in range(2)]
    return [*sides, torch.tensor(0.3, requires_grad=True)]


@pytest.mark.parametrize("loss", [queue_loss, vocabulary_loss])
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_a_compiled_loss_is_the_same_and_batches_of_all_sizes_share_it(
    loss: Callable[..., Tensor], autocast: bool
) -> None:
    function = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for batch in (5, 7, 11)[: 1 if autocast else 3]:
        results = []
        for run in (function, loss):
            leaves = leaves_of(batch)
            if not autocast:
                for tensor in leaves[:2]:
                    torch._dynamo.mark_dynamic(tensor, 0)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found = run(*leaves)
                results.append([found.detach(), *torch.autograd.grad(found, leaves)])
        assert all(tensor.abs().sum() > 0 for tensor in results[1])
        assert all(error(mine, usual.double()) < 1e-5 for mine, usual in zip(*results, strict=True))
    assert counters["stats"]["unique_graphs"] == 1


def test_a_queue_that_fills_up_is_not_compiled_again() -> None:
    function = torch.compile(queue_loss, fullgraph=True, backend="aot_eager")
    losses = [float(function(*leaves_of(7), torch.tensor(valid)).detach()) for valid in (0, 1, 13, 50)]
    assert counters["stats"]["unique_graphs"] == 1
    assert losses == sorted(losses) and len(set(losses)) == 4
