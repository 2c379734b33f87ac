"""Build batches from their plans, optionally in worker processes.

The batches and their order are the same with and without workers. The main process plans the order, and a worker only
builds the batches it is asked for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from xrep.errors import TrainingError
from xrep.workers import in_workers

BATCHES_TOGETHER = 4
"""Number of batches that a worker makes and sends at once."""

_DIED = TrainingError(
    "a data worker was killed; if memory ran out, lower `data_workers` (0: batches are made by the trainer itself); "
    "the same command goes on from the last checkpoint"
)


@dataclass(frozen=True)
class Plan:
    """The next batch of one rank, before it is built.

    Attributes:
        rows: The examples of the batch, for ``task.make``; plain data or numpy arrays, which are small.
        cursor: Plain data from which ``task.plan`` continues after this batch; it is equal on all ranks.
        examples: Training examples consumed by all ranks since the start of training, including this batch.
    """

    rows: Any
    cursor: Any
    examples: int


def stream(
    plans: Iterable[Plan], make: Callable[[Plan], Any], *, workers: int = 0, pin_memory: bool = False
) -> Generator[tuple[Any, Plan], None, None]:
    """Yield the batches of plans, each with its plan.

    Args:
        make: Function that builds a batch, which its plan alone determines (no global random numbers, no call
            counters).
        workers: Number of processes that build batches, each some batches ahead; 0 to use this process.
        pin_memory: Whether to call ``pin_memory()`` on each batch (page-locked memory), for copies to a GPU.

    Raises:
        UserError: This process or a worker found damaged data.
        TrainingError: A worker died.
    """
    items, begin = ((plan, plan) for plan in plans), partial(torch.set_num_threads, 1)
    for batch, plan in in_workers(make, items, workers, died=_DIED, begin=begin, pack=_pack, together=BATCHES_TOGETHER):
        yield (batch.pin_memory() if pin_memory else batch), plan


def _pack(batches: list[Any]) -> bytes:
    packed = io.BytesIO()
    _Pickler(packed, protocol=5).dump(batches)
    return packed.getvalue()


class _Pickler(pickle.Pickler):
    """Pickler that sends tensors as bytes; torch's own method needs a shared file and a descriptor for each tensor."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, torch.Tensor) else NotImplemented
