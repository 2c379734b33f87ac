"""InfoNCE between the two sides of a batch of pairs: every other pair of the batch is a negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from xrep.kernels.arguments import check_number, check_tensors, scalar
from xrep.kernels.gather import exchange_columns, gathered, rank_sizes
from xrep.kernels.judge import Judge, bars, too_near
from xrep.kernels.linear import linear
from xrep.kernels.pairs import NOTHING, at_columns, beaten, equal, in_blocks, infonce, leave_out, merge, sum_exp
from xrep.kernels.precision import accumulation_dtype


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
    judge: Judge | None = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> InBatchInfoNCE:
    """Compute -log softmax of each pair's similarity within its row and within its column of the batch's similarities.

    Both directions read the same similarities, which are computed and added up in float32 (float64 for float64 inputs)
    whatever the type of the inputs, under autocast too.

    Args:
        x: [B, D].
        y: [B, D]; row i is the positive of row i of ``x``.
        temperature: divides all similarities; a float or a tensor of one element, which may be learnable.
        margin: subtracted from the similarity of each positive before the temperature (additive margin softmax).
        ids: int64 [B, I]; two pairs that are equal in any column are not negatives of each other.
        judge: says which negatives are too similar to the query to count, in each direction.
        group: processes whose pairs are also used as negatives; each of them must make the same call (batches may
            differ in size). The results are those of this rank's own pairs. If every rank differentiates the sum of its
            losses, each gets for its own vectors the gradient that one process would get from all pairs. The gradient
            of ``temperature`` is the rank's share, which must be summed over the ranks.
        sizes: number of pairs of each process of the group, if they are known; otherwise the processes tell each other,
            for which a GPU has to be waited for.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_tensors(x=(x, "float B D"), y=(y, "float B D"), ids=(ids, "int64 B I"))
    check_number("margin", margin, -math.inf)
    accumulate = accumulation_dtype(x, y)
    tau = scalar("temperature", temperature, accumulate, x.device)
    with torch.autocast(x.device.type, enabled=False):
        query = x.to(accumulate) / tau
        if group is not None and sizes is None:
            sizes = rank_sizes(len(x), x.device, group)
        of_x, of_y = bars(judge, query, y.to(accumulate), tau)
        (all_y, all_ids, of_all), start = gathered([y, ids, of_y], group, sizes)
        key = all_y.to(accumulate)

        def of_block(
            key: Tensor, query: Tensor, own: Tensor, ids: Tensor | None, of_x: Tensor | None
        ) -> tuple[Tensor, ...]:
            logits = by_column = linear(query, key)
            positive = at_columns(logits, own).squeeze(1)
            leave_out(logits, own, equal(ids, all_ids))
            if of_x is not None:
                by_column = logits.masked_fill(too_near(logits.t(), of_all, of_x).t(), NOTHING)
                logits = logits.masked_fill(too_near(logits, of_x, of_all), NOTHING)
            columns = (each.unsqueeze(0) for each in sum_exp(by_column, 0))
            return positive, *sum_exp(logits, 1), *columns

        own = torch.arange(start, start + len(x), device=x.device).unsqueeze(1)
        found = in_blocks(of_block, [key], (query, own, ids, of_x))
        positive, row_best, row_total, column_best, column_total = found
        column_best, column_total = merge(column_best, column_total)
        if group is not None and sizes is not None:
            # For each column, a rank has only seen its own rows, so the rank that owns the column collects all results.
            everyone = exchange_columns(torch.stack([column_best, column_total], 1), sizes, group)
            column_best, column_total = merge(*everyone.unbind(2))
        if margin:
            positive = positive - margin / tau
        best = torch.stack([row_best, column_best])
        losses = infonce(best, torch.stack([row_total, column_total]), positive)
        correct = beaten(best - positive.detach(), positive.detach())
        return InBatchInfoNCE(losses[0], losses[1], correct[0], correct[1])
