"""A check of a few seconds that the kernels do on this machine what their formulas say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.fused import TOLERANCE as GPU_TOLERANCE
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.queue_infonce import WHOLE, queue_infonce

CPU_TOLERANCE = 1e-4
"""Largest difference, as a share of the largest number, on a CPU, which computes float32 as such."""
TEMPERATURE = 0.05


def tolerance(device: torch.device) -> float:
    """Return the largest difference, as a share of the largest number, that is due to rounding on a device."""
    return CPU_TOLERANCE if device.type == "cpu" else GPU_TOLERANCE


def kernel_errors(device: torch.device) -> dict[str, float]:
    """Return by how much the losses and gradients of each kernel in float32 on a device differ from the formula in
    float64 on the CPU, as a share of the largest number."""
    generator = torch.Generator().manual_seed(1)

    def draw(rows: int, size: int = 64) -> Tensor:
        return torch.randn(rows, size, generator=generator, dtype=torch.float64)

    def unit(rows: int) -> Tensor:
        return F.normalize(draw(rows), dim=-1)

    target = torch.randint(20_000, (96,), generator=generator)
    queue = [unit(64), unit(64), unit(2 * WHOLE[1])]  # so long that it is read in blocks
    words = [draw(96), draw(20_000) / 8]
    return {
        "queue InfoNCE": _error(
            device, _queue, lambda x, y, queue: queue_infonce(x, y, queue, TEMPERATURE).loss, queue
        ),
        "in-batch InfoNCE": _error(
            device, _in_batch, lambda x, y: sum(inbatch_infonce(x, y, TEMPERATURE)[:2], x.new_zeros(())), queue[:2]
        ),
        "linear cross-entropy": _error(
            device,
            lambda hidden, weight: F.cross_entropy(hidden @ weight.t(), target, reduction="sum"),
            lambda hidden, weight: linear_cross_entropy(hidden, weight, target.to(device)).loss,
            words,
        ),
    }


def _queue(x: Tensor, y: Tensor, queue: Tensor) -> Tensor:
    positive = (x * y).sum(1, keepdim=True)
    return F.cross_entropy(
        torch.cat([positive, x @ queue.t()], 1) / TEMPERATURE, torch.zeros(len(x), dtype=torch.long), reduction="none"
    )


def _in_batch(x: Tensor, y: Tensor) -> Tensor:
    logits, own = x @ y.t() / TEMPERATURE, torch.arange(len(x))
    return sum((F.cross_entropy(each, own, reduction="none") for each in (logits, logits.t())), x.new_zeros(()))


def _error(
    device: torch.device, formula: Callable[..., Tensor], ours: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> float:
    exact = _with_gradients(formula, inputs)
    found = _with_gradients(ours, [each.to(device, torch.float32) for each in inputs])
    return max(
        float((a.cpu().double() - b).abs().max() / b.abs().max().clamp(min=1e-12))
        for a, b in zip(found, exact, strict=True)
    )


def _with_gradients(loss: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the losses, and the gradients of their sum for the first two inputs."""
    given = [each.detach().requires_grad_(number < 2) for number, each in enumerate(inputs)]
    losses = loss(*given)
    return [losses.detach(), *torch.autograd.grad(losses.sum(), given[:2])]
