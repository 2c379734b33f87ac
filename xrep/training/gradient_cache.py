"""Gradient caching: for batches whose rows are compared, but whose activations do not fit into memory together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded, joined
from xrep.criteria.criterion import Loss, Planned

RandomState = dict[str, Tensor]
"""States of the random generators of the CPU (``cpu``) and of the GPU that a process trains on (``cuda``)."""


class GradientCache:
    """Computes the gradient of a batch that is encoded piece by piece, twice (Gao et al. 2021, Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup).

    The first pass keeps only the vectors; ``compare`` compares them, and ``differentiate`` computes the gradient of
    each. The second pass encodes each piece again (``encode``) with the same random numbers, and propagates the
    gradient of its vectors into the model (``backward``). So only the activations of one piece are in memory at a time,
    and the gradient is that of all vectors together.

    Args:
        pieces: pieces of the batch, on the device.
        context: returns the context manager for each forward pass (autocast).
    """

    def __init__(
        self,
        criterion: ContrastiveCriterion,
        model: nn.Module,
        pieces: Sequence[Planned],
        device: torch.device,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._criterion, self._device, self._context = criterion, device, context
        self._states = []
        trained, constants = [], []
        for piece in pieces:
            self._states.append(random_state(device))
            with context():
                # A graph is made and dropped at once: without one, other kernels might draw other random numbers.
                trained.append(tuple(vector.detach() for vector in criterion.vectors(model, piece)))
                with torch.no_grad():
                    constants.append(criterion.constants(model, piece))
        self._rows = [[len(vector) for vector in vectors] for vectors in trained]
        self._vectors = tuple(vector.requires_grad_() for vector in joined(trained))
        self._constants = joined(constants)
        self._gradients: list[tuple[Tensor, ...]] = []
        self._own: list[tuple[nn.Parameter, Tensor]] = []
        """Parameters of the criterion (such as a temperature), with their gradients from the comparison."""
        self._after = self._states[0]

    def contrast(self, planned: Planned) -> Loss:
        """Return the loss terms that compare the rows of the whole batch, which is on the device."""
        with self._context():
            loss = self._criterion.compare(self._vectors + self._constants, planned)
        self._after = random_state(self._device)
        return loss

    def differentiate(self, objective: Tensor) -> None:
        """Compute the gradients of ``objective``, which was made from the terms of ``contrast``."""
        own = [parameter for parameter in self._criterion.parameters() if parameter.requires_grad]
        count, gradients = len(self._vectors), [None] * (len(self._vectors) + len(own))
        if objective.requires_grad:
            gradients = torch.autograd.grad(objective, [*self._vectors, *own], allow_unused=True)
        self._own = [(parameter, g) for parameter, g in zip(own, gradients[count:], strict=True) if g is not None]
        # Zeros where there is none: DDP waits for the gradients of all parameters that a vector depends on.
        whole = [torch.zeros_like(v) if g is None else g for v, g in zip(self._vectors, gradients[:count], strict=True)]
        by_vector = [g.split(rows) for g, rows in zip(whole, zip(*self._rows, strict=True), strict=True)]
        self._gradients = list(zip(*by_vector, strict=True)) if by_vector else [()] * len(self._rows)

    def encode(self, number: int) -> Callable[[ContrastiveCriterion, nn.Module, Planned], tuple[Encoded, list[Tensor]]]:
        """Return a function that encodes a piece again, to be called immediately.

        For the last piece it also returns the criterion's own parameters: DDP must see them in the forward pass to know
        that they will have gradients.
        """
        restore_random_state(self._states[number], self._device)
        own = self._own if self._is_last(number) else []

        def again(criterion: ContrastiveCriterion, model: nn.Module, piece: Planned) -> tuple[Encoded, list[Tensor]]:
            return criterion.encode(model, piece), [parameter.view_as(parameter) for parameter, _ in own]

        return again

    def backward(self, number: int, encoded: Encoded, own: list[Tensor], objective: Tensor) -> None:
        """Add the gradients of a piece to those of the parameters.

        Args:
            encoded, own: results of the function that ``encode`` returned.
            objective: objective that was made from the terms of ``encoded.loss``.
        """
        roots: list[tuple[Tensor, Tensor | None]] = [(objective, None)]
        roots += zip(encoded.vectors, self._gradients[number], strict=True)
        roots += zip(own, [gradient for _, gradient in self._own[: len(own)]], strict=True)
        tensors, gradients = zip(*((t, g) for t, g in roots if t.requires_grad), strict=True)
        torch.autograd.backward(tensors, gradients)
        if self._is_last(number):
            restore_random_state(self._after, self._device)

    def _is_last(self, number: int) -> bool:
        return number + 1 == len(self._rows)


def random_state(device: torch.device) -> RandomState:
    """Return the state of the generators from which dropout draws."""
    own = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def restore_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
