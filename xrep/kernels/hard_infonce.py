"""HiCTL's sentence-level contrast: negatives from both sides of the batch become harder as the model improves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from xrep.kernels.arguments import check_tensors, scalar
from xrep.kernels.gather import gathered
from xrep.kernels.judge import Judge, bars, too_near
from xrep.kernels.linear import linear
from xrep.kernels.pairs import at_columns, beaten, equal, highest, in_blocks, infonce, leave_out, sum_exp
from xrep.kernels.precision import accumulation_dtype

SMALLEST_SQUARE = 1e-16
"""Lower bound of squared norms in a cosine, as in ``torch.nn.functional.cosine_similarity``."""


class HardInfoNCE(NamedTuple):
    """Results of each pair, with x and with y as the query.

    Attributes:
        forward: losses [B] (nats) with x as the query.
        backward: those with y as the query.
        forward_correct: bool [B], whether the positive beat every negative of the batch as it was before it was made
            harder.
        backward_correct: the same with y as the query.
        forward_interpolation: [B], mean λ of the query's negatives; 1 if they are unchanged.
        backward_interpolation: the same with y as the query.
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
    ids: Tensor | None = None,
    judge: Judge | None = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> HardInfoNCE:
    """Compute -log softmax of the positive's cosine among itself and 2B - 2 hardened negatives (HiCTL, eq. 2, 3, 5, 6).

    A negative k of a query q with the positive k⁺ is replaced by k̂ = q + λ (k - q), λ = (d⁺/d⁻)^exponent, if it is
    farther from the query (distance d⁻) than the positive is (distance d⁺). λ carries no gradient.

    No k̂ is ever computed, only its parts along q and across: along q, k has c = q·k / |q| and k̂ has ĉ = (1 - λ) |q| +
    λ c; across, k has √(|k|² - c²), of which k̂ keeps λ. So the cosine of q and k̂ is ĉ / √(ĉ² + λ² (|k|² - c²)).

    Args:
        x: [B, D], vectors of any length.
        y: [B, D]; row i is the positive of row i of ``x``.
        temperature: divides all cosines; a float or a tensor of one element, which may be learnable. The paper uses 1.
        exponent: ζ · p⁺ in eq. 6: 0.9 times the mean of exp(-loss) over the last 100 batches. 0 leaves the negatives
            unchanged.
        ids: int64 [B, I]; two pairs that are equal in any column are not negatives of each other.
        judge: says which negatives are too similar to the query to count.
        group: processes whose pairs are also used as negatives, as in ``inbatch_infonce``.
        sizes: number of pairs of each process, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_tensors(x=(x, "float B D"), y=(y, "float B D"), ids=(ids, "int64 B I"))
    accumulate = accumulation_dtype(x, y)
    tau = scalar("temperature", temperature, accumulate, x.device)
    exponent = scalar("exponent", exponent, accumulate, x.device, least=0).detach()
    with torch.autocast(x.device.type, enabled=False):
        query = torch.cat([x.to(accumulate), y.to(accumulate)])
        square = _squared_norms(query)
        unit = query / (length := square.sqrt().unsqueeze(1))
        own_bars = bars(judge, *unit.unflatten(0, (2, len(x))))
        (all_x, all_y, all_ids, *all_bars), start = gathered([x, y, ids, *own_bars], group, sizes)
        key = query if group is None else torch.cat([all_x.to(accumulate), all_y.to(accumulate)])
        key_ids = None if all_ids is None else all_ids.repeat(2, 1)
        key_bars, key_square = None if judge is None else torch.cat(all_bars), _squared_norms(key)
        near = (x.detach().to(accumulate) - y.detach()).square().sum(1, keepdim=True).repeat(2, 1)
        positive = ((unit[: len(x)] * unit[len(x) :]).sum(1) / tau).repeat(2)

        def of_block(
            key: Tensor, key_square: Tensor, tau: Tensor,
            unit: Tensor, length: Tensor, near: Tensor, excluded: Tensor, ids: Tensor | None, bar: Tensor | None,
        ) -> tuple[Tensor, ...]:  # fmt: skip
            """Return what ``sum_exp`` finds of the hardened negatives; the logits of the best plain one and of the
            positive, which the same product may have rounded; and the mean λ, [r] each."""
            along = linear(unit, key)  # q·k / |q|
            with torch.no_grad():
                plain = along * key_square.rsqrt()
                same = too_near(plain, bar, key_bars, equal(ids, key_ids))
                level = at_columns(plain, excluded[:, 1:]).squeeze(1) / tau
                best = highest(leave_out(plain, excluded, same), 1) / tau
                far = length * length + key_square - 2 * length * along
                mixing = torch.where(far > near, (near / far) ** (exponent / 2), 1.0)  # λ
                compared = leave_out(torch.ones_like(mixing, dtype=torch.bool), excluded, same, False)
                count, total = compared.sum(1), leave_out(mixing, excluded, same, 0).sum(1)
                interpolation = torch.where(count > 0, total / count, 1.0)
                rest, squared = 1 - mixing, mixing * mixing
            hardened = rest * length + mixing * along  # q·k̂ / |q|
            square = hardened.square() + squared * (key_square - along.square())  # |k̂|²
            cosine = hardened * square.clamp(min=SMALLEST_SQUARE).rsqrt()
            return *sum_exp(leave_out(cosine / tau, excluded, same), 1), best, level, interpolation

        own = torch.arange(start, start + len(x), device=x.device)
        columns = torch.stack([own, own + len(all_x)], 1)  # of x: itself and its positive
        excluded, bar = torch.cat([columns, columns.flip(1)]), None if judge is None else torch.cat(own_bars)
        rows = unit, length, near, excluded, None if ids is None else ids.repeat(2, 1), bar
        hardest, total, best, level, interpolation = in_blocks(of_block, [key, key_square, tau], rows)
        best, level, interpolation = best.detach(), level.detach(), interpolation.detach()
        fields = infonce(hardest, total, positive), beaten(best - level, level), interpolation
        return HardInfoNCE(*(half for field in fields for half in field.unflatten(0, (2, len(x)))))


def _squared_norms(vectors: Tensor) -> Tensor:
    """Return the squared norms [N] of vectors [N, D], which are at least ``SMALLEST_SQUARE``."""
    return vectors.square().sum(1).clamp(min=SMALLEST_SQUARE)
