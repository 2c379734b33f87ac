"""Losses with the negatives of all ranks, computed by real processes, against one process with all pairs."""

import pytest
import torch

from tests.kernels import ranks
from tests.support.closeness import error

pytestmark = pytest.mark.slow
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Found:
    """Return the results of every rank for each case."""
    return ranks.run_ranks(request.param, tmp_path_factory.mktemp("ranks"), ranks.losses)


@pytest.mark.parametrize("name", ranks.cases(2))
def test_ranks_find_what_one_process_finds(found: ranks.Found, name: str) -> None:
    case = ranks.cases(len(found))[name]
    tolerance = TOLERANCES[case.draw.get("dtype", torch.float64)]
    for members in case.groups:
        everyone = torch.cat([torch.arange(sum(case.sizes))[case.rows(rank)] for rank in members])
        whole = case.run(everyone, None)
        parts = [found[rank][name] for rank in members]
        assert all(part.keys() == whole.keys() for part in parts)
        for key, expected in whole.items():
            given = [part[key] for part in parts]
            of_pairs = -1 if key.startswith(("loss", "result")) else 0
            mine = torch.stack(given).sum(0) if key == "tau" else torch.cat(given, of_pairs)
            if expected.dtype == torch.bool:
                assert torch.equal(mine, expected)
                continue
            # The terms of the gradient of the temperature nearly cancel.
            assert mine.dtype == expected.dtype, key
            assert error(mine, expected.double(), 100.0 if key == "tau" else 1e-3) <= tolerance, key
        assert [part["loss"].size(-1) for part in parts] == [case.sizes[rank] for rank in members]


def test_every_rank_gets_the_rows_of_all_and_the_gradient_that_all_have_for_its_own(found: ranks.Found) -> None:
    for number in range(4):
        shapes = [ranks.shapes(rank)[number] for rank in range(len(found))]
        whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
        for dtype in ranks.KINDS:
            everyone = torch.cat([ranks.rows_of(rank, shape, dtype) for rank, shape in enumerate(shapes)])
            for part in found:
                assert part["gather"][f"sizes {number}"].tolist() == [shape[0] for shape in shapes]
                gathered = part["gather"][f"rows {number} {dtype}"]
                assert gathered.dtype == dtype and torch.equal(gathered, everyone)
            if not dtype.is_floating_point:
                continue
            # The sum is rounded once, not with every rank.
            total = sum(ranks.weights_of(rank, whole, dtype).double() for rank in range(len(found))).to(dtype)
            gradients = [part["gather"][f"gradient {number} {dtype}"] for part in found]
            assert [list(gradient.shape) for gradient in gradients] == [list(shape) for shape in shapes]
            assert torch.equal(torch.cat(gradients), total)
            for rank, part in enumerate(found):
                other = part["gather"][f"other {number} {dtype}"]
                assert torch.equal(other, ranks.weights_of(rank, whole, dtype))
