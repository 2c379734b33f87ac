"""InfoNCE of queries against their positives and a queue of negatives that carry no gradient.

If the queue carries no gradient, InfoNCE is attention with K = V: one online-softmax sweep over the queue gives the
loss and everything that its gradient needs, so no [B, K] array exists in either pass. Only the logits of a small queue
(``WHOLE``) are computed at once.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels import softmax
from xrep.kernels.arguments import check_tensors, scalar
from xrep.kernels.fused import steps_for
from xrep.kernels.judge import Judge, bars
from xrep.kernels.pairs import beaten
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add, operand_dtype
from xrep.kernels.softmax import Couple, QueueSoftmax, mask_above, mask_equal

WHOLE = 512, 8192
"""Most queries, and most rows of a queue, whose logits are computed at once. Up to here this is faster than blocks, and
from 64 x 4,096 on as fast as plain torch. The sum of a softmax over more rows would be rounded too often."""


class InfoNCE(NamedTuple):
    """Results of each query: ``loss`` [B] (nats), ``correct`` bool [B], whether the positive beats every negative.

    A tie does not count as correct.
    """

    loss: Tensor
    correct: Tensor


def queue_infonce(
    query: Tensor,
    positive: Tensor,
    queue: Tensor,
    temperature: float | Tensor,
    *,
    valid: int | Tensor | None = None,
    query_ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    judge: Judge | None = None,
    queue_guide: Tensor | None = None,
) -> InfoNCE:
    """Compute -log softmax of the positive among itself and the queue (dual momentum contrast, eq. 2).

    Sums are kept in float32 (float64 for float64 inputs) whatever the type of the inputs. On GPUs under autocast, the
    products with the queue read autocast's type.

    Args:
        query: h_x [B, D].
        positive: h_y [B, D], the key of each query.
        queue: h_{y_i} [K, D]; its type may differ from that of the queries. It never receives gradient.
        temperature: tau, a float or a tensor of one element, which may be learnable.
        valid: number of filled rows at the start of the queue; the rest is masked. Default: all rows are filled.
        query_ids: int64 [B, C]. A row of the queue that equals the query in any column is masked.
        queue_ids: int64 [K, C]; both or neither.
        judge: says which rows are too similar to the query to count.
        queue_guide: float [K, G], the vectors that the judge's guide, if it has one, gives to the rows of the queue.

    Returns:
        Loss (float32, or float64 for float64 queries) and correctness of each query. Gradients flow to ``query``,
        ``positive`` and ``temperature``.

    Raises:
        ValueError: types, shapes or devices do not fit, the temperature is not above 0, only one of ``query_ids`` and
            ``queue_ids`` is given, or ``valid`` is outside the queue.
    """
    check_tensors(
        query=(query, "float B D"),
        positive=(positive, "float B D"),
        queue=(queue, "float K D"),
        query_ids=(query_ids, "int64 B C"),
        queue_ids=(queue_ids, "int64 K C"),
        queue_guide=(queue_guide, "float K G"),
    )
    if (query_ids is None) != (queue_ids is None):
        raise ValueError("query_ids and queue_ids mask together: give both or neither")
    if (judge is None or judge.guide is None) != (queue_guide is None):
        raise ValueError("the judge's guide and queue_guide judge together: give both or neither")
    if judge is not None and judge.guide is not None and queue_guide is not None:
        judge = replace(judge, guide=judge.guide.to(queue_guide.dtype).to(judge.guide.dtype))  # rounded as in the queue
    tau = scalar("temperature", temperature, accumulation_dtype(query), query.device)
    count = len(queue) if valid is None else int(valid)
    if not 0 <= count <= len(queue):
        raise ValueError(f"valid must lie in [0, {len(queue)}], not be {count}")
    queue, queue_ids = queue[:count].detach(), None if queue_ids is None else queue_ids[:count]
    ids = None if query_ids is None or queue_ids is None else (query_ids, queue_ids)
    operand = tau.dtype if torch.float64 in (queue.dtype, tau.dtype) else operand_dtype(queue)
    learns = torch.is_grad_enabled() and (query.requires_grad or positive.requires_grad or tau.requires_grad)
    with torch.autocast(query.device.type, enabled=False):
        given = query, positive, tau, queue, ids, operand, learns, judge, queue_guide
        return InfoNCE(*_QueueInfoNCE.apply(*given))


def against_both(one: InfoNCE, other: InfoNCE) -> InfoNCE:
    """Return the result against two sets of negatives together, from the results against each of them.

    Queries and positives must be the same. With L = log(1 + S), where S is the sum of the negatives divided by the
    positive's share, the loss is log(1 + S + S') = log(e^L + e^L' - 1).
    """
    low, high = torch.minimum(one.loss, other.loss), torch.maximum(one.loss, other.loss)
    return InfoNCE(high + torch.log1p(-torch.expm1(-low) * torch.exp(low - high)), one.correct & other.correct)


class _QueueInfoNCE(torch.autograd.Function):
    """The loss and correctness of each query. The forward pass finds Σ_j p_j k_j, which the gradient needs."""

    @staticmethod
    def forward(ctx, query, positive, tau, queue, ids, operand, learns, judge, queue_guide):
        wide, steps = query.to(tau.dtype), steps_for(query.device)
        similarity = (wide * positive.to(tau.dtype)).sum(1)
        scaled = similarity / tau
        # Scaled queries save a pass over the scores, but would be rounded once more in half precision.
        rows, scale = (wide / tau, None) if operand == tau.dtype else (query.to(operand), 1 / tau)
        rounded, level = positive, scaled
        if {queue.dtype, operand} != {tau.dtype}:  # a repetition of the positive must tie with it
            rounded = positive.to(queue.dtype).to(operand).to(tau.dtype)
            level = (rows.to(tau.dtype) * rounded).sum(1) / (1.0 if scale is None else tau)
        bar, _ = bars(judge, rows.to(tau.dtype), rounded, tau if scale is None else 1.0)
        limit = None if bar is None else bar[:, 0].contiguous()
        guides = None if bar is None or queue_guide is None else (bar[:, 1:], queue_guide)
        at_once = steps is softmax and scale is None and len(query) <= WHOLE[0] and 0 < len(queue) <= WHOLE[1]
        if at_once:
            loss, best, share, mixture = _at_once(rows, scaled, queue.to(operand), ids, limit, guides, learns)
        else:
            mixture = torch.zeros_like(wide, memory_format=torch.contiguous_format) if learns else None
            # The running softmax starts from the positive, so its maximum is finite even if every negative is masked.
            best, total = torch.full_like(scaled, -torch.inf), torch.zeros_like(scaled)
            state = QueueSoftmax(scale, scaled.clone(), total, best, mixture, operand, limit)
            _sweep(rows, queue, ids, state, steps, guides)
            # The positive's share is added last, so that it does not round many small negatives away one by one.
            gap = state.maximum - scaled
            total = state.total + torch.exp(-gap)
            loss = torch.where(gap > 0, gap + total.log(), state.total.log1p())
            share = state.total / total
            mixture = None if mixture is None else mixture.div_(total.unsqueeze(1))
        correct = beaten(best - level, level)
        if learns:
            ctx.save_for_backward(query, positive, tau, mixture, share, similarity)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return ∂L/∂q = (o - (1 - p⁺) k⁺)/τ, ∂L/∂k⁺ = -(1 - p⁺) q/τ and ∂L/∂τ = ((1 - p⁺) s⁺ - q·o)/τ².

        Here o = Σ_j p_j k_j over the negatives, and s⁺ is the similarity of the positive.
        """
        query, positive, tau, mixture, share, similarity = ctx.saved_tensors
        q, k = query.to(tau.dtype), positive.to(tau.dtype)
        scale, shares = (gradient / tau).unsqueeze(1), share.unsqueeze(1)
        of_query = (scale * (mixture - shares * k)).to(query.dtype)
        of_positive = (-scale * shares * q).to(positive.dtype)
        of_tau = None
        if ctx.needs_input_grad[2]:
            of_tau = (gradient * (share * similarity - (q * mixture).sum(1))).sum() / tau**2
        return of_query, of_positive, of_tau, *[None] * 6


def _at_once(
    rows: Tensor, scaled: Tensor, queue: Tensor, ids: Couple, limit: Tensor | None, guides: Couple, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return loss, best negative logit and 1 - p⁺ of queries [B, D], and Σ_j p_j k_j, from one softmax.

    Args:
        rows, scaled: queries over the temperature, and the logits of their positives [B].
        limit: the largest similarity of a negative that counts [B], in the units of the logits, or of ``guides``.
    """
    logits, lowest = multiply(rows, queue.t()), torch.finfo(rows.dtype).min
    if limit is not None:
        mask_above(logits, limit, _of_guides(guides, slice(len(queue))), lowest)
    if ids is not None:
        mask_equal(logits, *ids, lowest)
    best, weights = logits.amax(1), torch.softmax(logits, 1)
    # The largest weight is 1 / Σ_j exp(logit_j - best).
    excess = (best - scaled) - weights.amax(1).log()
    share = excess.sigmoid()
    mixture = multiply(weights, queue).mul_(share.unsqueeze(1)) if learns else None
    return F.softplus(excess, threshold=40), best, share, mixture


def _sweep(rows: Tensor, queue: Tensor, ids: Couple, state: QueueSoftmax, steps: ModuleType, guides: Couple) -> None:
    """Add all rows of the queue [K, D] to the running softmax of queries [B, D], block by block."""
    if not len(rows) or not len(queue):
        return
    size = steps.queue_rows(len(rows))
    scores = state.maximum.new_empty(len(rows) * min(size, len(queue)))
    for start in range(0, len(queue), size):
        block = queue[start : start + size].to(state.operand)
        place = scores[: len(rows) * len(block)].view(len(rows), -1)
        own = None if ids is None else (ids[0], ids[1][start : start + len(block)])
        judged = _of_guides(guides, slice(start, start + len(block)))
        weights = steps.absorb(multiply(rows, block.t(), out=place), state, own, judged)
        if state.mixture is not None:
            multiply_add(state.mixture, weights, block)


def _of_guides(guides: Couple, rows: slice) -> Tensor | None:
    """Return the similarities that a guide finds between the queries and some rows of the queue, [B, n]."""
    return None if guides is None else multiply(guides[0], guides[1][rows].to(guides[0].dtype).t())
