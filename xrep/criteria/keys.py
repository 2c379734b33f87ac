"""Keys (vectors without gradient) that are negatives: those of a batch on all ranks, and those of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xrep.criteria.false_negatives import FalseNegatives
from xrep.criteria.matryoshka import shortened
from xrep.data.teacher_vectors import TeacherVectors
from xrep.kernels.gather import current_group, gathered
from xrep.kernels.judge import Judge
from xrep.kernels.queue_infonce import InfoNCE, queue_infonce
from xrep.memory import check_memory
from xrep.nn.queue import Queue
from xrep.tasks.task import Task

MEET_THEMSELVES = "sentences meet themselves as negatives; lower `queue_size`, or set `mask_equal_sentences`"


def among_batch(
    query: Tensor,
    positive: Tensor,
    ids: Tensor,
    temperature: float | Tensor,
    *,
    mask_equal: bool,
    sizes: Sequence[int] | None,
    judge: Judge | None = None,
) -> tuple[InfoNCE, Tensor, Tensor, Tensor | None]:
    """Compute InfoNCE of queries [B, D] whose negatives are the positives of all other rows, on all ranks.

    Args:
        positive: [B, D], the positives, without gradient.
        ids: int64 [B, 2]; with ``mask_equal``, a row is not a negative of a query if they are equal in any column.
        sizes: number of rows of each rank (``Planned.rank_rows``).

    Returns:
        The result, and the keys and ids of all ranks, and the keys' vectors of the judge's guide, if it has one.
    """
    of_positive = None if judge is None or judge.guide is None else judge.guide[:, -1]
    (keys, key_ids, guide), first = gathered([positive, ids, of_positive], current_group(), sizes)
    rows = torch.arange(len(keys), device=keys.device).unsqueeze(1)
    own = rows[first : first + len(positive)]  # a query's positive is not one of its negatives
    if mask_equal:
        own, rows = torch.cat([own, ids], dim=1), torch.cat([rows, key_ids], dim=1)
    masks = {"query_ids": own, "queue_ids": rows, "judge": judge, "queue_guide": guide}
    return queue_infonce(query, positive, keys, temperature, **masks), keys, key_ids, guide


@dataclass(kw_only=True)
class Queued(FalseNegatives):
    """Options of objectives whose negatives are in a queue."""

    queue_size: int
    queue_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the queued vectors; bfloat16 halves their memory, and on GPUs the time of reading them."""


def new_queue(config: Queued, width: int, guide: TeacherVectors | None, count: int = 1) -> Queue | None:
    """Return a queue of vectors, and of those of a guide, one of ``count`` that are made; None if the size is 0. Raises
    UserError if the machine cannot hold all of them."""
    size, of_guide = config.queue_size, 0 if guide is None else guide.width
    dtype = torch.bfloat16 if config.queue_dtype == "bfloat16" else torch.float32
    each = (width + of_guide) * dtype.itemsize + 16  # two ids
    what = f"{count if count > 1 else 'a'} {'queues' if count > 1 else 'queue'} of {size:,} vectors of {width} numbers"
    check_memory(count * size * each, what, cure="lower `queue_size`")
    return Queue(size, width, dtype, of_guide) if size else None


def in_queue(
    query: Tensor,
    positive: Tensor,
    ids: Tensor,
    queue: Queue,
    temperature: float | Tensor,
    *,
    mask_equal: bool,
    judge: Judge | None = None,
) -> InfoNCE:
    """Compute InfoNCE of queries [B, D] whose negatives are the rows of a queue; arguments as for ``among_batch``.

    Queries and positives may be shorter than the vectors of the queue, which are shortened then.
    """
    rows, width = queue.vectors, query.size(1)
    if width < rows.size(1):
        rows = shortened(rows[: queue.filled].float(), width).to(rows.dtype)
    own, theirs = (ids, queue.ids[: len(rows)]) if mask_equal else (None, None)
    guide = None if queue.guide is None else queue.guide[: len(rows)]
    masks = {"query_ids": own, "queue_ids": theirs, "judge": judge, "queue_guide": guide}
    return queue_infonce(query, positive, rows, temperature, valid=queue.filled, **masks)


def long_queue(size: int, task: Task, consequence: str) -> list[str]:
    """Return a warning, with its consequence and cure, if a queue holds more than half of the training pairs."""
    problem = f"queue_size {size} exceeds half of the {task.examples} training pairs"
    return [f"{problem}: {consequence}"] if 2 * size > task.examples else []
