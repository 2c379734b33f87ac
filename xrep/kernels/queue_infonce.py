"""InfoNCE of queries against their positives and a queue of negatives that carry no gradient.

With a stop-gradient queue InfoNCE is attention with K = V: one online-softmax sweep over the queue gives the loss and
everything its gradient needs, so no [B, K] array exists in either pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.precision import fast_products

BLOCK_SIZE = 4096
"""Rows of the queue per step of the sweep: small enough to stay in cache."""


class InfoNCE(NamedTuple):
    """Per-query results: ``loss`` float32 [B] (nats), ``correct`` bool [B] (the positive beats every negative)."""

    loss: Tensor
    correct: Tensor


def queue_infonce(
    query: Tensor,
    positive: Tensor,
    queue: Tensor,
    temperature: float | Tensor,
    *,
    valid: int | None = None,
    query_ids: Tensor | None = None,
    queue_ids: Tensor | None = None,
    margin: float = 0.0,
) -> InfoNCE:
    """-log softmax of the positive among itself and the queue (dual momentum contrast, eq. 2).

    Args:
        query: h_x [B, D].
        positive: h_y [B, D], the key of each query.
        queue: h_{y_i} [K, D]; may have another dtype than the queries. Never receives gradient.
        temperature: tau, a float or a tensor of one element, which may be learnable.
        valid: number of filled rows at the start of the queue; the rest is masked. Default: all.
        query_ids, queue_ids: int64 [B, C] and [K, C], both or neither: a row of the queue that equals the query in any
            column is masked.
        margin: m, subtracted from the positive's similarity before the temperature.

    Returns:
        Loss and correctness of each query. Gradients flow to ``query``, ``positive`` and ``temperature``.

    Raises:
        ValueError: ids of the queries without ids of the queue, or the reverse.
    """
    queue = queue.detach() if valid is None else queue[:valid].detach()
    if (query_ids is None) != (queue_ids is None):
        raise ValueError("query_ids and queue_ids mask together: give both or neither")
    ids = None if query_ids is None or queue_ids is None else (query_ids, queue_ids[: len(queue)])
    tau = torch.as_tensor(temperature, dtype=torch.float32, device=query.device)
    with torch.autocast(query.device.type, enabled=False):  # similarities are float32 whatever else is rounded
        loss, correct = _QueueInfoNCE.apply(query, positive, queue, tau, ids, margin)
    return InfoNCE(loss, correct)


class _QueueInfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, positive, queue, tau, ids, margin):
        q, k = query.float(), positive.float()
        positive_dot = (q * k).sum(-1) - margin
        # The running softmax starts from the positive, so its maximum is finite even if every negative is masked.
        maximum = positive_dot / tau
        total = torch.ones_like(maximum)
        mixture = torch.zeros_like(q)
        hardest = torch.full_like(maximum, float("-inf"))
        needs_mixture = any(ctx.needs_input_grad[i] for i in (0, 1, 3))
        for start in range(0, len(queue), BLOCK_SIZE):
            block = queue[start : start + BLOCK_SIZE].float()
            with fast_products(q):
                scores = q @ block.t()
            scores /= tau
            if ids is not None:
                same = (ids[0].unsqueeze(1) == ids[1][start : start + BLOCK_SIZE].unsqueeze(0)).any(-1)
                scores.masked_fill_(same, float("-inf"))
            block_maximum = scores.amax(1)
            hardest = torch.maximum(hardest, block_maximum)
            raised = torch.maximum(maximum, block_maximum)
            shrink = (maximum - raised).exp()
            weights = scores.sub_(raised.unsqueeze(1)).exp_()
            total = total * shrink + weights.sum(1)
            if needs_mixture:
                with fast_products(q):
                    mixture = torch.addmm(mixture * shrink.unsqueeze(1), weights, block)
            maximum = raised
        scaled = positive_dot / tau
        # In this order: the maximum may be so large that a small log would be rounded away beside it.
        loss = (maximum - scaled) + total.log()
        # softmax-weighted sum of the negatives, Σ_j p_j k_j, and the negatives' share of the softmax, 1 - p⁺
        mixture /= total.unsqueeze(1)
        share = -torch.expm1(-loss)
        ctx.save_for_backward(query, positive, tau, mixture, share, positive_dot)
        correct = scaled > hardest
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):
        query, positive, tau, mixture, share, positive_dot = ctx.saved_tensors
        q, k = query.float(), positive.float()
        of_query = of_positive = of_tau = None
        scale = (gradient / tau).unsqueeze(1)
        if ctx.needs_input_grad[0]:
            of_query = (scale * (mixture - share.unsqueeze(1) * k)).to(query.dtype)
        if ctx.needs_input_grad[1]:
            of_positive = (-scale * share.unsqueeze(1) * q).to(positive.dtype)
        if ctx.needs_input_grad[3]:
            per_query = (share * positive_dot - (q * mixture).sum(-1)) / tau**2
            of_tau = (gradient * per_query).sum().view_as(tau)
        return of_query, of_positive, None, of_tau, None, None
