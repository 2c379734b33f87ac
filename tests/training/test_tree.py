"""Ranks exchange numbers and objects over a tree, with few connections each."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.ranks import run_ranks
from xrep.errors import UserError
from xrep.training import tree, validator
from xrep.training.distributed import World


def exchange(rank: int, size: int, fan_out: int) -> dict[str, dict[str, Tensor]]:
    """Return what a rank receives; several messages are under way at a time."""
    tree.FAN_OUT = fan_out
    limit = timedelta(seconds=100)
    world = World(rank, size, rank, torch.device("cpu"), *tree.plant(rank, size, limit, limit))
    sums = [world.sums_later([1.0, rank * number]) for number in range(3)]
    told = world.from_main({"from": rank, "text": "a" * 1000})
    everyone, main = world.gather(f"rank {rank}"), world.gather_to_main(torch.tensor([rank]))
    assert told == {"from": 0, "text": "a" * 1000} and everyone == [f"rank {other}" for other in range(size)]
    assert torch.cat([torch.zeros(0, dtype=torch.int64), *main]).tolist() == (list(range(size)) if rank == 0 else [])
    held = {"weights": {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(True), "none": torch.zeros(0, 3)},
            "state": [{"step": 3, "half": torch.tensor(1.5, dtype=torch.bfloat16)}, "text", None]}  # fmt: skip
    sent = world.tensors_from_main(lambda: held if rank == 0 else 1 // 0)  # only rank 0 reads
    assert repr(sent) == repr(held) and sent["weights"]["a"].shape == (3, 2)
    computed = list[int]()
    validator._world.set(world)
    assert validator.shared(range(11), lambda n: computed.append(n) or n * n) == [n * n for n in range(11)]
    assert computed == list(range(rank, 11, size))  # each rank did its part
    with pytest.raises(UserError, match="x.txt: item 3"):
        validator.shared(range(11), refuse)
    return {"sums": {str(number): torch.tensor(wait()) for number, wait in enumerate(sums)}}


def refuse(number: int) -> int:
    if number == 3:
        raise UserError("item 3", path="x.txt")
    return number


@pytest.mark.slow
@pytest.mark.parametrize("size, fan_out", [(2, 8), (4, 2), (5, 2), (7, 3)])
def test_every_rank_gets_the_same(tmp_path: Path, size: int, fan_out: int) -> None:
    for found in run_ranks(size, tmp_path, exchange, fan_out):
        for number in range(3):
            assert found["sums"][str(number)].tolist() == [size, number * size * (size - 1) / 2]


@pytest.mark.parametrize("size", [2, 8, 9, 64, 65, 1000, 1024])
def test_a_rank_has_few_connections_and_none_is_left_out(size: int) -> None:
    groups = [list(tree.levels_of(rank, size, 8)) for rank in range(size)]
    assert max(sum(len(ranks) - 1 for ranks in levels) for levels in groups) <= (7 if size <= 8 else 28)
    for rank, levels in enumerate(groups):
        for ranks in levels:  # all its members have the same group
            assert rank in ranks and all(ranks in groups[other] for other in ranks)
        above = rank  # the first rank of each highest group leads to rank 0
        while above:
            first = groups[above][-1][0]
            assert first < above
            above = first
