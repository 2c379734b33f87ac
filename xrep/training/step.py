"""One optimizer step over the batches of all ranks: forward, backward, clip, update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from xrep.criteria.contrastive import ContrastiveCriterion
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.errors import UserError
from xrep.kernels.processor import multiplies_bfloat16
from xrep.memory import check_move
from xrep.models.model import Model
from xrep.nn.half import weights_cast_once
from xrep.precision import TrainingPrecision, type_of
from xrep.registry import check_returned
from xrep.training.distributed import World
from xrep.training.freezing import Freezing
from xrep.training.gradient_cache import GradientCache
from xrep.training.lora import LowRank

_SYNC_BUFFERS = next(  # renamed in torch 2.13
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
SMALLEST_SCALE = 2.0**-10
"""With an fp16 loss scale of at most this, gradients that overflow are an error: a lower scale would not help."""


R = TypeVar("R")


def type_on(device: torch.device, precision: TrainingPrecision) -> torch.dtype:
    """Return the type in which a device trains if ``precision`` was asked for.

    Devices that would have to emulate bfloat16 products do not train in it by themselves, and CPUs not even if asked
    to: float32 is many times faster there and more exact.
    """
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if fast else "float32"
    wanted = type_of(precision, device.type)
    emulated = wanted == torch.bfloat16 and device.type == "cpu" and not multiplies_bfloat16()
    return torch.float32 if emulated else wanted


def _loss(criterion: Criterion, model: nn.Module, planned: Planned) -> Loss:
    return criterion(model, planned)


class TrainingModule(nn.Module):
    """Model and criterion side by side, as one module for the distributed engine."""

    def __init__(self, model: Model, criterion: Criterion) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion

    def moved_to(self, device: torch.device) -> TrainingModule:
        """Move this module to a device and return it, or raise a UserError if the device cannot hold it."""
        cure = "choose a smaller model, lower `queue_size`, or set `device` to cpu"
        check_move(self, str(device), gradients=True, cure=cure)
        return self.to(device)

    def forward(self, planned: Planned, call: Callable[[Any, Any, Planned], R] = _loss) -> R:
        """Return the result of ``call`` with criterion, model and planned batch; by default the loss."""
        return call(self.criterion, self.model, planned)


@dataclass(frozen=True)
class Outcome:
    """The results of a step, over all ranks.

    Attributes:
        loss: value of the objective.
        norm: norm of the gradient, before clipping.
        values: terms of the objective (``loss_NAME``, if there are several) and metrics of the criterion.
        skipped: whether fp16 gradients overflowed, so that the weights were not changed.
    """

    loss: float
    norm: float
    values: dict[str, float]
    skipped: bool

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and (self.skipped or math.isfinite(self.norm))


class Engine:
    """Runs steps of one module with one optimizer.

    The objective of a step is described in ``Loss``. DDP averages gradients while they are computed, only on the last
    batch of a step. Because it averages over the ranks, each rank multiplies its objective by their number.

    Args:
        precision: bfloat16 and float16 compute products in half precision; weights stay float32.
        clip_norm: largest norm of the gradient; 0 disables clipping.
        lora: low-rank changes of weights, which the optimizer trains in place of the weights; None: there are none.

    Attributes:
        precision: name of the type in which the steps compute (``type_on``).
    """

    def __init__(
        self,
        module: TrainingModule,
        optimizer: torch.optim.Optimizer,
        freezing: Freezing,
        world: World,
        precision: TrainingPrecision,
        clip_norm: float,
        lora: LowRank | None = None,
    ) -> None:
        self.lora = lora
        self.module, self.optimizer, self.freezing, self.world = module, optimizer, freezing, world
        self.limit, chosen = clip_norm or math.inf, type_on(world.device, precision)
        self.precision, self._half = str(chosen).removeprefix("torch."), None if chosen == torch.float32 else chosen
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=chosen == torch.float16)
        self._parallel: nn.Module | None = None

    def prepare(self, step: int) -> None:
        """Freeze and thaw parameters for a step; call this before the step."""
        if self.freezing.apply(self.module, step) or self._parallel is None:
            self._parallel = self.module if self.world.size == 1 else self._wrap()

    def train_mode(self) -> None:
        """Put the module into training mode, except for frozen parts, whose dropout stays off."""
        self.module.train()
        self.freezing.rest(self.module)

    def _wrap(self) -> nn.Module:
        options: dict[str, Any] = {_SYNC_BUFFERS: False}  # buffers (queues) are equal on all ranks already
        options["device_ids"] = [self.world.device] if self.world.device.type == "cuda" else None
        idle = self.module.criterion.idle_parameters or self.module.model.idle_parameters or self.lora is not None
        return DistributedDataParallel(self.module, find_unused_parameters=idle, **options)

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._half is None else torch.autocast(self.world.device.type, self._half)

    def forward(self, planned: Planned) -> Loss:
        """Return the loss of a batch (on any device) in the engine's precision."""
        with self.autocast():
            return (self._parallel or self.module)(planned.to(self.world.device))

    def run(self, batches: list[Planned], sizes: dict[str, float], update: Callable[[], None]) -> Outcome:
        """Run one step; the optimizer's update and what follows it are done only if all numbers are finite.

        Args:
            batches: batches of this rank; every rank has the same number.
            sizes: size of each term, summed over all ranks and batches.
            update: sets the learning rates; called before the optimizer's step.
        """
        self.optimizer.zero_grad(set_to_none=True)
        tally = _Tally(self.world, sizes)
        step = self._whole if self.module.criterion.micro_batch is None else self._in_pieces
        with weights_cast_once():
            for number, batch in enumerate(batches):
                step(batch, tally, number + 1 == len(batches))
        if self.lora is not None:
            self.lora.collect()
        self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        # A norm that is not finite would make every gradient NaN, and hide the one where the problem begins.
        finite_norm = torch.where(norm.isfinite(), norm, torch.zeros_like(norm))
        torch.nn.utils.clip_grads_with_norm_(parameters, self.limit, finite_norm)
        outcome = tally.outcome(norm, self.scaler)
        if outcome.finite:
            update()
            before = self.lora.factors() if self.lora is not None else []
            self.scaler.step(self.optimizer)
            if self.lora is not None:
                self.lora.change(before)
            self.scaler.update()
            self.module.criterion.after_step(self.module.model)
        return outcome

    def _whole(self, planned: Planned, tally: _Tally, last: bool) -> None:
        """Add the gradient of a batch, computed all at once."""
        with self._averaging(last):
            loss = self._checked("forward", self.forward(planned), tally)
            self._scaled(tally.add(loss, len(planned))).backward()

    def _checked(self, method: str, loss: Any, tally: _Tally) -> Loss:
        """Return what a method of the criterion returned, or raise a UserError that names the contract."""
        criterion = self.module.criterion
        check_returned(criterion, method, loss, Loss, Criterion)
        for name, term in check_returned(criterion, method, loss.terms, dict, Criterion).items():
            check_returned(criterion, method, term, Term, Criterion)
            if name not in tally.sizes:
                problem = (
                    f"{type(criterion).__qualname__}.{method} returned the term {name!r}, of which plan gave no size"
                )
                raise UserError(problem, cure=f"plan gives the sizes of {', '.join(map(repr, tally.sizes)) or 'none'}")
        return loss

    def _in_pieces(self, planned: Planned, tally: _Tally, last: bool) -> None:
        """Add the gradient of a batch, computed in pieces so that not all activations are in memory together."""
        assert self._parallel is not None
        device, criterion = self.world.device, self.module.criterion
        assert isinstance(criterion, ContrastiveCriterion)
        whole = planned.to(device)
        pieces = whole.pieces or [whole]
        cache = GradientCache(criterion, self.module.model, pieces, device, self.autocast)
        cache.differentiate(
            self._scaled(tally.add(self._checked("contrast", cache.contrast(whole), tally), len(whole)))
        )
        for number, piece in enumerate(pieces):
            with self._averaging(last and number + 1 == len(pieces)):
                with self.autocast():
                    encoded, own = self._parallel(piece, cache.encode(number))
                cache.backward(number, encoded, own, self._scaled(tally.add(encoded.loss, len(piece))))

    def _scaled(self, objective: Tensor) -> Tensor:
        return self.scaler.scale(objective * self.world.size)

    def _averaging(self, now: bool) -> AbstractContextManager[Any]:
        """Return a context that averages gradients over ranks only if ``now``, in the last backward pass of a step."""
        if now or not isinstance(self._parallel, DistributedDataParallel):
            return nullcontext()
        return self._parallel.no_sync()


class _Tally:
    """Losses and metrics of a step's batches, kept on the device and read once.

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

    def outcome(self, norm: Tensor, scaler: torch.amp.GradScaler) -> Outcome:
        device = self.world.device
        counts = torch.tensor(list(self._counts.values()), dtype=torch.float64, device=device)
        everything = torch.cat([torch.stack(list(self._sums.values())), counts])
        if self.world.size > 1:
            dist.all_reduce(everything)
        *numbers, norm_value = torch.cat([everything, norm.detach().double().reshape(1)]).tolist()
        values = dict(zip(self._sums, numbers, strict=False))
        for name, count in zip(self._counts, numbers[len(values) :], strict=True):
            values[name] = values[name] / count if count else math.nan
        loss = values.pop("loss")
        overflow = scaler.is_enabled() and not math.isfinite(norm_value) and scaler.get_scale() > SMALLEST_SCALE
        return Outcome(loss, norm_value, values, overflow)
