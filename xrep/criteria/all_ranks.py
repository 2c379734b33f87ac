"""The rows of a batch on all ranks, for objectives that know nothing of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xrep.criteria.criterion import Planned
from xrep.data.batch import on_device
from xrep.kernels.gather import gather_rows, rank_sizes


class AllRows:
    """The batches of all ranks as one batch, the rows of rank 0 first, as far as vectors are compared by it.

    It has the tensors in ``Batch.facts``, on the device of the vectors, and ``negatives.rows``, int64 [N], ascending;
    None if there are no hard negatives. It has no sentences, because their vectors were gathered in their place.
    """

    def __init__(self, count: int, facts: dict[str, Tensor], of_negatives: Tensor | None) -> None:
        self._count = count
        self.negatives = None if of_negatives is None else SimpleNamespace(rows=of_negatives)
        vars(self).update(facts)

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        problem = f"`{name}` of a batch cannot be read in `contrast`, because ranks do not tell each other about it"
        raise AttributeError(f"{problem}; return what is needed of it as a tensor from `constants`")


def of_all_ranks(
    vectors: Sequence[Tensor], planned: Planned, group: dist.ProcessGroup
) -> tuple[tuple[Tensor, ...], Planned]:
    """Return the vectors of all ranks, whose gradients flow back to each rank, and the plan of an ``AllRows``.

    A GPU is not waited for, unless there are hard negatives, whose numbers the ranks have to tell each other.

    Args:
        vectors: those of this rank. Each tensor has one row for each row of the batch, or of its hard negatives.
    """
    batch, device, rank = planned.batch, vectors[0].device, dist.get_rank(group)
    sizes = planned.rank_rows or rank_sizes(len(planned), device, group)
    facts = {name: gather_rows(_on(device, fact), sizes, group) for name, fact in batch.facts.items()}
    negatives, own = batch.negatives, None
    if negatives is not None:
        counts = rank_sizes(len(negatives.rows), device, group)
        own = gather_rows(negatives.rows + sum(sizes[:rank]), counts, group)

    def gather(vector: Tensor) -> Tensor:
        counts = sizes if negatives is None else rank_sizes(len(vector), device, group)
        if counts[rank] != len(vector):
            problem = f"a tensor of {len(vector)} rows was encoded of a batch of {counts[rank]}"
            raise ValueError(f"{problem}; each must have one row for each row of the batch")
        return gather_rows(vector, counts, group)

    whole = Planned(AllRows(sum(sizes), facts, own), sizes={})
    return tuple(gather(vector) for vector in vectors), whole


def _on(device: torch.device, tensor: Tensor) -> Tensor:
    return tensor if tensor.device == device else on_device(tensor.numpy(), device)
