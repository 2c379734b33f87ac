"""Losses with the negatives of all ranks, computed by real processes, against one process with all pairs."""

from __future__ import annotations

import pytest
import torch

from tests.kernels import ranks
from tests.kernels.pairs import error

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Found:
    """Return the results of every rank for each case."""
    return ranks.run_ranks(request.param, tmp_path_factory.mktemp("ranks"), ranks.losses)


def same(key: str, mine: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if expected.dtype == torch.bool:
        return torch.equal(mine, expected)
    unit = 100.0 if key == "tau" else 1e-3  # the size of the terms, which nearly cancel
    return mine.dtype == expected.dtype and error(mine, expected.double(), unit) <= tolerance


@pytest.mark.parametrize("name", ranks.cases(2))
def test_ranks_find_what_one_process_finds(found: ranks.Found, name: str) -> None:
    case = ranks.cases(len(found))[name]
    for members in case.groups:
        everyone = torch.cat([torch.arange(sum(case.sizes))[case.rows(rank)] for rank in members])
        whole = case.run(everyone, None)
        parts = [found[rank][name] for rank in members]
        assert all(part.keys() == whole.keys() for part in parts)
        together = {key: torch.cat([part[key] for part in parts]) for key in whole if key != "tau"}
        if "tau" in whole:
            together["tau"] = torch.stack([part["tau"] for part in parts]).sum(0)
        wrong = [key for key in whole if not same(key, together[key], whole[key], TOLERANCES[case.dtype])]
        assert not wrong, {key: (together[key], whole[key]) for key in wrong}
        assert [len(part["forward"]) for part in parts] == [case.sizes[rank] for rank in members]


def test_the_cases_tell_right_from_wrong() -> None:
    for world, kind in ((2, "in-batch"), (4, "in-batch"), (2, "hard"), (4, "hard")):
        result = ranks.cases(world)[f"{kind}, unequal"].run(slice(None), None)
        for field in ("forward_correct", "backward_correct"):
            assert result[field].any() and not result[field].all()
        # The losses of this rank depend on the pairs of other ranks.
        alone = ranks.cases(world)[f"{kind}, unequal"].run(slice(0, ranks.SIZES[world]["unequal"][0]), None)
        assert not torch.allclose(alone["forward"], result["forward"][: len(alone["forward"])], rtol=1e-2)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("dtype", ranks.KINDS, ids=str)
def test_every_rank_gets_the_rows_of_all_in_their_order(found: ranks.Found, number: int, dtype: torch.dtype) -> None:
    shapes = [ranks.shapes(rank)[number] for rank in range(len(found))]
    everyone = torch.cat([ranks.rows_of(rank, shape, dtype) for rank, shape in enumerate(shapes)])
    for part in found:
        assert part["gather"][f"sizes {number}"].tolist() == [shape[0] for shape in shapes]
        gathered = part["gather"][f"rows {number} {dtype}"]
        assert gathered.dtype == dtype and torch.equal(gathered, everyone)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("dtype", [dtype for dtype in ranks.KINDS if dtype.is_floating_point], ids=str)
def test_the_gradient_of_a_row_is_what_all_ranks_have_for_it(
    found: ranks.Found, number: int, dtype: torch.dtype
) -> None:
    shapes = [ranks.shapes(rank)[number] for rank in range(len(found))]
    whole = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    # The sum is rounded once, not with every rank.
    total = sum(ranks.weights_of(rank, whole, dtype).double() for rank in range(len(found))).to(dtype)
    gradients = [part["gather"][f"gradient {number} {dtype}"] for part in found]
    assert [list(gradient.shape) for gradient in gradients] == [list(shape) for shape in shapes]
    assert torch.equal(torch.cat(gradients), total)
    for rank, part in enumerate(found):
        assert torch.equal(part["gather"][f"other {number} {dtype}"], ranks.weights_of(rank, whole, dtype))
