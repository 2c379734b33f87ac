"""From gradients to weights: scaling, clipping, low-rank changes, and the optimizer or this rank's share of it."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from xrep.training.distributed import World
from xrep.training.lora import LowRank
from xrep.training.results import Results
from xrep.training.row_adamw import RowAdamW
from xrep.training.sharding import local_optimizer


class Update:
    """Changes the weights by the gradient of a step, unless a number of the step is not finite.

    Args:
        clip_norm: largest norm of the gradient; 0 disables clipping.
        dtype: type in which the steps compute. In float16 the loss is scaled, so that small gradients do not vanish.
        lora: low-rank changes of weights, which the optimizer trains in place of the weights; None: there are none.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        world: World,
        *,
        clip_norm: float = 0.0,
        dtype: torch.dtype = torch.float32,
        lora: LowRank | None = None,
    ) -> None:
        self.optimizer, self.world, self.dtype, self.lora = optimizer, world, dtype, lora
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=dtype == torch.float16)
        self._limit = clip_norm or math.inf

    @property
    def late(self) -> bool:
        """Whether the results of a step are read while the device is at the next one. The optimizer itself leaves the
        weights unchanged then if a number is not finite, which fused ones can."""
        return self.world.device.type == "cuda" and bool(local_optimizer(self.optimizer).defaults.get("fused"))

    def complete(self, results: Results) -> None:
        """Complete the gradient after the last backward pass, and send its results."""
        if self.lora is not None:
            self.lora.collect()
        self.scaler.unscale_(self.optimizer)
        used = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [_numbers_of(p) for p in used]
        norms = torch.stack(torch._foreach_norm(gradients)) if gradients else torch.zeros(0, device=self.world.device)
        scale = self.scaler.scale(torch.ones((), device=norms.device)) if self.scaler.is_enabled() else None
        results.send(used, norms, scale)

    def __call__(self, results: Results, rate: float) -> bool:
        """Change the weights; return False if it is known already that a number is not finite.

        Args:
            rate: learning rate of the parameters without a factor of their own.
        """
        if not self.late and not results.numbers.finite:
            return False
        self._clip(results)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        with nullcontext() if self.lora is None else self.lora.changing():
            if self.late:  # as GradScaler.step does, which knows only about float16
                local = local_optimizer(self.optimizer)
                local.found_inf = results.unusable  # pyright: ignore[reportAttributeAccessIssue]
                self.optimizer.step()
                del local.found_inf  # pyright: ignore[reportAttributeAccessIssue]
            elif not results.numbers.skipped:
                self.optimizer.step()
        self.scaler.update()
        return True

    def _clip(self, results: Results) -> None:
        # A norm that is not finite would make every gradient NaN.
        norm, local = results.norm.nan_to_num(0.0, 0.0), local_optimizer(self.optimizer)
        if isinstance(local, RowAdamW) and norm.device.type == "cpu" and norm.dtype == torch.float32:
            # It divides the gradients when it reads them, so that they are not read once more.
            excess = (norm + 1e-6) / self._limit
            local.grad_scale = excess if excess > 1 else None
        else:
            torch.nn.utils.clip_grads_with_norm_(results.used, self._limit, norm)


def _numbers_of(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient: all, or those of the rows that a sparse one has."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad.values()
