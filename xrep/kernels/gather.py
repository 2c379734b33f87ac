"""Rows gathered from all ranks, with the gradient that flows back to each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

_without_others = ContextVar("whether this process computes without the others", default=False)


@contextmanager
def without_others() -> Iterator[None]:
    """Context manager in which a process computes without the others, for example if only rank 0 validates."""
    token = _without_others.set(True)
    try:
        yield
    finally:
        _without_others.reset(token)


def current_group() -> dist.ProcessGroup | None:
    """Return the processes that train together; None if this one is alone, or inside ``without_others``."""
    together = not _without_others.get() and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return dist.group.WORLD if together else None


def rank_sizes(count: int, device: torch.device, group: dist.ProcessGroup) -> list[int]:
    """Return how many rows each rank of the group has; ranks may differ (in the last batch of an epoch).

    On a GPU, this waits for all work that it was given.
    """
    counts = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
    counts[dist.get_rank(group)] = count
    dist.all_reduce(counts, group=group)
    return counts.tolist()


def gather_rows(rows: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Gather the rows [N_rank, ...] of all ranks, in the order of the ranks: [Σ N, ...]; ``sizes`` are the N.

    Every rank must call this and take part in the backward pass. The gradient of a rank's rows is the sum of the
    gradients that all ranks have for them, as if one process had computed the sum of all ranks' losses.
    """
    return _GatherRows.apply(rows, sizes, group)


def gathered(
    tensors: Sequence[Tensor | None], group: dist.ProcessGroup | None, sizes: Sequence[int] | None = None
) -> tuple[list[Any], int]:
    """Return tensors [N, ...] with the rows of all ranks, and the place of this rank's first row among them.

    Args:
        tensors: N is the same for all of them; None stays None.
        group: None: this rank is alone.
        sizes: the N of each rank, if they are known (else ``rank_sizes``).
    """
    first = tensors[0]
    if group is None or first is None:
        return list(tensors), 0
    sizes = rank_sizes(len(first), first.device, group) if sizes is None else sizes
    if sizes[dist.get_rank(group)] != len(first):
        raise ValueError(f"sizes has {sizes[dist.get_rank(group)]} rows for this rank, which has {len(first)}")
    everyone = [None if tensor is None else gather_rows(tensor, sizes, group) for tensor in tensors]
    return everyone, sum(sizes[: dist.get_rank(group)])


class _GatherRows(torch.autograd.Function):
    """Ranks send as many rows as the largest one has."""

    @staticmethod
    def forward(ctx, rows, sizes, group):
        ctx.sizes, ctx.group = sizes, group
        padded = _padded(rows, max(sizes))
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # pyright: ignore[reportIncompatibleMethodOverride]
        # Summed in float32, because half precision would round once for each rank.
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        parts = [_padded(part, max(ctx.sizes)) for part in wide.split(list(ctx.sizes))]
        total = torch.empty_like(parts[0])
        dist.reduce_scatter(total, parts, group=ctx.group)
        return total[: ctx.sizes[dist.get_rank(ctx.group)]].to(gradient.dtype), None, None


def _padded(rows: Tensor, count: int) -> Tensor:
    """Return rows [N, ...] as contiguous [count, ...]; those that are added are 0."""
    added = rows.new_zeros(count - len(rows), *rows.shape[1:])
    return torch.cat([rows, added]) if len(added) else rows.contiguous()


def exchange_columns(columns: Tensor, sizes: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Give every rank what all ranks have for its own rows: [Σ N, ...] -> [W, N, ...], by rank.

    Every rank must call this and take part in the backward pass, which sends the gradients back.
    """
    own = [sizes[dist.get_rank(group)]] * len(sizes)
    return _Exchange.apply(columns, list(sizes), own, group).view(len(sizes), own[0], *columns.shape[1:])


class _Exchange(torch.autograd.Function):
    """Send parts of ``sent`` rows to the ranks, and receive parts of ``received`` rows from them."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.settings = received, sent, group
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx, *gradients):
        return _Exchange.apply(*gradients, *ctx.settings), None, None, None
