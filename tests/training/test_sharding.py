"""Optimizers whose state is shared out among the ranks, and gradients that are compressed on their way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cuda.cases import write_data
from tests.support.programs import run_on_ranks
from tests.support.runs import environment
from tests.training.shard_job import GIVEN
from xrep.errors import UserError
from xrep.training.sharding import ShardedOptimizer

FEW = ["dual_moco", "translation_ranking, LAMB", "dual_moco, thawed", "dual_moco, in pieces"]


@pytest.mark.slow
@pytest.mark.parametrize("size, cases", [(2, [*GIVEN]), (4, FEW)])
def test_shards_train_the_same_weights(size: int, cases: list[str], tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    job = ["tests.training.shard_job", data, tmp_path, *cases]
    done = run_on_ranks(size, *job, environment=environment(threads=1))
    assert done.returncode == 0, done.stderr[-5000:]
    assert "warn" not in done.stderr.lower(), done.stderr
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    for case in cases:
        ranks = [results[case] for results in found]
        assert all(each["weights"] and each["state"] for each in ranks), (case, ranks)
        # No parameter is divided, so that the rank of the largest one may have more than its share.
        assert sum(each["share"] for each in ranks) == pytest.approx(1), (case, ranks)
        most = max(1.1 / size, ranks[0]["largest"] + 0.01)
        assert all(each["share"] <= most for each in ranks), (case, ranks)
    compressed = [results["compressed"] for results in found]
    assert all(each["digest"] == compressed[0]["digest"] for each in compressed)
    for each in compressed:
        assert 0 < each["apart"] < 0.01
        # Two bytes for each trained parameter, where float32 has four; floats of losses and metrics stay as they are.
        assert each["sent"]["torch.bfloat16"] == 2 * each["trained"] * each["steps"]
        assert "torch.float32" not in each["sent"]


def test_parameters_of_several_types_are_refused() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, dtype=kind))]} for kind in (torch.float32, torch.float16)]
    with pytest.raises(UserError, match="`shard` is optimizer, and the parameters are of several types: torch.float16"):
        ShardedOptimizer(groups, torch.optim.SGD)
