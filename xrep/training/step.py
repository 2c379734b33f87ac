"""One optimizer step over the batches of all ranks: forward, backward, clip, update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from xrep.criteria.contrastive import ContrastiveCriterion
from xrep.criteria.criterion import Criterion, Loss, Planned
from xrep.kernels.processor import multiplies_bfloat16
from xrep.models.device import moved
from xrep.models.model import Model
from xrep.nn.half import weights_cast_once
from xrep.precision import TrainingPrecision, type_of
from xrep.training.distributed import World
from xrep.training.freezing import Freezing
from xrep.training.gradient_cache import GradientCache
from xrep.training.lora import LowRank
from xrep.training.outcome import Results, Tally
from xrep.training.row_adamw import RowAdamW, read_rows_alone
from xrep.training.sharding import local_optimizer

_SYNC_BUFFERS = next(  # renamed in torch 2.13
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


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


def _numbers_of(parameter: nn.Parameter) -> Tensor:
    """Return the numbers of a gradient: all, or those of the rows that a sparse one has."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad.values()


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
        return moved(self, device, cure)

    def forward(self, planned: Planned, call: Callable[[Any, Any, Planned], R] = _loss) -> R:
        """Return the result of ``call`` with criterion, model and planned batch; by default the loss."""
        return call(self.criterion, self.model, planned)


class Engine:
    """Runs steps of one module with one optimizer.

    The objective of a step is described in ``Loss``. DDP averages gradients while they are computed, only on the last
    batch of a step. Because it averages over the ranks, each rank multiplies its objective by their number.

    Args:
        precision: bfloat16 and float16 compute products in half precision; weights stay float32.
        clip_norm: largest norm of the gradient; 0 disables clipping.
        lora: low-rank changes of weights, which the optimizer trains in place of the weights; None: there are none.
        compression: type in which gradients are summed over the ranks: bf16, or none for that of the weights.

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
        compression: Literal["none", "bf16"] = "none",
    ) -> None:
        self.lora, self._compression = lora, compression
        self.module, self.optimizer, self.freezing, self.world = module, optimizer, freezing, world
        self.limit, chosen = clip_norm or math.inf, type_on(world.device, precision)
        self.precision, self._half = str(chosen).removeprefix("torch."), None if chosen == torch.float32 else chosen
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=chosen == torch.float16)
        self._parallel: nn.Module | None = None
        if isinstance(optimizer, RowAdamW) and world.size == 1 and world.device.type == "cpu":
            read_rows_alone(module)

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
        # Gradients are views of what is sent, so that they are in memory once and are not copied.
        options["gradient_as_bucket_view"] = True
        parallel = DistributedDataParallel(self.module, find_unused_parameters=idle, **options)
        if self._compression == "bf16":
            # A function of its own: torch refuses the hook by name where there is no NCCL, and gloo can add bfloat16.
            parallel.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        return parallel

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._half is None else torch.autocast(self.world.device.type, self._half)

    def forward(self, planned: Planned) -> Loss:
        """Return the loss of a batch (on any device) in the engine's precision."""
        with self.autocast():
            return (self._parallel or self.module)(planned.to(self.world.device))

    @property
    def late(self) -> bool:
        """Whether the results of a step are read while the device is at the next one.

        The optimizer must leave the weights unchanged by itself then, if a number is not finite, as fused ones can.
        """
        return self.world.device.type == "cuda" and bool(local_optimizer(self.optimizer).defaults.get("fused"))

    def run(
        self,
        batches: list[Planned],
        sizes: dict[str, float],
        update: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
    ) -> Results:
        """Run one step. The weights change only if all numbers are finite.

        Args:
            batches: batches of this rank; every rank has the same number.
            sizes: size of each term, summed over all ranks and batches.
            update: sets the learning rates; called before the optimizer's step.
            settle: reads the results of the step before; called when this step has been given to the device, except for
                its update.
        """
        self.optimizer.zero_grad(set_to_none=True)
        tally = Tally(self.world, sizes)
        step = self._whole if self.module.criterion.micro_batch is None else self._in_pieces
        with weights_cast_once():
            for number, batch in enumerate(batches):
                step(batch, tally, number + 1 == len(batches))
        if self.lora is not None:
            self.lora.collect()
        self.scaler.unscale_(self.optimizer)
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [_numbers_of(p) for p in trained]
        norms = torch.stack(torch._foreach_norm(gradients)) if gradients else torch.zeros(0, device=self.world.device)
        norm = torch.linalg.vector_norm(norms)
        # A norm that is not finite would make every gradient NaN.
        finite_norm, local = norm.nan_to_num(0.0, 0.0), local_optimizer(self.optimizer)
        if isinstance(local, RowAdamW) and norm.device.type == "cpu" and norm.dtype == torch.float32:
            # It divides the gradients when it reads them, so that they are not read once more.
            excess = (finite_norm + 1e-6) / self.limit
            local.grad_scale = excess if excess > 1 else None
        else:
            torch.nn.utils.clip_grads_with_norm_(trained, self.limit, finite_norm)
        results = tally.results(norm, norms, trained, self.scaler)
        settle()
        skipped = False
        if not self.late:
            if not results.outcome.finite:
                return results
            skipped = results.outcome.skipped
        update()
        self._change_weights(results, skipped)
        self.module.criterion.after_step(self.module.model)
        return results

    def _change_weights(self, results: Results, skipped: bool) -> None:
        before = self.lora.factors() if self.lora is not None else []
        if self.late:  # as GradScaler.step does, which knows only about float16
            local = local_optimizer(self.optimizer)
            local.found_inf = results.unusable  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
            del local.found_inf  # pyright: ignore[reportAttributeAccessIssue]
        elif not skipped:
            self.optimizer.step()
        if self.lora is not None:
            self.lora.change(before)
        self.scaler.update()

    def _whole(self, planned: Planned, tally: Tally, last: bool) -> None:
        """Add the gradient of a batch, computed all at once."""
        with self._averaging(last):
            self._scaled(tally.add(self.forward(planned), len(planned))).backward()

    def _in_pieces(self, planned: Planned, tally: Tally, last: bool) -> None:
        """Add the gradient of a batch, computed in pieces so that not all activations are in memory together."""
        assert self._parallel is not None
        device, criterion = self.world.device, self.module.criterion
        assert isinstance(criterion, ContrastiveCriterion)
        whole = planned.to(device)
        pieces = whole.pieces or [whole]
        cache = GradientCache(criterion, self.module.model, pieces, device, self.autocast)
        cache.differentiate(self._scaled(tally.add(cache.contrast(whole), len(whole))))
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
