"""Reference implementations: the formulas as they are written, in float64 and with everything materialised.

They are slow. The kernels are tested against them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NOTHING = float("-inf")


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Return whether rows of ``a`` [R, I] and ``b`` [C, I] are equal in any column: bool [R, C]."""
    return (a.unsqueeze(1) == b.unsqueeze(0)).any(-1)


def infonce(positive: Tensor, negatives: Tensor) -> Tensor:
    """Return -log softmax of the positive logit [R] among itself and the negative logits [R, C]: [R]."""
    return -torch.cat([positive.unsqueeze(1), negatives], 1).log_softmax(1)[:, 0]


def queue_infonce(query: Tensor, positive: Tensor, queue: Tensor, tau: Tensor, same: Tensor, margin: float):
    """Return the loss, the positive's logit and the largest negative logit, [B] each (dual momentum contrast, eq. 2).

    Pairs that are ``same`` [B, K] are left out of the negatives.
    """
    query, positive, queue, tau = (tensor.double() for tensor in (query, positive, queue, tau))
    positives = ((query * positive).sum(1) - margin) / tau
    negatives = (query @ queue.t() / tau).masked_fill(same, NOTHING)
    return infonce(positives, negatives), positives.detach(), F.pad(negatives.detach(), (0, 1), value=NOTHING).amax(1)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    groups: Tensor | None,
    weights: Tensor | None,
    smoothing: float,
    ignore_index: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the summed loss, the negative log-likelihood [N] and the correctness [N]."""
    logits = F.linear(hidden.double(), weight.double())
    if bias is not None:
        logits = logits + (bias.double() if groups is None else bias.double()[groups])
    options = {"ignore_index": ignore_index, "reduction": "none"}
    nll = F.cross_entropy(logits, target, **options)
    losses = F.cross_entropy(logits, target, label_smoothing=smoothing, **options)
    loss = losses.sum() if weights is None else losses @ weights.double()
    counted = target != ignore_index
    at_target = logits.gather(1, target.masked_fill(~counted, 0).unsqueeze(1)).squeeze(1)
    return loss, nll.detach(), (at_target == logits.amax(1)) & counted


def residual_norm(
    x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the layer normalisation of x + dropout(change) [..., D], and that sum, if dropout keeps ``kept``."""
    x, change, weight, bias = (tensor.double() for tensor in (x, change, weight, bias))
    total = x + change * kept / (1 - dropout)
    return F.layer_norm(total, x.shape[-1:], weight, bias, epsilon), total
