"""The results of a step: they are added up on the device and read once, on a GPU while it computes the next step."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from xrep.criteria.criterion import Loss
from xrep.data.batching import event_on, on_device
from xrep.training.distributed import World

SMALLEST_SCALE = 2.0**-10
"""With an fp16 loss scale of at most this, gradients that overflow are an error: a lower scale would not help."""


@dataclass(frozen=True)
class Outcome:
    """The results of a step, over all ranks.

    Attributes:
        loss: value of the objective.
        norm: norm of the gradient, before clipping.
        values: terms of the objective (``loss_NAME``, if there are several) and metrics of the criterion.
        skipped: whether fp16 gradients overflowed, so that the weights were not changed.
        scale: factor of the loss against underflow, 1 without fp16.
        bad: parameters whose gradients are not finite.
    """

    loss: float
    norm: float
    values: dict[str, float]
    skipped: bool
    scale: float = 1.0
    bad: Sequence[nn.Parameter] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and (self.skipped or math.isfinite(self.norm))


class Results:
    """The numbers of a step, on their way from the device to the host.

    Args:
        names, counted: names of the sums, and of those that are means over numbers of rows.
        sums: the sums over all ranks, that of the loss first, then the numbers of rows.
        norm, norms: norms of the gradient and of its part for each of the ``trained`` parameters.
        scale: factor of the loss in fp16.

    Attributes:
        unusable: float32 [], 1 if the loss or the gradient is not finite, else 0, on the device.
    """

    def __init__(
        self,
        names: list[str],
        counted: list[str],
        sums: Tensor,
        norm: Tensor,
        scale: Tensor | None,
        norms: Tensor,
        trained: list[nn.Parameter],
    ) -> None:
        self._names, self._counted, self._trained, self._has_scale = names, counted, trained, scale is not None
        scales = [] if scale is None else [scale]
        numbers = torch.cat([sums, *(each.detach().double().reshape(-1) for each in (norm, *scales, norms))])
        total = sums[0] + norm
        self.unusable = (total - total != 0).float()  # 0 for finite numbers, else NaN, with fewer kernels than isfinite
        self._numbers, self._event = numbers.to("cpu", non_blocking=True), event_on(numbers.device)

    @functools.cached_property
    def outcome(self) -> Outcome:
        """The results, as soon as the device has them."""
        if self._event is not None:
            self._event.synchronize()
        numbers = self._numbers.tolist()
        values = dict(zip(self._names, numbers, strict=False))
        del numbers[: len(values)]
        for name in self._counted:
            count = numbers.pop(0)
            values[name] = values[name] / count if count else math.nan
        norm, scale = numbers.pop(0), numbers.pop(0) if self._has_scale else 1.0
        overflow = self._has_scale and not math.isfinite(norm) and scale > SMALLEST_SCALE
        bad = [p for p, own in zip(self._trained, numbers, strict=True) if not math.isfinite(own)]
        return Outcome(values.pop("loss"), norm, values, overflow, scale, bad)


class Tally:
    """Losses and metrics of a step's batches, kept on the device.

    Args:
        sizes: size of each term, summed over all ranks and batches.
    """

    def __init__(self, world: World, sizes: dict[str, float]) -> None:
        self.world, self.sizes = world, sizes
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, float] = {}

    def add(self, loss: Loss, rows: int) -> Tensor:
        """Return the part of the objective that comes from these rows, and record it with the metrics."""
        parts = {name: term.weight * term.sum / max(self.sizes[name], 1) for name, term in loss.terms.items()}
        objective = sum(parts.values(), torch.zeros((), device=self.world.device))
        shares = {"loss": objective}
        if len(self.sizes) > 1:
            shares |= {f"loss_{name}": part for name, part in parts.items()}
        for name, share in shares.items():
            self._sums[name] = self._sums.get(name, 0.0) + share.detach().double()
        for name, metric in loss.metrics.items():
            count = loss.rows.get(name, rows)  # there is no mean over no rows
            weighed = metric.detach().double() * count if count else torch.zeros_like(objective, dtype=torch.float64)
            self._sums[name] = self._sums.get(name, 0.0) + weighed
            self._counts[name] = self._counts.get(name, 0.0) + count
        return objective

    def results(
        self, norm: Tensor, norms: Tensor, trained: list[nn.Parameter], scaler: torch.amp.GradScaler
    ) -> Results:
        """Return the results of the step.

        Args:
            norm, norms: norms of the gradient and of its part for each of the ``trained`` parameters.
        """
        counts = on_device(np.array(list(self._counts.values())), self.world.device)
        sums = torch.cat([torch.stack(list(self._sums.values())), counts])
        if self.world.size > 1:
            dist.all_reduce(sums)
        scale = scaler.scale(torch.ones_like(norm)) if scaler.is_enabled() else None
        return Results(list(self._sums), list(self._counts), sums, norm, scale, norms, trained)
