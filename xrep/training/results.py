"""The results of a step: they are added up on the device and read once, on a GPU while it computes the next step."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from xrep.criteria.criterion import Loss
from xrep.data.batch import event_on, on_device
from xrep.training.distributed import World

SMALLEST_SCALE = 2.0**-10
"""With an fp16 loss scale of at most this, gradients that overflow are an error: a lower scale would not help."""


@dataclass(frozen=True)
class Numbers:
    """The results of a step over all ranks, as they are read.

    Attributes:
        loss: value of the objective.
        norm: norm of the gradient, before clipping.
        values: terms of the objective (``loss_NAME``, if there are several) and metrics of the criterion.
        skipped: whether fp16 gradients overflowed, so that the weights were not changed.
        scale: factor of the loss against underflow; None without fp16.
        bad: parameters whose gradients are not finite.
    """

    loss: float
    norm: float
    values: dict[str, float]
    skipped: bool
    scale: float | None = None
    bad: Sequence[nn.Parameter] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and (self.skipped or math.isfinite(self.norm))


class Results:
    """The results of a step: losses and metrics of its batches, which are added up on the device, then norms.

    Args:
        sizes: size of each term, summed over all ranks and batches.

    Attributes:
        used: the parameters that have a gradient.
        norm: norm of the gradient, 0-d, on the device.
        unusable: float32 [], 1 if the loss or the gradient is not finite, else 0, on the device.
    """

    used: list[nn.Parameter]
    norm: Tensor
    unusable: Tensor

    def __init__(self, world: World, sizes: dict[str, float]) -> None:
        self.world, self._sizes = world, sizes
        self._sums: dict[str, Tensor] = {}
        """float64 [] each: ``loss``, its terms if there are several, and metrics times their numbers of rows."""
        self._rows = defaultdict[str, float](float)
        """Number of rows of each metric."""

    def add(self, loss: Loss, rows: int) -> Tensor:
        """Return the part of the objective that comes from these rows, and record it with the metrics."""
        parts = {name: term.weight * term.sum / max(self._sizes[name], 1) for name, term in loss.terms.items()}
        objective = sum(parts.values(), torch.zeros((), device=self.world.device))
        shares = {"loss": objective}
        if len(self._sizes) > 1:
            shares |= {f"loss_{name}": part for name, part in parts.items()}
        sums = {name: share.detach().double() for name, share in shares.items()}
        for name, metric in loss.metrics.items():
            count = loss.rows.get(name, rows)  # there is no mean over no rows
            sums[name] = metric.detach().double() * count if count else torch.zeros_like(sums["loss"])
            self._rows[name] += count
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        return objective

    def send(self, used: list[nn.Parameter], norms: Tensor, scale: Tensor | None) -> None:
        """Send the results of all ranks to the host, which does not wait for them.

        Args:
            used, norms: the parameters that have a gradient, and the norm of each of these gradients, which are equal
                on all ranks.
            scale: factor of the loss in fp16; None: there is none.
        """
        self.used, self.norm, self._has_scale = used, torch.linalg.vector_norm(norms), scale is not None
        rows = on_device(np.array(list(self._rows.values())), self.world.device)
        sums = torch.cat([torch.stack(list(self._sums.values())), rows])
        if self.world.size > 1:
            dist.all_reduce(sums)
        behind = [self.norm, norms] if scale is None else [self.norm, scale, norms]
        numbers = torch.cat([sums, *(each.detach().double().reshape(-1) for each in behind)])
        total = sums[0] + self.norm
        self.unusable = (total - total != 0).float()  # 0 for finite numbers, else NaN, with fewer kernels than isfinite
        self._numbers, self._event = numbers.to("cpu", non_blocking=True), event_on(numbers.device)

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The results, as soon as the device has them."""
        if self._event is not None:
            self._event.synchronize()
        numbers = iter(self._numbers.tolist())
        values = {name: next(numbers) for name in self._sums}
        for name in self._rows:
            count = next(numbers)
            values[name] = values[name] / count if count else math.nan
        norm, scale = next(numbers), next(numbers) if self._has_scale else None
        overflow = scale is not None and not math.isfinite(norm) and scale > SMALLEST_SCALE
        bad = [p for p, own in zip(self.used, numbers, strict=True) if not math.isfinite(own)]
        return Numbers(values.pop("loss"), norm, values, overflow, scale, bad)
