"""Products that read half precision, as those of GPUs do under autocast, give the losses and gradients of float32."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels import chunked_steps
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.queue_infonce import queue_infonce
from xrep.kernels.triplet_infonce import triplet_infonce

QUEUE, PAIRS, SWEEP = [
    importlib.import_module(f"xrep.kernels.{n}") for n in ("queue_infonce", "pairwise", "pair_sweep")
]
IDS = torch.arange(24).unsqueeze(1) // 2
LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "queue": lambda x, y, z: queue_infonce(x, y, z.detach(), 0.05).loss,
    "queue, masked": lambda x, y, z: queue_infonce(x, y, z.detach(), 0.05, query_ids=IDS, queue_ids=IDS + 1).loss,
    "batch": lambda x, y, z: sum(inbatch_infonce(x, y, 0.05)[:2], start=torch.zeros(())),
    "batch, masked": lambda x, y, z: inbatch_infonce(x, y, 0.05, ids=IDS).forward,
    "hard": lambda x, y, z: hard_infonce(3 * x, 2 * y, 0.5, exponent=0.8).forward,
    "triplets": lambda x, y, z: triplet_infonce(x, y, z, 0.05).loss,
}


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product that a GPU computes of operands of half precision."""
    assert a.dtype == b.dtype == torch.bfloat16
    found = a.float() @ b.float()
    return found if out is None else out.copy_(found)


def losses_and_gradients(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(24, 32, generator=generator), dim=1)
    y, z = (F.normalize(x + 0.3 * torch.randn(24, 32, generator=generator), dim=1) for _ in range(2))
    given = [side.requires_grad_() for side in (x, y, z)]
    found = loss(*given)
    gradients = torch.autograd.grad(found.sum(), given, allow_unused=True)
    return [found.detach(), *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("kept", [0, chunked_steps.KEPT_PAIRS])
@pytest.mark.parametrize("name", LOSSES)
def test_half_operands(name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = losses_and_gradients(LOSSES[name])
    monkeypatch.setattr(chunked_steps, "KEPT_PAIRS", kept)
    for module in (QUEUE, PAIRS):
        monkeypatch.setattr(module, "operand_dtype", lambda tensor: torch.bfloat16)
    for module in (QUEUE, SWEEP):
        monkeypatch.setattr(module, "multiply", product)
        monkeypatch.setattr(module, "multiply_add", lambda total, a, b: total.add_(product(a, b)))
    for found, exact in zip(losses_and_gradients(LOSSES[name]), expected, strict=True):
        assert (found - exact).norm() < 0.02 * exact.norm()
        assert not torch.equal(found, exact)
