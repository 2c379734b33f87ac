"""A first-in-first-out queue of sentence vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    """A queue of the last K vectors that were enqueued, with the ids of their sentences.

    Both are buffers, so they are saved in checkpoints and move with the module between devices.

    Attributes:
        vectors: [K, D]; only the first ``filled`` rows are valid until the queue is full.
        ids: int64 [K, 2], the id of the sentence of each row.
        count: int64 [], the number of vectors that were ever enqueued.
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
        """The value of ``count``, which can be read without waiting for a device."""
        self.register_load_state_dict_post_hook(_read_count)

    @property
    def filled(self) -> int:
        """The number of rows that hold a vector."""
        return min(self._count, len(self.vectors))

    @torch.no_grad()
    def enqueue(self, vectors: Tensor, ids: Tensor) -> None:
        """Replace the oldest rows by ``vectors`` [N, D] and ``ids`` [N, 2]; N may be smaller or larger than K."""
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
