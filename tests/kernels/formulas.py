"""The formulas of the kernels in plain torch, with everything materialised, in any precision."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import profile

from tests.support.closeness import error

Results = dict[str, Tensor]

TOLERANCES = {torch.float32: 5e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Tolerance by which an error may exceed that of plain torch in the same type."""


def queue_infonce(query: Tensor, positive: Tensor, queue: Tensor, tau: Tensor, same: Tensor, margin: float) -> Tensor:
    """Return -log exp((q·k⁺ - m)/τ) / Σ exp(.), [B], in the type of its inputs. ``same``: bool [B, K], no negatives."""
    negatives = (query @ queue.T / tau).masked_fill(same, float("-inf"))
    positives = ((query * positive).sum(1, keepdim=True) - margin) / tau
    return -torch.cat([positives, negatives], 1).log_softmax(1)[:, 0]


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, ignore_index: int
) -> Tensor:
    """Return the sum over the tokens; ``bias`` is [V], or [N, V]."""
    one = bias is not None and bias.dim() == 2
    logits = F.linear(hidden, weight) + bias if one else F.linear(hidden, weight, bias)
    return F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing, ignore_index=ignore_index)


def differentiate(
    function: Callable[..., Tensor], inputs: Mapping[str, Tensor], factor: Tensor, frozen: Collection[str] = ()
) -> Results:
    """Return the loss, and the gradients of Σ factor · loss for the inputs that are not frozen."""
    leaves = {name: tensor.clone().requires_grad_(name not in frozen) for name, tensor in inputs.items()}
    loss = function(**leaves)
    (loss * factor.to(loss.dtype)).sum().backward()
    assert all(leaves[name].grad is None for name in frozen)
    return {"loss": loss.detach(), **{name: leaf.grad for name, leaf in leaves.items() if name not in frozen}}


def in_type(inputs: Mapping[str, Tensor], dtype: torch.dtype) -> Results:
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def assert_as_exact(
    found: Results, same_type: Results, single: Results, exact: Results, smallest: Mapping[str, float] | None = None
) -> None:
    """Check errors: at most those of torch in the same type plus a tolerance, and 1.5 times those in float32 plus 5e-6.

    Results that are rounded to half precision at the end may also differ by that rounding.

    Args:
        smallest: The least divisor of ``error`` if it is not 1e-3, because sums of large terms may cancel.
    """
    for name, truth in exact.items():
        units, dtype = (smallest or {}).get(name, 1e-3), found[name].dtype
        mine, plain, sharp = (error(results[name], truth, units) for results in (found, same_type, single))
        sharp = 1.5 * sharp + 5e-6 + (0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2)
        assert mine <= sharp, f"{name}: {mine} > {sharp}"
        assert not plain < float("inf") or mine <= plain + TOLERANCES[dtype], f"{name}: {mine} > {plain}"


def largest_allocation(function: Callable[[], object]) -> int:
    """Records the bytes of the largest tensor that is made, also inside of custom operators."""
    with profile(profile_memory=True) as profiler:
        function()
    return max(event.self_cpu_memory_usage for event in profiler.events())
