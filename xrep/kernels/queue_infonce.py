"""InfoNCE of queries against their positives and a queue of negatives that carry no gradient.

If the queue carries no gradient, InfoNCE is attention with K = V: one online-softmax sweep over the queue gives the
loss and everything that its gradient needs, so no [B, K] array exists in either pass.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from xrep.kernels import reference
from xrep.kernels.arguments import check_number, check_tensors, scalar
from xrep.kernels.blocks import QueueSoftmax
from xrep.kernels.pairs import beaten
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add, operand_dtype


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
    margin: float = 0.0,
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
        query_ids, queue_ids: int64 [B, C] and [K, C], both or neither. A row of the queue that equals the query in any
            column is masked.
        margin: m, subtracted from the positive's similarity before the temperature.

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
    )
    if (query_ids is None) != (queue_ids is None):
        raise ValueError("query_ids and queue_ids mask together: give both or neither")
    check_number("margin", margin, -math.inf)
    tau = scalar("temperature", temperature, accumulation_dtype(query), query.device)
    filled = torch.as_tensor(len(queue) if valid is None else valid)
    queue = queue.detach()
    if path_for(query.device) == "reference":
        return _reference(query, positive, queue, tau, filled, query_ids, queue_ids, margin)
    differentiable = torch.is_grad_enabled() and (query.requires_grad or positive.requires_grad or tau.requires_grad)
    operand = operand_dtype(queue)
    if torch.float64 in (operand, tau.dtype):
        operand = tau.dtype
    inputs = query, positive, queue, tau, filled, query_ids, queue_ids
    loss, correct, *_ = _sweep(*inputs, margin, operand, differentiable)
    return InfoNCE(loss, correct)


def against_both(one: InfoNCE, other: InfoNCE) -> InfoNCE:
    """Return the result against two sets of negatives together, from the results against each of them.

    Queries and positives must be the same. With L = log(1 + S), where S is the sum of the negatives divided by the
    positive's share, the loss is log(1 + S + S') = log(e^L + e^L' - 1).
    """
    low, high = torch.minimum(one.loss, other.loss), torch.maximum(one.loss, other.loss)
    return InfoNCE(high + torch.log1p(-torch.expm1(-low) * torch.exp(low - high)), one.correct & other.correct)


def _filled(queue: Tensor, filled: Tensor) -> Tensor:
    count = int(filled)
    if not 0 <= count <= len(queue):
        raise ValueError(f"valid must lie in [0, {len(queue)}], not be {count}")
    return queue[:count]


def _reference(query, positive, queue, tau, filled, query_ids, queue_ids, margin) -> InfoNCE:
    queue = _filled(queue, filled)
    same = torch.zeros(len(query), len(queue), dtype=torch.bool, device=query.device)
    if query_ids is not None:
        same = reference.equal(query_ids, queue_ids[: len(queue)])
    loss, positives, best = reference.queue_infonce(query, positive, queue, tau, same, margin)
    return InfoNCE(loss.to(tau.dtype), beaten((best - positives).to(tau.dtype), positives.to(tau.dtype)))


@torch.library.custom_op("xrep::queue_infonce", mutates_args=())
def _sweep(
    query: Tensor,
    positive: Tensor,
    queue: Tensor,
    tau: Tensor,
    filled: Tensor,
    query_ids: Tensor | None,
    queue_ids: Tensor | None,
    margin: float,
    operand: torch.dtype,
    differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, correctness, and for the gradient: Σ_j p_j k_j over the negatives, 1 - p⁺, the similarity."""
    with torch.autocast(query.device.type, enabled=False):
        accumulate = accumulation_dtype(query)
        similarity = (query.to(accumulate) * positive.to(accumulate)).sum(1) - margin
        scaled = similarity / tau
        # Scaled queries save a pass over the scores, but would be rounded once more in half precision.
        folded = operand == accumulate
        rows = (query.to(accumulate) / tau if folded else query).to(operand)
        # The running softmax starts from the positive, so its maximum is finite even if every negative is masked.
        state = QueueSoftmax(
            scale=None if folded else 1 / tau,
            maximum=scaled.clone(),
            total=torch.zeros_like(scaled),
            hardest=torch.full_like(scaled, float("-inf")),
            mixture=torch.zeros(query.shape, dtype=accumulate, device=query.device) if differentiable else None,
            operand=operand,
        )
        _sweep_blocks(rows, _filled(queue, filled), query_ids, queue_ids, state)
        # The positive's share is added last, so that it does not round many small negatives away one by one.
        gap = state.maximum - scaled
        total = state.total + torch.exp(-gap)
        loss = torch.where(gap > 0, gap + total.log(), state.total.log1p())
        mixture = query.new_empty(0) if state.mixture is None else state.mixture.div_(total.unsqueeze(1))
        return loss, beaten(state.hardest - scaled, scaled), mixture, state.total / total, similarity


def _sweep_blocks(rows: Tensor, queue: Tensor, query_ids, queue_ids, state: QueueSoftmax) -> None:
    if not len(rows) or not len(queue):
        return
    steps = steps_for(rows.device)
    size = steps.queue_rows(len(rows))
    scores = state.maximum.new_empty(len(rows) * min(size, len(queue)))
    for start in range(0, len(queue), size):
        block = queue[start : start + size].to(state.operand)
        place = scores[: len(rows) * len(block)].view(len(rows), -1)
        ids = None if query_ids is None else (query_ids, queue_ids[start : start + len(block)])
        weights = steps.absorb(multiply(rows, block.t(), out=place), state, ids)
        if state.mixture is not None:
            multiply_add(state.mixture, weights, block)


@_sweep.register_fake
def _(query, positive, queue, tau, filled, query_ids, queue_ids, margin, operand, differentiable):
    rows = tau.new_empty(query.size(0))
    mixture = tau.new_empty(query.shape) if differentiable else query.new_empty(0)
    return rows, torch.empty_like(rows, dtype=torch.bool), mixture, torch.empty_like(rows), torch.empty_like(rows)


@torch.library.custom_op("xrep::queue_infonce_backward", mutates_args=())
def _gradients(
    gradient: Tensor, query: Tensor, positive: Tensor, tau: Tensor, mixture: Tensor, share: Tensor, similarity: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ∂L/∂q = (o - (1 - p⁺) k⁺)/τ, ∂L/∂k⁺ = -(1 - p⁺) q/τ, ∂L/∂τ = ((1 - p⁺) s⁺ - q·o)/τ², o = Σ_j p_j k_j."""
    q, k = query.to(tau.dtype), positive.to(tau.dtype)
    scale, share = (gradient / tau).unsqueeze(1), share.unsqueeze(1)
    of_tau = (gradient * (share.squeeze(1) * similarity - (q * mixture).sum(1))).sum() / tau**2
    return (
        (scale * (mixture - share * k)).to(query.dtype).contiguous(),
        (-scale * share * q).to(positive.dtype).contiguous(),
        of_tau.view_as(tau),
    )


@_gradients.register_fake
def _(gradient, query, positive, tau, mixture, share, similarity):
    return query.new_empty(query.shape), positive.new_empty(positive.shape), torch.empty_like(tau)


def _keep(ctx, inputs, output) -> None:
    query, positive, _, tau, *_ = inputs
    _, correct, mixture, share, similarity = output
    ctx.save_for_backward(query, positive, tau, mixture, share, similarity)
    ctx.mark_non_differentiable(correct, mixture, share, similarity)
    ctx.set_materialize_grads(False)


def _backward(ctx, gradient, *_):
    if gradient is None:
        return (None,) * 10
    query, positive, tau = _gradients(gradient, *ctx.saved_tensors)
    return query, positive, None, tau, None, None, None, None, None, None


_sweep.register_autograd(_backward, setup_context=_keep)
