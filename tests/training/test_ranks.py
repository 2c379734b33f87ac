"""Several ranks train as one process with the whole batch does. Two processes do the work of all of these tests."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.once import made_once
from tests.support.programs import run_on_ranks
from tests.support.runs import environment
from tests.training import rank_job
from xrep.errors import UserError
from xrep.training.distributed import alone
from xrep.training.sharding import sharded_optimizer

pytestmark = pytest.mark.slow
Found = dict[str, Any]


@pytest.fixture(scope="module")
def ranks(data_directory: Path) -> list[Found]:
    """What each of two ranks found."""

    def make(folder: Path) -> None:
        done = run_on_ranks(2, "tests.training.rank_job", data_directory, folder, environment=environment(threads=1))
        assert done.returncode == 0, done.stderr[-5000:]
        assert "warn" not in done.stderr.lower(), done.stderr

    folder = made_once("ranks", make)
    return [torch.load(folder / f"rank-{rank}-of-2.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("case", rank_job.CASES)
def test_ranks_equal_one_process_with_the_whole_batch(ranks, data_directory, tmp_path, case):
    with rank_job.settings():
        expected = rank_job.train(case, data_directory, tmp_path, alone("cpu"))
    tolerance = 1e-8 if rank_job.CASES[case]["optimizer"] == "sgd" else 1e-6
    for found in (rank["trained"][case] for rank in ranks):
        assert found["cursor"] == expected["cursor"]
        for kind in ("state", "gradients"):
            assert found[kind].keys() == expected[kind].keys()
            for name, tensor in expected[kind].items():
                assert (found[kind][name] - tensor).abs().max() <= tolerance, (kind, name)
        # The state of the ranks is equal to the last bit, including queues and momentum encoders.
        assert same(found["state"], ranks[0]["trained"][case]["state"])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


@pytest.mark.parametrize("case", rank_job.SHARDED)
def test_shards_train_the_same_weights(ranks: list[Found], case: str) -> None:
    shares = []
    for whole, sharded in ((rank["trained"][case], rank["sharded"][case]) for rank in ranks):
        assert same(whole["state"], sharded["state"]) and same(whole["optimizer"], sharded["optimizer"])
        shares.append(sharded["numbers"] / whole["numbers"])
        # No parameter is divided, so that the rank of the largest one may have more than its share.
        assert shares[-1] <= max(1.1 / 2, whole["largest"] + 0.01)
    assert sum(shares) == pytest.approx(1)


def test_gradients_are_compressed_on_their_way(ranks: list[Found]) -> None:
    found = [rank["bf16"] for rank in ranks]
    assert same(found[0]["compressed"]["state"], found[1]["compressed"]["state"])
    for each in found:
        pairs = [(tensor, each["compressed"]["state"][name]) for name, tensor in each["whole"]["state"].items()]
        assert 0 < max(float((one.double() - other.double()).abs().max()) for one, other in pairs) < 0.01
        # Two bytes for each trained parameter, where float32 has four; floats of losses and metrics stay as they are.
        assert each["sent"]["torch.bfloat16"] == 2 * each["whole"]["trained"] * each["whole"]["cursor"][0]
        assert "torch.float32" not in each["sent"]


def test_every_rank_gets_the_same(ranks: list[Found]) -> None:
    assert [rank["sums"] for rank in ranks] == [[[2, 0], [2, 1], [2, 2]]] * 2


def test_parameters_of_several_types_are_refused() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2, dtype=kind))]} for kind in (torch.float32, torch.float16)]
    with pytest.raises(UserError, match="`shard` is optimizer, and the parameters are of several types: torch.float16"):
        sharded_optimizer(groups, torch.optim.SGD)
