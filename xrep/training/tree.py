"""A tree of the ranks of a run, over which they exchange plain numbers and objects by gloo.

A group of all ranks would open a connection from each rank to every other one, and pass each message through all of
them. In the tree, the ranks form groups of ``FAN_OUT``, whose first ranks form groups of their own, and so on: a rank
has connections to ``FAN_OUT`` - 1 others on each of its levels, and messages take a time that grows with the logarithm
of the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

FAN_OUT = 8
"""Ranks in a group; often the number of GPUs in a host, whose ranks follow each other."""


@dataclass(frozen=True)
class Level:
    """A group of a tree.

    Attributes:
        group: the processes.
        ranks: their ranks; the first one is also in a group of the level above.
    """

    group: dist.ProcessGroup
    ranks: list[int]


def levels_of(rank: int, size: int, fan_out: int) -> Iterator[list[int]]:
    """Yield the ranks of the group that a rank belongs to on each of its levels, from the lowest one."""
    stride = 1
    while stride < size and rank % stride == 0:
        first = rank - rank % (stride * fan_out)
        yield list(range(first, min(first + stride * fan_out, size), stride))
        stride *= fan_out


def plant(rank: int, size: int, *limits: timedelta) -> list[Tree]:
    """Connect the ranks by a tree for each limit, which is how long a rank waits for another one."""
    levels: list[list[Level]] = [[] for _ in limits]
    # torch names a group after its ranks and the number of groups that the process is in already. That is the same for
    # all members, because the trees grow together, level by level, and a group may have one rank.
    for ranks in levels_of(rank, size, FAN_OUT):
        for tree, limit in zip(levels, limits, strict=True):
            group = dist.new_group(ranks, timeout=limit, backend="gloo", use_local_synchronization=True)
            assert isinstance(group, dist.ProcessGroup)
            tree.append(Level(group, ranks))
    return [Tree(rank, size, tree) for tree in levels]


class Tree:
    """The groups of one rank, from the lowest level. All ranks must make the same calls in the same order."""

    def __init__(self, rank: int, size: int, levels: list[Level]) -> None:
        self.levels, self._rank, self._depth = levels, rank, len(list(levels_of(0, size, FAN_OUT)))
        # Messages pass several groups, one after the other, so that those under way need a thread.
        self._thread = ThreadPoolExecutor(1, "control") if size > FAN_OUT else None

    def sum_later(self, numbers: Tensor) -> Callable[[], Tensor]:
        """Begin to replace numbers by their sums over the ranks; return a function that waits for these."""
        if self._thread is not None:
            return self._thread.submit(self._sum, numbers).result
        work = dist.all_reduce(numbers, group=self.levels[0].group, async_op=True)
        assert work is not None

        def wait() -> Tensor:
            work.wait()
            return numbers

        return wait

    def _sum(self, numbers: Tensor) -> Tensor:
        for level in self.levels:
            dist.all_reduce(numbers, group=level.group)
        for level in reversed(self.levels[: self._depth - 1]):  # at the top of the tree, all have the sums already
            dist.broadcast(numbers, src=level.ranks[0], group=level.group)
        return numbers

    def from_first(self, value: Any) -> Any:
        """Return the value of rank 0."""
        held = [value]
        for level in reversed(self.levels):
            dist.broadcast_object_list(held, src=level.ranks[0], group=level.group)
        return held[0]

    def to_first(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order, on rank 0, and an empty list on the others."""
        values = [value]
        for level in self.levels:
            parts: list[Any] | None = [None] * len(level.ranks) if level.ranks[0] == self._rank else None
            dist.gather_object(values, parts, dst=level.ranks[0], group=level.group)
            values = [one for part in parts or [] for one in part]
        return values if self._rank == 0 else []
