"""The softmax over a block of logits, in plain torch. ``triton_kernels`` has the same functions as fused kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARY_LOGITS = 2**25
"""Number of logits in one block of the vocabulary loss. A block consists of whole rows."""

PADDING = 1
"""Rows of these logits are filled up to a multiple of this in half precision."""

Couple = tuple[Tensor, Tensor] | None
"""What the queries have and what the rows of the queue have: ids, or the vectors of a guide."""


@dataclass
class QueueSoftmax:
    """The running softmax of each query over its positive and the blocks of the queue seen so far.

    Attributes:
        scale: 0-d, multiplies similarities (1 / temperature); None if the queries are already multiplied by it.
        maximum: [B], the largest logit, including the positive.
        total: [B], Σ exp(logit - maximum) over the negatives.
        hardest: [B], the largest logit of a negative.
        mixture: [B, D], Σ exp(logit - maximum) · key over the negatives; None if no gradient is wanted.
        operand: type in which the weights multiply the block.
        limit: [B], the largest similarity of a negative that counts, in the units of the scores; None: all count.
    """

    scale: Tensor | None
    maximum: Tensor
    total: Tensor
    hardest: Tensor
    mixture: Tensor | None
    operand: torch.dtype
    limit: Tensor | None = None


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block for a number of queries, so that it stays in cache between products."""
    return 4096


def mask_equal(scores: Tensor, mine: Tensor, theirs: Tensor, value: float) -> None:
    """Write ``value`` to scores [B, n] where ids [B, C] and [n, C] are equal in any column."""
    for own, other in zip(mine.T, theirs.T, strict=True):
        scores.masked_fill_(own.unsqueeze(1) == other, value)


def mask_above(scores: Tensor, limit: Tensor, judged: Tensor | None, value: float) -> None:
    """Write ``value``, far below any score, to scores [B, n] that exceed limits [B], or whose similarities ``judged``
    [B, n] exceed these. Other scores may be rounded once more."""
    limit = limit.unsqueeze(1)
    if judged is not None:
        scores.masked_fill_(judged > limit, value)
    else:  # these three passes in the cache take an eighth of the time of a comparison and masked_fill_
        torch.sub(limit, scores, out=scores)
        torch.threshold_(scores, -torch.finfo(scores.dtype).tiny, -value)
        torch.sub(limit, scores, out=scores)


def absorb(scores: Tensor, state: QueueSoftmax, ids: Couple, judged: Tensor | None = None) -> Tensor:
    """Add a block of the queue to the running softmax of each query.

    Args:
        scores: [B, n] similarities; overwritten.
        state: updated in place; its mixture is rescaled, so that the caller can add the block's rows by the weights.
        ids: ids of the queries [B, C] and of the block [n, C]; rows that are equal in any column are not negatives.
        judged: [B, n], the similarities that ``state.limit`` is about; None: the scores.

    Returns:
        exp(logit - maximum) [B, n], the weights of the block's rows, in the type ``state.operand``.
    """
    if state.limit is not None:
        mask_above(scores, state.limit, judged, -torch.inf)
    if state.scale is not None:
        scores *= state.scale
    if ids is not None:
        mask_equal(scores, *ids, -torch.inf)
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
