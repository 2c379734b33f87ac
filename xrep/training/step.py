"""One optimizer step over the batches of all ranks: forward and backward passes, then the change of the weights."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from xrep.criteria.contrastive import ContrastiveCriterion, joined
from xrep.criteria.criterion import Criterion, Loss, Planned
from xrep.kernels.processor import multiplies_bfloat16
from xrep.models.model import Model
from xrep.nn.half import Stack, weights_cast_once
from xrep.precision import TrainingPrecision, type_of
from xrep.training.freezing import Freezing
from xrep.training.results import Results, Tally
from xrep.training.row_adamw import RowAdamW, read_rows_alone
from xrep.training.update import Update

_SYNC_BUFFERS = next(  # renamed in torch 2.13
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
RandomState = dict[str, Tensor]
"""States of the random generators of the CPU (``cpu``) and of the GPU that a process trains on (``cuda``)."""


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


class _Waiting(torch.autograd.Function):
    """A root of a backward pass in which parameters get no gradient, but DDP sees that they take part in it."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.count


class Pair(nn.Module):
    """Model and criterion side by side, as one module for DDP."""

    def __init__(self, model: Model, criterion: Criterion) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion

    def forward(
        self, planned: Planned, part: str = "", encode: bool = False, waiting: Sequence[nn.Parameter] = ()
    ) -> tuple[Any, Tensor | None]:
        """Return the loss of a batch or, with ``encode``, its vectors before they are compared.

        Args:
            part: the part of a mixture whose batch it is.
            waiting: parameters whose gradients from earlier passes DDP averages in this one. The second result is a
                root of the backward pass in which it sees them.
        """
        criterion: Any = self.criterion.of_part(part)
        found = criterion.encode(self.model, planned) if encode else criterion(self.model, planned)
        return found, _Waiting.apply(*waiting) if waiting else None


class Step:
    """Computes the gradients of steps, and changes the weights by them.

    The objective of a step is described in ``Loss``. DDP averages gradients while they are computed, only in the last
    backward pass of a step.

    Args:
        dtype: bfloat16 and float16 compute products in half precision; weights stay float32.
        compression: type in which gradients are summed over the ranks: bf16, or none for that of the weights.
    """

    def __init__(
        self,
        pair: Pair,
        freezing: Freezing,
        update: Update,
        dtype: torch.dtype = torch.float32,
        compression: Literal["none", "bf16"] = "none",
    ) -> None:
        self.pair, self.freezing, self.update, self.dtype = pair, freezing, update, dtype
        self.world, self._compression = update.world, compression
        self._stacks = [part for part in pair.modules() if isinstance(part, Stack)]
        self._parallel: nn.Module | None = None
        self._parts: dict[str, None] = {}
        """Parts of a mixture that the step had batches of; the name is empty without a mixture."""
        if isinstance(update.optimizer, RowAdamW) and self.world.size == 1 and self.world.device.type == "cpu":
            read_rows_alone(pair)

    def prepare(self, step: int) -> None:
        """Freeze and thaw parameters after ``step`` steps. DDP is built again for what trains then."""
        if self.freezing.apply(self.pair, step) or self._parallel is None:
            self._parallel = self.pair if self.world.size == 1 else self._in_ddp()

    def train_mode(self) -> None:
        """Put the pair into training mode, except for frozen parts, whose dropout stays off."""
        self.pair.train()
        self.freezing.set_modes(self.pair)

    def autocast(self) -> AbstractContextManager[Any]:
        half = self.dtype != torch.float32
        return torch.autocast(self.world.device.type, self.dtype) if half else nullcontext()

    def forward(self, planned: Planned, part: str = "", encode: bool = False, last: bool = False) -> Any:
        """Return what ``Pair.forward`` returns of a batch, which may be on any device, in the precision of training."""
        several = last and isinstance(self._parallel, DistributedDataParallel)
        waiting = [p for p in self.pair.parameters() if p.grad is not None] if several else []
        with self.autocast():
            return (self._parallel or self.pair)(planned.to(self.world.device), part, encode, waiting)

    def gradients(self, batches: list[Planned], sizes: dict[str, float], step: int) -> Results:
        """Compute the gradient of a step, after ``step`` steps, and its results, which need not be known yet.

        Args:
            batches: batches of this rank; every rank has the same number.
            sizes: size of each term, summed over all ranks and batches.
        """
        self.prepare(step)
        self.update.begin()
        tally = Tally(self.world, sizes)
        given = [(part, own) for batch in batches for part, own in (batch.parts or {"": batch}).items()]
        self._parts = dict.fromkeys(part for part, _ in given)  # in the same order on all ranks
        with weights_cast_once(self._stacks):
            for number, (part, planned) in enumerate(given, start=1):
                whole = self.pair.criterion.of_part(part).micro_batch is None
                add = self._add if whole else self._add_in_pieces
                add(planned, part, tally, number == len(given))
        return Results(tally, *self.update.gradient())

    def apply(self, results: Results, rate: float) -> None:
        """Change the weights by the gradient, and the criterion's own state, if all numbers are finite."""
        if self.update(results, rate):
            for part in self._parts:
                self.pair.criterion.of_part(part).after_step(self.pair.model)

    def _objective(self, loss: Loss, part: str, rows: int, tally: Tally) -> Tensor:
        return self.update.scaled(tally.add(self.pair.criterion.in_sum(part, loss, rows), rows))

    def _add(self, planned: Planned, part: str, tally: Tally, last: bool) -> None:
        """Add the gradient of a batch, computed all at once."""
        with self._averaging(last):
            loss, waiting = self.forward(planned, part, last=last)
            _backward([(self._objective(loss, part, len(planned), tally), None), (waiting, None)])

    def _add_in_pieces(self, planned: Planned, part: str, tally: Tally, last: bool) -> None:
        """Add the gradient of a batch that is encoded piece by piece, twice (Gao et al. 2021, Scaling Deep Contrastive
        Learning Batch Size under Memory Limited Setup), so that only the activations of one piece are in memory.

        The first pass keeps only the vectors, which are compared. The second pass encodes each piece again, with the
        same random numbers, and propagates the gradient of its vectors into the model.
        """
        device, criterion = self.world.device, self.pair.criterion.of_part(part)
        assert isinstance(criterion, ContrastiveCriterion)
        planned = planned.to(device)
        pieces, states, encoded, constants = planned.pieces or [planned], list[RandomState](), [], []
        for piece in pieces:
            states.append(random_state(device))
            with self.autocast():
                # A graph is made and dropped at once: without one, other kernels might draw other random numbers.
                encoded.append(tuple(vector.detach() for vector in criterion.vectors(self.pair.model, piece)))
                with torch.no_grad():
                    constants.append(criterion.constants(self.pair.model, piece))
        vectors = [vector.requires_grad_() for vector in joined(encoded)]
        with self.autocast():
            loss = criterion.compare((*vectors, *joined(constants)), planned)
        after = random_state(device)
        objective = self._objective(loss, part, len(planned), tally)
        _backward([(objective, None)])
        # A vector without a gradient gets zeros, because DDP waits for every parameter behind it.
        whole = [torch.zeros_like(vector) if vector.grad is None else vector.grad for vector in vectors]
        rows = [[len(vector) for vector in of_pieces] for of_pieces in zip(*encoded, strict=True)]
        pulls = [gradient.split(lengths) for gradient, lengths in zip(whole, rows, strict=True)]
        for number, piece in enumerate(pieces):
            restore_random_state(states[number], device)
            end = last and number + 1 == len(pieces)
            with self._averaging(end):
                again, waiting = self.forward(piece, part, encode=True, last=end)
                own = self._objective(again.loss, part, len(piece), tally)
                by_vector = [(vector, pull[number]) for vector, pull in zip(again.vectors, pulls, strict=True)]
                _backward([(own, None), *by_vector, (waiting, None)])
        restore_random_state(after, device)

    def _averaging(self, now: bool) -> AbstractContextManager[Any]:
        """Return a context that averages gradients over ranks only if ``now``, in the last backward pass of a step."""
        if now or not isinstance(self._parallel, DistributedDataParallel):
            return nullcontext()
        return self._parallel.no_sync()

    def _in_ddp(self) -> DistributedDataParallel:
        model, criterion, device = self.pair.model, self.pair.criterion, self.world.device
        options: dict[str, Any] = {_SYNC_BUFFERS: False}  # buffers (queues) are equal on all ranks already
        options["device_ids"] = [device] if device.type == "cuda" else None
        # The last backward pass may leave trained parameters without a gradient.
        idle = criterion.idle_parameters or model.idle_parameters or self.update.lora is not None
        options["find_unused_parameters"] = idle
        # Gradients are views of what is sent, so that they are in memory once and are not copied.
        options["gradient_as_bucket_view"] = True
        parallel = DistributedDataParallel(self.pair, **options)
        if self._compression == "bf16":
            # A function of its own: torch refuses the hook by name where there is no NCCL, and gloo can add bfloat16.
            parallel.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        return parallel


def _backward(roots: Sequence[tuple[Tensor | None, Tensor | None]]) -> None:
    """Add up the gradients of the roots that have some, each given with its own gradient; None: that of a scalar."""
    trained = [(root, gradient) for root, gradient in roots if root is not None and root.requires_grad]
    if trained:  # a part of a mixture may train nothing yet
        torch.autograd.backward([root for root, _ in trained], [gradient for _, gradient in trained])


def random_state(device: torch.device) -> RandomState:
    """Return the state of the generators from which dropout draws."""
    own = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def restore_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
