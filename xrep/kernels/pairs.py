"""What the losses between the vectors of a batch share: blocks of similarities, and InfoNCE from their exponentials.

These losses are plain torch on every device. Up to ``WHOLE`` similarities are kept for the backward pass. If there are
more, they are computed in blocks of rows, and each block once more in the backward pass, so that memory is bounded.

The exponential of a positive is never added to those of the negatives: many small ones would be rounded away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.arguments import check_number, check_tensors, scalar
from xrep.kernels.judge import ROUNDINGS, Judge, bars
from xrep.kernels.precision import accumulation_dtype

WHOLE = {"cpu": 1 << 24, "cuda": 1 << 26}
"""Most similarities that are kept for the backward pass: 64 MB in float32 on a CPU, and 256 MB on a GPU."""

BLOCK = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Most similarities in a block if there are more. On a CPU, much larger arrays would be returned to the system each
time. On a GPU, the launches of smaller blocks take longer than their arithmetic: 8,192 x 8,192 similarities on an H200
took 24.8 ms in blocks of 2^22, 8.6 of 2^24, 7.1 of 2^25, and 3.3 at once."""

NOTHING = float("-inf")
"""The logit of a pair that is not compared."""


def in_blocks(
    of_block: Callable[..., tuple[Tensor, ...]], shared: Sequence[Tensor], rows: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Return what ``of_block`` finds in all blocks of rows, one block after the other in the first dimension.

    Args:
        of_block: called with ``shared`` and the part of each of ``rows`` that belongs to a block. It must not draw
            random numbers, and tensors that get a gradient must be among its arguments.
        shared: the first has a row for each similarity of a row.
        rows: [R, ...] each; None, but not the first, if there is none.
    """
    columns, first = len(shared[0]), rows[0]
    assert first is not None
    device = first.device.type
    if len(first) * columns <= WHOLE[device]:
        return of_block(*shared, *rows)
    size = max(1, BLOCK[device] // columns)
    return _Blocks.apply(of_block, size, len(shared), *shared, *rows)


class _Blocks(torch.autograd.Function):
    """Blocks of rows of which only the results are kept; the backward pass computes each block once more.

    ``torch.utils.checkpoint`` would leave small objects in memory between the large arrays of the blocks, and the C
    library then finds no room for the next ones: a loss of 8,192 pairs took 5.4 GB on a CPU.
    """

    @staticmethod
    def forward(ctx, of_block, size, count, *tensors):
        ctx.of_block, ctx.count, results, found = of_block, count, [], ()
        ctx.blocks = [slice(start, start + size) for start in range(0, len(tensors[count]), size)]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        for number, block in enumerate(ctx.blocks):
            found = of_block(*_parts(tensors, count, block))
            if not results:  # their memory is allocated once
                ctx.lengths = [len(each) for each in found]
                results = [each.new_empty(len(ctx.blocks) * len(each), *each.shape[1:]) for each in found]
            for result, length, each in zip(results, ctx.lengths, found, strict=True):
                result[number * length :][: len(each)] = each
        missing = [length - len(each) for length, each in zip(ctx.lengths, found, strict=True)]  # in the last block
        return tuple(result[: len(result) - less] for result, less in zip(results, missing, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides names
        tensors, wanted = ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals = [torch.zeros_like(each) if want else None for each, want in zip(tensors, wanted, strict=True)]
        for number, block in enumerate(ctx.blocks):
            parts = zip(_parts(tensors, ctx.count, block), wanted, strict=True)
            leaves = [None if part is None else part.detach().requires_grad_(want) for part, want in parts]
            with torch.enable_grad(), torch.autocast(tensors[0].device.type, enabled=False):
                found = ctx.of_block(*leaves)
            pulled = [
                (each, gradient[number * length :][: len(each)])
                for each, gradient, length in zip(found, gradients, ctx.lengths, strict=True)
                if each.requires_grad and gradient is not None
            ]
            if pulled:
                torch.autograd.backward([each for each, _ in pulled], [pull for _, pull in pulled])
            for total, leaf in zip(_parts(totals, ctx.count, block), leaves, strict=True):
                if total is not None and leaf is not None and leaf.grad is not None:
                    total += leaf.grad
        return None, None, None, *totals


def _parts(tensors: Sequence[Any], count: int, rows: slice) -> list[Any]:
    """Return the first ``count`` tensors, and these rows of the others."""
    return [each if place < count or each is None else each[rows] for place, each in enumerate(tensors)]


def at_columns(logits: Tensor, columns: Tensor) -> Tensor:
    """Return the logits of [R, C] at columns int64 [R, M]. Autograd keeps no logits for it, as it does for a gather."""
    first = torch.arange(0, logits.numel(), max(1, logits.size(1)), device=logits.device)
    return logits.flatten().index_select(0, (columns + first.unsqueeze(1)).flatten()).view_as(columns)


def leave_out(values: Tensor, excluded: Tensor, same: Tensor | None, value: float = NOTHING) -> Tensor:
    """Write ``value`` over the pairs that are not compared, in place, and return ``values`` [R, C].

    Autograd does not see it, and need not: the exponential of an excluded logit is 0, and so is its gradient.

    Args:
        excluded: int64 [R, M], columns with which a row is not compared.
        same: bool [R, C], further pairs that are not compared.
    """
    hidden = values.detach()
    hidden.scatter_(1, excluded, value)
    if same is not None:
        hidden.masked_fill_(same, value)
    return values


def equal(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return whether rows of ``a`` [R, I] and ``b`` [C, I] are equal in any column, bool [R, C]; None without ids."""
    if a is None or b is None:
        return None
    result = a[:, :1] == b[:, 0]
    for column in range(1, a.size(1)):
        result |= a[:, column, None] == b[:, column]
    return result


def sum_exp(logits: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest logit of [R, C] along a dimension, without gradient, and Σ exp(logit - largest).

    Where all pairs are left out, these are the lowest finite number and 0.
    """
    best = highest(logits, dim)
    return best, (logits - best.unsqueeze(dim)).exp_().sum(dim)


def highest(logits: Tensor, dim: int) -> Tensor:
    """Return the largest logit along a dimension, without gradient; the lowest finite number if there is none."""
    lowest = torch.finfo(logits.dtype).min
    return logits.detach().amax(dim).clamp_(min=lowest) if logits.size(dim) else logits.detach().sum(dim).fill_(lowest)


def merge(best: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``sum_exp`` finds of parts together, [C], from what it finds of each of them, [parts, C]."""
    if len(best) == 1:
        return best[0], total[0]
    best = best.detach()
    largest = best.amax(0)
    return largest, (total * (best - largest).exp_()).sum(0)


def infonce(best: Tensor, total: Tensor, positive: Tensor) -> Tensor:
    """Return log(1 + Σ exp(negative - positive)) [..., B] from what ``sum_exp`` finds of the negatives.

    The positive's logit [B] is subtracted from the largest one of a negative first: if both are huge, the logarithm of
    the sum would be rounded away beside them.
    """
    negatives = (best.detach() - positive) + total.clamp(min=torch.finfo(total.dtype).tiny).log()
    return F.softplus(negatives, threshold=40)  # above the threshold it is the identity


def beaten(best: Tensor, positive: Tensor) -> Tensor:
    """Return whether positives beat the largest logit of a negative, given minus the positive's logit (bool).

    They must win by more than rounding errors: a tie is not a success, above all if an encoder maps all sentences to
    one vector.
    """
    return best < -ROUNDINGS * torch.finfo(positive.dtype).eps * positive.abs()


def add_own_negatives(
    loss: Tensor,
    correct: Tensor,
    query: Tensor,
    positive: Tensor,
    negative: Tensor,
    rows: Tensor,
    temperature: float | Tensor,
    *,
    margin: float = 0.0,
    judge: Judge | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute InfoNCE with further negatives from InfoNCE without them; each counts for one query only.

    A loss is log(1 + Σ e^(s_j - s⁺)), where s⁺ is the logit of the positive and s_j those of the negatives. With the
    logits h of a query's own negatives it becomes log(e^loss + Σ e^(h - s⁺)).

    Args:
        loss: float [B], the result of any InfoNCE of ``query`` and ``positive``.
        correct: bool [B], the result of the same.
        query: float [B, D].
        positive: float [B, D].
        negative: float [N, D]. A query may have any number of them, also none.
        rows: int64 [N], the row of the query that each negative belongs to.
        temperature: That of ``loss``.
        margin: That of ``loss``.
        judge: That of ``loss``, but without a guide.

    Returns:
        The losses and whether the positives beat all negatives, [B] each.

    Raises:
        ValueError: the shapes do not fit, or the margin is not finite.
    """
    check_tensors(
        loss=(loss, "float B"),
        correct=(correct, "bool B"),
        query=(query, "float B D"),
        positive=(positive, "float B D"),
        negative=(negative, "float N D"),
        rows=(rows, "int64 N"),
    )
    check_number("margin", margin, -math.inf)
    accumulate = accumulation_dtype(query, positive)
    tau = scalar("temperature", temperature, accumulate, query.device)
    with torch.autocast(query.device.type, enabled=False):
        wide, loss = query.to(accumulate), loss.to(accumulate)
        own = ((wide * positive.to(accumulate)).sum(1) - margin) / tau
        similarity = (wide.index_select(0, rows) * negative.to(accumulate)).sum(1)
        excess = similarity / tau - own.index_select(0, rows)
        # A query without negatives gets this one, whose share of the loss and of the gradient is 0.
        nothing = torch.full_like(own, torch.finfo(accumulate).min / 4)
        if (bar := bars(judge, wide, positive)[0]) is not None:
            excess = torch.where(similarity > bar[:, 0].index_select(0, rows), nothing.index_select(0, rows), excess)
        best = nothing.scatter_reduce(0, rows, excess.detach(), "amax")
        shares = (excess - best.index_select(0, rows)).exp()
        logsumexp = best + (nothing - best).exp().index_add(0, rows, shares).log()
        return loss + F.softplus(logsumexp - loss, threshold=40), correct & beaten(best, own.detach())


def out_of_order(similarity: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return log(1 + sum over i, j with s_i > s_j of e^((c_j - c_i)/temperature)), a scalar, for similarities c [B] and
    scores s [B] of B pairs (Su 2022, CoSENT). Memory is O(B)."""
    scores, order = scores.sort()
    logits = similarity[order] / temperature
    behind = (-logits).flip(0).logcumsumexp(0).flip(0)  # of each pair and those with higher scores
    higher = torch.cat([behind, behind.new_full((1,), -torch.inf)])[torch.searchsorted(scores, scores, right=True)]
    return torch.cat([logits.new_zeros(1), logits + higher]).logsumexp(0)
