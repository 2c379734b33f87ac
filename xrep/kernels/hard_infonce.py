"""HiCTL's sentence-level contrast: negatives from both sides of the batch become harder as the model improves."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.gather import gather_rows, rank_sizes
from xrep.kernels.pairwise import beaten, check_pairs, negatives
from xrep.kernels.precision import accumulation_dtype, scalar


class HardInfoNCE(NamedTuple):
    """Results of each pair, with x and with y as the query.

    Attributes:
        forward, backward: losses [B] (nats).
        forward_correct, backward_correct: bool [B], whether the positive beat every negative of the batch as it was
            before it was made harder.
        forward_interpolation, backward_interpolation: [B], mean λ of the query's negatives; 1 if they are unchanged.
    """

    forward: Tensor
    backward: Tensor
    forward_correct: Tensor
    backward_correct: Tensor
    forward_interpolation: Tensor
    backward_interpolation: Tensor


def hard_infonce(
    x: Tensor,
    y: Tensor,
    temperature: float | Tensor,
    *,
    exponent: float | Tensor,
    normalize: bool = False,
    ids: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> HardInfoNCE:
    """Compute -log softmax of the positive's cosine among itself and 2B - 2 hardened negatives (HiCTL, eq. 2, 3, 5, 6).

    A negative k of a query q with the positive k⁺ is replaced by k̂ = q + λ (k - q), λ = (d⁺/d⁻)^exponent, if it is
    farther from the query (distance d⁻) than the positive is (distance d⁺). λ carries no gradient. The cosine of q and
    k̂ follows from q·k and the norms, so no k̂ is ever computed: with a = |q|², b = |k|², u = q·k it is
    ((1-λ) a + λ u) / √(a ((1-λ)² a + λ² b + 2 λ (1-λ) u)).

    Args:
        x, y: [B, D], vectors of any length; row i of ``y`` is the positive of row i of ``x``.
        temperature: divides all cosines; a float or a tensor of one element, which may be learnable. The paper uses 1.
        exponent: ζ · p⁺ in eq. 6: 0.9 times the mean of exp(-loss) over the last 100 batches. 0 leaves the negatives
            unchanged.
        normalize: scale the vectors to length 1 first. The paper does not.
        ids: int64 [B, I]; two pairs that are equal in any column are not negatives of each other.
        group: processes whose pairs are also used as negatives, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_pairs(x, y, ids)
    accumulate = accumulation_dtype(x, y)
    tau = scalar(temperature, accumulate, x.device)
    exponent = scalar(exponent, accumulate, x.device).detach()
    with torch.autocast(x.device.type, enabled=False):
        if normalize:
            x, y = (F.normalize(side.to(accumulate), dim=1).to(side.dtype) for side in (x, y))
        positive = F.cosine_similarity(x.to(accumulate), y.to(accumulate), dim=1) / tau
    size, start, total, everyone, all_ids = len(x), 0, len(x), [x, y], ids
    if group is not None:
        sizes = rank_sizes(size, x.device, group)
        start, total = sum(sizes[: dist.get_rank(group)]), sum(sizes)
        everyone = [gather_rows(rows, sizes, group) for rows in everyone]
        all_ids = None if ids is None else gather_rows(ids, sizes, group)
    pair = torch.arange(start, start + size, device=x.device).repeat(2)
    shift = positive.detach()
    found = negatives(
        torch.cat([x, y]),
        torch.cat(everyone),
        tau,
        row_shift=shift.repeat(2),
        column_shift=None,
        excluded=torch.stack([pair, pair + total], 1),  # itself and its positive
        row_ids=None if ids is None else ids.repeat(2, 1),
        column_ids=None if all_ids is None else all_ids.repeat(2, 1),
        row_positive=torch.cat([y, x]),
        exponent=exponent,
    )
    # The difference is 0, but carries the gradient of the positive. The threshold keeps float64 losses exact.
    losses = F.softplus(found.rows + (shift - positive).repeat(2), threshold=40)
    fields = (losses, beaten(found.row_best, shift.repeat(2)), found.interpolation)
    return HardInfoNCE(*(half for field in fields for half in field.unflatten(0, (2, size))))
