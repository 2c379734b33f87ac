"""Criteria trained by real processes, on unequal parts of batches, against one process with whole batches."""

import pytest
import torch

from tests.criteria.objectives import Maker
from tests.criteria.ranks import PARTS, RUNS, check, train
from tests.kernels.ranks import Found, Results, run_ranks
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, with_negatives
from xrep.data.batch import Batch


@pytest.fixture(scope="module")
def batches(make_batch) -> list[Batch]:
    """Sentences of either side are repeated with other translations."""
    pairs = sentence_pairs(24)
    pairs[6], pairs[9] = (pairs[0][0], pairs[6][1]), (pairs[9][0], pairs[1][1])
    for same, row in ((6, 11), (14, 19), (3, 16)):  # two of them in one batch
        pairs[row] = (pairs[same][0], pairs[row][1])
    sizes, start, found = [sum(counts) for counts in PARTS[1]], 0, []
    for size in sizes:
        batch = make_batch(pairs[start : start + max(size, 1)])
        # Row i has i modulo 3 hard negatives.
        rows = [row for row in range(size) for _ in range(row % 3)]
        others = make_batch([pairs[(start + 5 * n + 3) % len(pairs)] for n in range(max(len(rows), 1))]).target
        found.append(with_negatives(batch.rows(0, size), others.rows(0, len(rows)), rows))
        start += size
    return found


@pytest.fixture(scope="module")
def whole(text, batches) -> dict[str, Results]:
    return train(0, 1, text, batches)


WORLDS = [pytest.param(world, marks=[pytest.mark.nightly] * (world != 2)) for world in PARTS]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def found(request: pytest.FixtureRequest, tmp_path_factory, text, batches) -> Found:
    return run_ranks(request.param, tmp_path_factory.mktemp("ranks"), train, text, batches)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if "alone" not in name])
def test_ranks_find_what_one_process_finds(found: Found, whole: dict[str, Results], name: str) -> None:
    assert check(found, name, whole[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if "alone" in name])
def test_negatives_of_the_own_rank_alone(found: Found, whole: dict[str, Results], text, batches, name: str) -> None:
    """Before any step, the losses of the first batch are those of each part by itself."""
    own, first, start = RUNS[name], PARTS[len(found)][0], 0
    model, criterion = Maker(text).build(own.own, layers=1)
    for rank, size in enumerate(first):
        (expected,) = loss_of(criterion, model, own.of(batches[0]).rows(start, start + size)).terms.values()
        assert found[rank][name]["loss"][0].item() == pytest.approx(expected.sum.item(), abs=1e-10)
        start += size
    together = torch.stack([part[name]["loss"] for part in found]).sum(0)
    assert torch.allclose(together, whole[name]["loss"]) is (len(first) == 1)
    kept = [key for key in whole[name] if key not in ("loss", "gradient")]
    assert all(torch.equal(part[name][key], found[0][name][key]) for part in found for key in kept)
