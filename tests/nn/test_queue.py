"""The queue against a plain list of the last K vectors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from xrep.nn.queue import Queue


def filled(queue: Queue) -> set[tuple[float, ...]]:
    rows = torch.cat([queue.vectors[: queue.filled].float(), queue.ids[: queue.filled].float()], 1)
    assert len(set(map(tuple, rows.tolist()))) == queue.filled
    return set(map(tuple, rows.tolist()))


@pytest.mark.parametrize(
    "size, batches", [(8, [4, 4, 4]), (7, [3, 3, 3, 3, 3]), (5, [12, 1, 5, 7]), (10, [1, 2, 3]), (1, [2])], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_holds_the_last_k(size: int, batches: list[int], dtype: torch.dtype) -> None:
    queue, history = Queue(size, 3, dtype), []
    assert queue.filled == 0 and queue.vectors.dtype == dtype
    for number in batches:
        start = len(history) + 1
        numbers = torch.arange(start, start + number).float()
        vectors = torch.stack([numbers, -numbers, 2 * numbers], 1).requires_grad_()
        ids = torch.stack([numbers + 100, numbers + 200], 1).long()
        history += torch.cat([vectors.detach(), ids.float()], 1).tolist()
        queue.enqueue(vectors, ids)
        assert filled(queue) == set(map(tuple, history[-size:]))
        assert not queue.vectors.requires_grad and queue.vectors.dtype == dtype


def test_the_oldest_are_replaced_first_and_a_copy_goes_on_alike() -> None:
    queue = Queue(5, 1)
    queue.enqueue(torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3, 2, dtype=torch.int64))
    copy = Queue(5, 1)
    copy.load_state_dict(queue.state_dict())
    for one in (queue, copy):
        one.enqueue(torch.tensor([[4.0], [5.0], [6.0]]), torch.ones(3, 2, dtype=torch.int64))
        assert one.vectors.flatten().tolist() == [6, 2, 3, 4, 5] and one.ids[:, 0].tolist() == [1, 0, 0, 1, 1]


def test_the_count_follows_what_is_loaded_and_copied() -> None:
    whole = nn.ModuleDict({"queue": Queue(4, 1)})
    whole["queue"].enqueue(torch.arange(6.0)[:, None], torch.zeros(6, 2, dtype=torch.int64))
    other = nn.ModuleDict({"queue": Queue(4, 1)})
    other.load_state_dict(whole.state_dict())
    for one in (copy.deepcopy(whole), other):
        assert one["queue"].filled == 4 and int(one["queue"].count) == 6
        one["queue"].enqueue(torch.tensor([[9.0]]), torch.ones(1, 2, dtype=torch.int64))
        assert one["queue"].vectors.flatten().tolist() == [4, 5, 9, 3], "the oldest went"
    whole.load_state_dict(nn.ModuleDict({"queue": Queue(4, 1)}).state_dict())
    assert whole["queue"].filled == 0
