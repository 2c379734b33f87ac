"""InfoNCE of triplets: the negatives of an anchor are the other positives and all hard negatives of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.arguments import check_tensors, scalar
from xrep.kernels.gather import gathered
from xrep.kernels.judge import Judge, bars, too_near
from xrep.kernels.linear import linear
from xrep.kernels.pairs import at_columns, beaten, equal, in_blocks, infonce, leave_out, sum_exp
from xrep.kernels.precision import accumulation_dtype
from xrep.kernels.queue_infonce import InfoNCE


def triplet_infonce(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    temperature: float | Tensor,
    *,
    ids: Tensor | None = None,
    judge: Judge | None = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> InfoNCE:
    """Compute -log (e^(a_i·p_i/τ) / Σ_j (e^(a_i·p_j/τ) + e^(a_i·n_j/τ))), the loss of supervised SimCSE.

    This is equation 5 of Gao et al., 2021. Sums are kept in float32 (float64 for float64 inputs) whatever the type of
    the inputs, under autocast too.

    Args:
        anchor: [B, D].
        positive: [B, D].
        negative: [B, D]; row i of each is one triplet.
        temperature: divides all similarities; a float or a tensor of one element, which may be learnable.
        ids: int64 [B, 3], equal for equal sentences. The positive of another triplet is then no negative if the anchors
            or the positives are equal, and a hard negative is none if it equals the anchor or the anchor's positive.
        judge: says which negatives, hard ones too, are too similar to the anchor to count.
        group: processes whose triplets also provide negatives, as in ``inbatch_infonce``.
        sizes: number of triplets of each process, as in ``inbatch_infonce``.

    Raises:
        ValueError: the shapes do not fit.
    """
    sides = {"anchor": anchor, "positive": positive, "negative": negative}
    check_tensors(**{name: (side, "float B D") for name, side in sides.items()}, ids=(ids, "int64 B 3"))
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
            pair, same = at_columns(logits, own).squeeze(1), too_near(logits, bar, key_bars, equal(ids, key_ids))
            return pair, *sum_exp(leave_out(logits, own, same), 1)

        own = torch.arange(start, start + len(anchor), device=anchor.device).unsqueeze(1)
        given = query, own, None if ids is None else ids[:, :2], bar
        own_positive, best, total = in_blocks(of_block, [key], given)
        shift = own_positive.detach()
        return InfoNCE(infonce(best, total, own_positive), beaten(best - shift, shift))
