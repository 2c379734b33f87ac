"""A first-in-first-out queue of sentence vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    """A queue of the last K vectors that were enqueued, with the ids of their sentences and vectors of a guide.

    All are buffers, so they are saved in checkpoints and move with the module between devices.

    Attributes:
        vectors: [K, D]; only the first ``filled`` rows are valid until the queue is full.
        ids: int64 [K, 2], the id of the sentence of each row.
        guide: [K, G], the vectors that a guide has of the same sentences; None without a guide.
        count: int64 [], the number of vectors that were ever enqueued.
    """

    vectors: Tensor
    ids: Tensor
    guide: Tensor | None
    count: Tensor

    def __init__(self, size: int, dimension: int, dtype: torch.dtype = torch.float32, of_guide: int = 0) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(size, dimension, dtype=dtype))
        self.register_buffer("ids", torch.zeros(size, 2, dtype=torch.int64))
        self.register_buffer("guide", torch.zeros(size, of_guide, dtype=dtype) if of_guide else None)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._count = 0
        """The value of ``count``, which can be read without waiting for a device."""
        self.register_load_state_dict_post_hook(_read_count)

    @property
    def filled(self) -> int:
        """The number of rows that hold a vector."""
        return min(self._count, len(self.vectors))

    @torch.no_grad()
    def enqueue(self, vectors: Tensor, ids: Tensor, guide: Tensor | None = None) -> None:
        """Replace the oldest rows by ``vectors`` [N, D], ``ids`` [N, 2] and the guide's vectors [N, G]; N may be
        smaller or larger than K."""
        size, added = len(self.vectors), len(vectors)
        start = self._count + max(added - size, 0)
        rows = torch.arange(start, self._count + added, device=self.vectors.device) % size
        for kept, new in ((self.vectors, vectors), (self.ids, ids), (self.guide, guide)):
            if kept is not None and new is not None:
                kept[rows] = new[-size:].to(kept.dtype)
        self.count += added
        self._count += added


def _read_count(queue: Queue, _keys: Any) -> None:
    queue._count = int(queue.count)
