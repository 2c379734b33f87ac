"""A first-in-first-out memory of sentence vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    """The last K vectors enqueued, with the ids of their sentences, as buffers (so checkpoints and devices follow).

    Attributes:
        vectors: [K, D]; only the first ``filled`` rows mean anything while the queue fills.
        ids: int64 [K, 2].
        count: int64 [], how many vectors were ever enqueued.
    """

    vectors: Tensor
    ids: Tensor
    count: Tensor

    def __init__(self, size: int, dimension: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(size, dimension, dtype=dtype))
        self.register_buffer("ids", torch.zeros(size, 2, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._count = 0
        """``count``, without waiting for the device that holds it."""
        self.register_load_state_dict_post_hook(_read_count)

    @property
    def filled(self) -> int:
        """Number of rows that hold a vector."""
        return min(self._count, len(self.vectors))

    @torch.no_grad()
    def enqueue(self, vectors: Tensor, ids: Tensor) -> None:
        """Replace the oldest rows by ``vectors`` [N, D] and ``ids`` [N, 2]; N and K are free of one another."""
        size, added = len(self.vectors), len(vectors)
        kept, ids = vectors[-size:], ids[-size:]
        start = self._count + added - len(kept)
        rows = torch.arange(start, start + len(kept), device=self.vectors.device) % size
        self.vectors[rows] = kept.to(self.vectors.dtype)
        self.ids[rows] = ids
        self.count += added
        self._count += added


def _read_count(queue: Queue, _keys: Any) -> None:
    queue._count = int(queue.count)
