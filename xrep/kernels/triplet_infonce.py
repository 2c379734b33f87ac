"""InfoNCE of triplets: the negatives of an anchor are the other positives and all hard negatives of the batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.gather import gather_rows, rank_sizes
from xrep.kernels.pairwise import beaten, check_pairs, negatives
from xrep.kernels.precision import accumulation_dtype, scalar


class TripletInfoNCE(NamedTuple):
    """Results of each anchor: loss [B] (nats), and whether the positive beat every negative (bool [B])."""

    loss: Tensor
    correct: Tensor


def triplet_infonce(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    temperature: float | Tensor,
    *,
    weight: float = 1.0,
    ids: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> TripletInfoNCE:
    """Compute -log (e^(a_i·p_i/τ) / Σ_j (e^(a_i·p_j/τ) + α^[i=j] e^(a_i·n_j/τ))), the loss of supervised SimCSE.

    This is equation 5 of Gao et al., 2021, with the weight of the anchor's own hard negative from their appendix. Sums
    are kept in float32 (float64 for float64 inputs) whatever the type of the inputs, under autocast too.

    Args:
        anchor, positive, negative: [B, D]; row i of each is one triplet.
        temperature: divides all similarities; a float or a tensor of one element, which may be learnable.
        weight: α, above 0: weight of the anchor's own hard negative compared with all others.
        ids: int64 [B, 3], equal for equal sentences. The positive of another triplet is then no negative if the anchors
            or the positives are equal, and its hard negative is none if it equals the anchor or the anchor's positive.
        group: processes whose triplets also provide negatives, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit, or the weight is not above 0.
    """
    check_pairs(anchor, positive, ids)
    check_pairs(anchor, negative, None)
    if not weight > 0:
        raise ValueError(f"weight must be above 0, not {weight}")
    accumulate = accumulation_dtype(anchor, positive, negative)
    tau = scalar(temperature, accumulate, anchor.device)
    with torch.autocast(anchor.device.type, enabled=False):
        wide = anchor.to(accumulate)
        own_positive, own_negative = ((wide * side.to(accumulate)).sum(1) / tau for side in (positive, negative))
    size, start, total, everyone, all_ids = len(anchor), 0, len(anchor), [positive, negative], ids
    if group is not None:
        sizes = rank_sizes(size, anchor.device, group)
        start, total = sum(sizes[: dist.get_rank(group)]), sum(sizes)
        everyone = [gather_rows(rows, sizes, group) for rows in everyone]
        all_ids = None if ids is None else gather_rows(ids, sizes, group)
    own = torch.arange(start, start + size, device=anchor.device)
    shift = own_positive.detach()
    found = negatives(
        anchor,
        torch.cat(everyone),
        tau,
        row_shift=shift,
        column_shift=None,
        excluded=torch.stack([own, own + total], 1),  # the own hard negative is added below, with its weight
        row_ids=None if ids is None else ids[:, :2],
        column_ids=None if all_ids is None else torch.cat([all_ids[:, :2], all_ids[:, [2, 2]]]),
    )
    hard = own_negative - shift
    denominator = torch.logaddexp(found.rows, hard + math.log(weight))
    # The difference is 0, but carries the gradient of the positive. The threshold keeps float64 losses exact.
    loss = F.softplus(denominator + (shift - own_positive), threshold=40)
    return TripletInfoNCE(loss, beaten(torch.maximum(found.row_best, hard.detach()), shift))
