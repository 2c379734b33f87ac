"""One optimizer step over the batches of all ranks: forward and backward passes, then the change of the weights."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from xrep.criteria.contrastive import ContrastiveCriterion, joined
from xrep.criteria.criterion import Criterion, Loss, Planned
from xrep.models.model import Model
from xrep.nn.half import Stack, weights_cast_once
from xrep.training.freezing import Freezing
from xrep.training.numbers import RandomState, random_state, restore_random_state
from xrep.training.results import Results
from xrep.training.update import Update

_SYNC_BUFFERS = next(  # renamed in torch 2.13
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in inspect.signature(DDP).parameters
)


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
        compression: type in which gradients are summed over the ranks: bf16, or none for that of the weights.
    """

    def __init__(
        self, pair: Pair, freezing: Freezing, update: Update, compression: Literal["none", "bf16"] = "none"
    ) -> None:
        self.pair, self.freezing, self.update, self._compression = pair, freezing, update, compression
        self.world, self.dtype = update.world, update.dtype
        self._stacks = [part for part in pair.modules() if isinstance(part, Stack)]
        self._parallel: nn.Module | None = None
        self._shares: dict[str, float] = {}
        """Of the parts of a mixture, those that the step had batches of, and their share of its batches, by which they
        weigh; the name is empty without a mixture."""

    def prepare(self, step: int) -> None:
        """Freeze and thaw parameters after ``step`` steps. DDP is built again for what trains then."""
        if self.freezing.apply(step) or self._parallel is None:
            self._parallel = self.pair if self.world.size == 1 else self._in_ddp()

    def train_mode(self) -> None:
        """Put the pair into training mode, except for frozen parts, whose dropout stays off."""
        self.freezing.train_mode()

    def autocast(self) -> AbstractContextManager[Any]:
        half = self.dtype != torch.float32
        return torch.autocast(self.world.device.type, self.dtype) if half else nullcontext()

    def forward(self, planned: Planned, part: str = "", encode: bool = False, last: bool = False) -> Any:
        """Return what ``Pair.forward`` returns of a batch, which may be on any device, in the precision of training."""
        several = last and isinstance(self._parallel, DDP)
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
        self.update.optimizer.zero_grad()
        results = Results(self.world, sizes)
        given = [(part, own) for batch in batches for part, own in batch.by_part.items()]
        counts = Counter(part for part, _ in given)  # in the same order on all ranks
        self._shares = {part: count / len(batches) for part, count in counts.items()}
        with weights_cast_once(self._stacks):
            for number, (part, planned) in enumerate(given, start=1):
                whole = self.pair.criterion.of_part(part).micro_batch is None
                add = self._add if whole else self._add_in_pieces
                add(planned, part, results, number == len(given))
        self.update.complete(results)
        return results

    def apply(self, results: Results, rate: float) -> None:
        """Change the weights by the gradient, and the criterion's own state, if all numbers are finite."""
        if self.update(results, rate):
            for part in self._shares:
                self.pair.criterion.of_part(part).after_step(self.pair.model)

    def _objective(self, loss: Loss, part: str, rows: int, results: Results) -> Tensor:
        objective = results.add(self.pair.criterion.in_sum(part, loss, rows, self._shares[part]), rows)
        # DDP takes the mean of the ranks' gradients, and the objective is their sum.
        return self.update.scaler.scale(objective * self.world.size)

    def _add(
        self, planned: Planned, part: str, results: Results, last: bool, pulls: Sequence[Tensor] | None = None
    ) -> None:
        """Add the gradient of rows that are encoded at once: of their loss or, given ``pulls``, that of their vectors,
        of what led to these. DDP averages gradients over the ranks only in the ``last`` backward pass of a step."""
        with self._parallel.no_sync() if isinstance(self._parallel, DDP) and not last else nullcontext():
            found, waiting = self.forward(planned, part, encode=pulls is not None, last=last)
            loss, vectors = (found, ()) if pulls is None else (found.loss, found.vectors)
            objective = self._objective(loss, part, len(planned), results)
            _backward([(objective, None), *zip(vectors, pulls or (), strict=True), (waiting, None)])

    def _add_in_pieces(self, planned: Planned, part: str, results: Results, last: bool) -> None:
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
                vectors = [vector.detach() for vector in criterion.vectors(self.pair.model, piece)]
                encoded.append(tuple(vector.requires_grad_() for vector in vectors))
                with torch.no_grad():
                    constants.append(criterion.constants(self.pair.model, piece))
        with self.autocast():
            loss = criterion.compare((*joined(encoded), *joined(constants)), planned)
        after = random_state(device)
        _backward([(self._objective(loss, part, len(planned), results), None)])
        for number, piece in enumerate(pieces):
            # A vector without a gradient gets zeros, because DDP waits for every parameter behind it.
            pulls = [torch.zeros_like(each) if each.grad is None else each.grad for each in encoded[number]]
            restore_random_state(states[number], device)
            self._add(piece, part, results, last and number + 1 == len(pieces), pulls)
        restore_random_state(after, device)

    def _in_ddp(self) -> DDP:
        model, criterion, device = self.pair.model, self.pair.criterion, self.world.device
        options: dict[str, Any] = {_SYNC_BUFFERS: False}  # buffers (queues) are equal on all ranks already
        parallel = DDP(
            self.pair,
            device_ids=[device] if device.type == "cuda" else None,
            # The last backward pass may leave trained parameters without a gradient.
            find_unused_parameters=criterion.idle_parameters or model.idle_parameters or self.update.lora is not None,
            gradient_as_bucket_view=True,  # gradients are in memory once, and are not copied to be sent
            **options,
        )
        if self._compression == "bf16":
            # A function of its own: torch refuses the hook by name where there is no NCCL, and gloo can add bfloat16.
            parallel.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        return parallel


def _backward(roots: Sequence[tuple[Tensor | None, Tensor | None]]) -> None:
    """Add up the gradients of the roots that have some, each given with its own gradient; None: that of a scalar."""
    trained = [(root, gradient) for root, gradient in roots if root is not None and root.requires_grad]
    if trained:  # a part of a mixture may train nothing yet
        torch.autograd.backward([root for root, _ in trained], [gradient for _, gradient in trained])
