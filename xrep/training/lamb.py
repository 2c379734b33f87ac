"""The LAMB optimizer, which updates all tensors of a group at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LambOptimizer(torch.optim.Optimizer):
    """Algorithm 2 of You et al. 2020 (phi is the identity): each step of a matrix has the length lr * |matrix|.

    Args:
        groups: parameter groups with ``params``, ``lr``, ``weight_decay``, and ``decays``, which says whether the trust
            ratio applies; without it the step is Adam's.
        betas, eps: decay rates of the moments, and the number that is added to the denominator.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            updates = self._adam(group, parameters)
            if group["weight_decay"]:
                torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            if group["decays"]:
                weights, steps = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, updates))
                # The ratios stay on the device: reading a number in Python would wait for the GPU.
                ratios = torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
                torch._foreach_mul_(updates, list(ratios.unbind()))
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _adam(self, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """Return Adam's updates m / (sqrt(v) + eps), with the moments corrected for their start at 0: they are divided
        by 1 - beta^t, where t counts the steps of each parameter."""
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["step"] = torch.zeros(())
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        names = ("step", "exp_avg", "exp_avg_sq")
        counts, means, squares = ([self.state[p][name] for p in parameters] for name in names)
        gradients: list[Any] = [p.grad for p in parameters]
        first, second = group["betas"]
        torch._foreach_add_(counts, 1)
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
        updates = list(torch._foreach_sqrt(squares))
        torch._foreach_div_(updates, [(1 - second ** float(count)) ** 0.5 for count in counts])
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        torch._foreach_div_(updates, [1 - first ** float(count) for count in counts])
        return updates
