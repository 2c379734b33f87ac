"""The work on one block of similarities, in plain torch. ``triton_steps`` has the same functions as fused kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from xrep.kernels.blocks import QueueSoftmax

NOTHING = float("-inf")
"""The logit of a pair that is not compared."""

QUEUE_ROWS = 4096
"""Rows of the queue in one block: few enough that the block stays in cache between the two products."""

VOCABULARY_LOGITS = 2**25
"""Number of logits in one block of the vocabulary loss. A block consists of whole rows."""


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block for a number of queries."""
    return QUEUE_ROWS


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    """Add a block of the queue to the running softmax of each query.

    Args:
        scores: [B, n] similarities; overwritten.
        state: updated in place; its mixture is rescaled, so that the caller can add the block's rows by the weights.
        ids: ids of the queries [B, C] and of the block [n, C]; rows that are equal in any column are not negatives.

    Returns:
        exp(logit - maximum) [B, n], the weights of the block's rows, in the type ``state.operand``.
    """
    if state.scale is not None:
        scores *= state.scale
    if ids is not None:
        scores.masked_fill_(_equal(*ids), NOTHING)
    highest = scores.amax(1)
    torch.maximum(state.hardest, highest, out=state.hardest)
    raised = torch.maximum(state.maximum, highest)
    shrink = (state.maximum - raised).exp_()
    weights = scores.sub_(raised.unsqueeze(1)).exp_()
    state.total.mul_(shrink).add_(weights.sum(1))
    if state.mixture is not None:
        state.mixture *= shrink.unsqueeze(1)
    state.maximum.copy_(raised)
    return weights.to(state.operand)


def vocabulary_softmax(
    logits: Tensor, target: Tensor, smoothing: float, ignored: Tensor, operand: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, negative log-likelihood, correctness [n] and gradient [n, V] of rows of logits [n, V] (overwritten).

    Args:
        target: int64 [n].
        smoothing: the target distribution is (1 - smoothing) · onehot + smoothing / V.
        ignored: bool [n], rows whose loss and gradient are 0.
        operand: type of the gradient; None if it is not wanted (the returned one is then meaningless).
    """
    index = target.masked_fill(ignored, 0).unsqueeze(1)
    maximum = logits.amax(1)
    at_target = logits.gather(1, index).squeeze(1)
    mean = logits.mean(1) if smoothing else at_target
    weights = logits.sub_(maximum.unsqueeze(1)).exp_()
    total = weights.sum(1)
    nll = (maximum - at_target) + total.log()
    loss = nll + smoothing * (at_target - mean)
    correct = (at_target == maximum) & ~ignored
    if operand is not None:
        weights *= total.reciprocal_().masked_fill_(ignored, 0).unsqueeze(1)
        counted = (~ignored).to(weights.dtype).unsqueeze(1)
        if smoothing:
            weights -= counted * (smoothing / logits.size(1))
        weights.scatter_add_(1, index, counted * (smoothing - 1))
        weights = weights.to(operand)
    return loss.masked_fill_(ignored, 0), nll.masked_fill_(ignored, 0), correct, weights


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Return whether rows of ``a`` [r, I] and ``b`` [c, I] are equal in any column: bool [r, c]."""
    result = a[:, :1] == b[:, 0]
    for column in range(1, a.size(1)):
        result |= a[:, column : column + 1] == b[:, column]
    return result
