"""Several ranks train as one process with the whole batch does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.programs import run_on_ranks
from tests.support.runs import environment
from tests.training import rank_job
from xrep.registry import CRITERIA
from xrep.training.distributed import alone

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def one(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    folder = tmp_path_factory.mktemp("one")
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CRITERIA._targets, "two_terms", "tests.support.runs:TwoTerms")
        yield {case: rank_job.train(case, data_directory, folder, alone("cpu")) for case in rank_job.CASES}
    torch.set_default_dtype(torch.float32)


def ranks(size: int, data: Path, folder: Path) -> list[Found]:
    job = ["tests.training.rank_job", data, folder, *rank_job.CASES]
    done = run_on_ranks(size, *job, environment=environment(threads=1))
    assert done.returncode == 0, done.stderr[-5000:]
    return [torch.load(folder / f"{rank}.pt") for rank in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_equal_one_process_with_the_whole_batch(
    one: Found, data_directory: Path, tmp_path: Path, size: int
) -> None:
    found = ranks(size, data_directory, tmp_path)
    for case, expected in one.items():
        tolerance = 1e-6 if rank_job.CASES[case]["optimizer"] == "adamw" else 1e-8
        for rank, results in enumerate(found):
            assert results[case]["cursor"] == expected["cursor"], (case, rank)
            for kind in ("state", "gradients"):
                mine, theirs = results[case][kind], expected[kind]
                assert mine.keys() == theirs.keys()
                for name, tensor in theirs.items():
                    apart = (mine[name] - tensor).abs().max()
                    assert apart <= tolerance, f"{case}, rank {rank}, {kind} {name}: {apart}"
            # The state of the ranks is equal to the last bit, including queues and momentum encoders.
            for name, tensor in found[0][case]["state"].items():
                assert torch.equal(tensor, results[case]["state"][name]), f"{case}, rank {rank}: {name}"
