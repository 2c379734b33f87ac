"""Negatives that belong to single queries, such as those mined for them, added to any InfoNCE."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.arguments import check_number, check_tensors, scalar
from xrep.kernels.pairwise import beaten
from xrep.kernels.precision import accumulation_dtype


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
) -> tuple[Tensor, Tensor]:
    """Compute InfoNCE with further negatives from InfoNCE without them; each counts for one query only.

    A loss is log(1 + Σ e^(s_j - s⁺)), where s⁺ is the logit of the positive and s_j those of the negatives. With the
    logits h of a query's own negatives it becomes log(e^loss + Σ e^(h - s⁺)).

    Args:
        loss, correct: float and bool [B], the results of any InfoNCE of ``query`` and ``positive``.
        query, positive: float [B, D].
        negative: float [N, D]. A query may have any number of them, also none.
        rows: int64 [N], the row of the query that each negative belongs to.
        temperature, margin: those of ``loss``.

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
        excess = (wide.index_select(0, rows) * negative.to(accumulate)).sum(1) / tau - own.index_select(0, rows)
        # A query without negatives gets this one, whose share of the loss and of the gradient is 0.
        nothing = torch.full_like(own, torch.finfo(accumulate).min / 4)
        best = nothing.scatter_reduce(0, rows, excess.detach(), "amax")
        shares = (excess - best.index_select(0, rows)).exp()
        logsumexp = best + (nothing - best).exp().index_add(0, rows, shares).log()
        return loss + F.softplus(logsumexp - loss, threshold=40), correct & beaten(best, own.detach())
