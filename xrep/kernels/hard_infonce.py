"""HiCTL's sentence-level contrast: negatives from both sides of the batch become harder as the model improves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.arguments import check_tensors, scalar
from xrep.kernels.blocks import SMALLEST_SQUARE
from xrep.kernels.gather import gathered
from xrep.kernels.pairwise import beaten, loss_of, negatives, squared_norms
from xrep.kernels.precision import accumulation_dtype


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
    sizes: Sequence[int] | None = None,
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
        group, sizes: processes whose pairs are also used as negatives, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_tensors(x=(x, "float B D"), y=(y, "float B D"), ids=(ids, "int64 B I"))
    accumulate = accumulation_dtype(x, y)
    tau = scalar("temperature", temperature, accumulate, x.device)
    exponent = scalar("exponent", exponent, accumulate, x.device, least=0).detach()
    with torch.autocast(x.device.type, enabled=False):
        if normalize:
            x, y = (F.normalize(side.to(accumulate), dim=1).to(side.dtype) for side in (x, y))
        wide = x.to(accumulate), y.to(accumulate)
        positive = _Cosines.apply(*wide) / tau
        distance = (wide[0] - wide[1]).detach().square_().sum(1).repeat(2)
    (all_x, all_y, all_ids), start = gathered([x, y, ids], group, sizes)
    pair = torch.arange(start, start + len(x), device=x.device).repeat(2)
    shift, positive = positive.detach().repeat(2), positive.repeat(2)
    queries = torch.cat([x, y])
    result = negatives(
        queries,
        queries if group is None else torch.cat([all_x, all_y]),
        tau,
        row_shift=shift,
        excluded=torch.stack([pair, pair + len(all_x)], 1),  # itself and its positive
        row_ids=None if ids is None else ids.repeat(2, 1),
        column_ids=None if all_ids is None else all_ids.repeat(2, 1),
        row_distance=distance,
        exponent=exponent,
    )
    fields = loss_of(result.rows, shift, positive), beaten(result.row_best, shift), result.interpolation
    return HardInfoNCE(*(half for field in fields for half in field.unflatten(0, (2, len(x)))))


class _Cosines(torch.autograd.Function):
    """Cosines of the rows of x and y [B, D], with fewer passes over the vectors than ``F.cosine_similarity``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        squares = squared_norms(x), squared_norms(y)
        cosine = (x * y).sum(1) * squares[0].rsqrt() * squares[1].rsqrt()
        ctx.save_for_backward(x, y, *squares, cosine)
        return cosine

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, y, of_x, of_y, cosine = ctx.saved_tensors
        across = (gradients[0] * of_x.rsqrt() * of_y.rsqrt()).unsqueeze(1)
        own = [
            (-gradients[0] * cosine / square).masked_fill(square <= SMALLEST_SQUARE, 0).unsqueeze(1)
            for square in (of_x, of_y)
        ]
        return (across * y).addcmul_(own[0], x), (across * x).addcmul_(own[1], y)
