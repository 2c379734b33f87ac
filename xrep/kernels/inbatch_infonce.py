"""InfoNCE between the two sides of a batch of pairs: every other pair of the batch is a negative."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.gather import gather_rows, rank_sizes
from xrep.kernels.pairwise import beaten, check_pairs, negatives
from xrep.kernels.precision import accumulation_dtype, scalar


class InBatchInfoNCE(NamedTuple):
    """Results of each pair: losses [B] (nats), and whether the positive beat every negative (bool [B]).

    ``forward`` is for finding y by x, ``backward`` for finding x by y.
    """

    forward: Tensor
    backward: Tensor
    forward_correct: Tensor
    backward_correct: Tensor


def inbatch_infonce(
    x: Tensor,
    y: Tensor,
    temperature: float | Tensor,
    *,
    margin: float = 0.0,
    ids: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
) -> InBatchInfoNCE:
    """Compute -log softmax of each pair's similarity within its row and within its column of the batch's similarities.

    Both directions come from one sweep over the similarities, which are stored as a whole only if there are few. Sums
    are kept in float32 (float64 for float64 inputs) whatever the type of the inputs, under autocast too.

    Args:
        x, y: [B, D]; row i of ``y`` is the positive of row i of ``x``.
        temperature: divides all similarities; a float or a tensor of one element, which may be learnable.
        margin: subtracted from the similarity of each positive before the temperature (additive margin softmax).
        ids: int64 [B, I]; two pairs that are equal in any column are not negatives of each other.
        group: processes whose pairs are also used as negatives; each of them must make the same call (batches may
            differ in size). The results are those of this rank's own pairs. If every rank differentiates the sum of its
            losses, each gets for its own vectors the gradient that one process would get from all pairs. The gradient
            of ``temperature`` is the rank's share, which must be summed over the ranks.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_pairs(x, y, ids)
    accumulate = accumulation_dtype(x, y)
    tau = scalar(temperature, accumulate, x.device)
    with torch.autocast(x.device.type, enabled=False):
        positive = ((x.to(accumulate) * y.to(accumulate)).sum(1) - margin) / tau
    own = torch.arange(len(x), device=x.device)
    shift = positive.detach()
    if group is None:
        found = negatives(
            x, y, tau, row_shift=shift, column_shift=shift, excluded=own.unsqueeze(1), row_ids=ids, column_ids=ids
        )
        columns, column_best = found.columns, found.column_best
    else:
        sizes = rank_sizes(len(x), x.device, group)
        start = sum(sizes[: dist.get_rank(group)])
        found = negatives(
            x,
            gather_rows(y, sizes, group),
            tau,
            row_shift=shift,
            column_shift=gather_rows(shift, sizes, group),
            excluded=own.unsqueeze(1) + start,
            row_ids=ids,
            column_ids=None if ids is None else gather_rows(ids, sizes, group),
        )
        # For each column, a rank has only seen its own rows, so the rank that owns the column collects all results.
        mine = slice(start, start + len(x))
        world = [1] * len(sizes)
        lowest = torch.finfo(accumulate).min  # the gradient of logsumexp is undefined if all values are -inf
        columns = gather_rows(found.columns.clamp(min=lowest).unsqueeze(0), world, group)[:, mine].logsumexp(0)
        column_best = gather_rows(found.column_best.unsqueeze(0), world, group)[:, mine].amax(0)
    own_shift = shift - positive  # it is 0, but carries the gradient of the positive
    # The threshold of softplus, above which it is the identity, keeps float64 losses exact.
    return InBatchInfoNCE(
        F.softplus(found.rows + own_shift, threshold=40),
        F.softplus(columns + own_shift, threshold=40),
        beaten(found.row_best, shift),
        beaten(column_best, shift),
    )
