"""InfoNCE of triplets: the negatives of an anchor are the other positives and all hard negatives of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.arguments import check_number, check_tensors, scalar
from xrep.kernels.gather import gathered
from xrep.kernels.judge import Judge, bars, too_near
from xrep.kernels.linear import linear
from xrep.kernels.pairs import at_columns, beaten, equal, in_blocks, infonce, leave_out, merge, sum_exp
from xrep.kernels.precision import accumulation_dtype


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
    judge: Judge | None = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> TripletInfoNCE:
    """Compute -log (e^(a_i·p_i/τ) / Σ_j (e^(a_i·p_j/τ) + α^[i=j] e^(a_i·n_j/τ))), the loss of supervised SimCSE.

    This is equation 5 of Gao et al., 2021, with the weight of the anchor's own hard negative from their appendix. Sums
    are kept in float32 (float64 for float64 inputs) whatever the type of the inputs, under autocast too.

    Args:
        anchor: [B, D].
        positive: [B, D].
        negative: [B, D]; row i of each is one triplet.
        temperature: divides all similarities; a float or a tensor of one element, which may be learnable.
        weight: α, above 0: weight of the anchor's own hard negative compared with all others.
        ids: int64 [B, 3], equal for equal sentences. The positive of another triplet is then no negative if the anchors
            or the positives are equal, and its hard negative is none if it equals the anchor or the anchor's positive.
        judge: says which negatives, hard ones too, are too similar to the anchor to count.
        group: processes whose triplets also provide negatives, as in ``inbatch_infonce``.
        sizes: number of triplets of each process, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit, or the weight is not above 0.
    """
    sides = {"anchor": anchor, "positive": positive, "negative": negative}
    check_tensors(**{name: (side, "float B D") for name, side in sides.items()}, ids=(ids, "int64 B 3"))
    check_number("weight", weight)
    accumulate = accumulation_dtype(anchor, positive, negative)
    tau = scalar("temperature", temperature, accumulate, anchor.device)
    with torch.autocast(anchor.device.type, enabled=False):
        query = anchor.to(accumulate) / tau
        bar, of_positive = bars(judge, query, positive.to(accumulate), tau)
        guide = None if judge is None else judge.guide
        of_negative = of_positive if guide is None else F.pad(guide[:, 2], (1, 0))
        given = positive, negative, ids, of_positive, of_negative
        (all_positive, all_negative, all_ids, *of_all), start = gathered(given, group, sizes)
        key_bars = None if judge is None else torch.cat(of_all)
        key = torch.cat([all_positive.to(accumulate), all_negative.to(accumulate)])
        key_ids = None if all_ids is None else torch.cat([all_ids[:, :2], all_ids[:, [2, 2]]])

        def of_block(
            key: Tensor, query: Tensor, own: Tensor, ids: Tensor | None, bar: Tensor | None
        ) -> tuple[Tensor, ...]:
            logits = linear(query, key)
            pair, same = at_columns(logits, own), too_near(logits, bar, key_bars, equal(ids, key_ids))
            return pair, *sum_exp(leave_out(logits, own, same), 1)

        own = torch.arange(start, start + len(anchor), device=anchor.device)
        own = torch.stack([own, own + len(all_positive)], 1)  # the own hard negative is added below
        given = query, own, None if ids is None else ids[:, :2], bar
        pairs, best, total = in_blocks(of_block, [key], given)
        own_positive, own_negative = pairs.unbind(1)
        hardest, shift = own_negative.detach(), own_positive.detach()
        own_total = weight * (own_negative - hardest).exp()  # the weight, with the gradient of the own hard negative
        if bar is not None and of_negative is not None:
            judged = hardest if guide is None else (bar * of_negative)[:, 1:].sum(1)
            near = judged > bar[:, 0]
            hardest = hardest.masked_fill(near, torch.finfo(accumulate).min)
            own_total = own_total.masked_fill(near, 0)
        loss = infonce(*merge(torch.stack([best, hardest]), torch.stack([total, own_total])), own_positive)
        return TripletInfoNCE(loss, beaten(torch.maximum(best, hardest) - shift, shift))
