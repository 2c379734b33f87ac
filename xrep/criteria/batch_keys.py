"""Keys (vectors without gradient) of a batch on all ranks, used as each other's negatives."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from xrep.kernels.gather import current_group, gather_rows, rank_sizes
from xrep.kernels.queue_infonce import InfoNCE, queue_infonce


def gathered(keys: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the keys [N, D] and ids [N, 2] of all ranks, in rank order, and the index of this rank's first row."""
    group = current_group()
    if group is None:
        return keys, ids, 0
    sizes = rank_sizes(len(ids), ids.device, group)
    return gather_rows(keys, sizes, group), gather_rows(ids, sizes, group), sum(sizes[: dist.get_rank(group)])


def among_batch(
    query: Tensor, positive: Tensor, ids: Tensor, temperature: float | Tensor, *, mask_equal: bool
) -> tuple[InfoNCE, Tensor, Tensor]:
    """Compute InfoNCE of queries [B, D] whose negatives are the positives of all other rows, on all ranks.

    Args:
        positive: [B, D], the positives, without gradient.
        ids: int64 [B, 2]; with ``mask_equal``, a row is not a negative of a query if they are equal in any column.

    Returns:
        The result, and the keys and ids of all ranks.
    """
    keys, key_ids, first = gathered(positive, ids)
    rows = torch.arange(len(keys), device=keys.device).unsqueeze(1)
    own = rows[first : first + len(positive)]  # a query's positive is not one of its negatives
    if mask_equal:
        own, rows = torch.cat([own, ids], dim=1), torch.cat([rows, key_ids], dim=1)
    return queue_infonce(query, positive, keys, temperature, query_ids=own, queue_ids=rows), keys, key_ids
