"""triplet_infonce against the formula of supervised SimCSE, in float64, by one process and by several."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.kernels.pairs import tiles
from tests.kernels.ranks import Results, run_ranks
from xrep.kernels.gather import current_group
from xrep.kernels.paths import use_path
from xrep.kernels.triplet_infonce import triplet_infonce

SIZES = {2: [(4, 5), (0, 7)], 3: [(2, 0, 6), (3, 3, 1)]}
TAU = 0.3


def triplets(count: int, sentences: int = 1000) -> tuple[Tensor, Tensor]:
    """Return vectors [3, N, D] and ids [N, 3]; equal sentences have equal vectors."""
    generator = torch.Generator().manual_seed(count)
    table = torch.randn(sentences, 6, generator=generator, dtype=torch.float64) / 2
    ids = torch.randint(sentences, (count, 3), generator=generator)
    return table[ids].movedim(1, 0).contiguous(), ids


def formula(vectors: Tensor, tau: Tensor, weight: float, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return losses [N], and whether the positive is the best."""
    anchor, positive, negative = vectors
    losses, correct = [], []
    for i in range(len(anchor)):
        own, hard = anchor[i] @ positive[i] / tau, anchor[i] @ negative[i] / tau
        others = []
        for j in range(len(anchor)):
            if j != i and (ids is None or (ids[j, 0] != ids[i, 0] and ids[j, 1] != ids[i, 1])):
                others.append(anchor[i] @ positive[j] / tau)
            if j != i and (ids is None or (ids[j, 2] != ids[i, 0] and ids[j, 2] != ids[i, 1])):
                others.append(anchor[i] @ negative[j] / tau)
        total = own.exp() + weight * hard.exp() + sum(other.exp() for other in others)
        losses.append(-torch.log(own.exp() / total))
        correct.append(all(own > other for other in [hard, *others]))
    return torch.stack(losses), torch.tensor(correct)


def run(vectors: Tensor, ids: Tensor | None, weight: float, group: dist.ProcessGroup | None = None) -> Results:
    leaves = [side.clone().requires_grad_() for side in vectors]
    tau = torch.tensor(TAU, dtype=torch.float64, requires_grad=True)
    result = triplet_infonce(*leaves, tau, weight=weight, ids=ids, group=group)
    result.loss.sum().backward()
    gradient = torch.stack([leaf.grad for leaf in leaves], 1)
    return {"loss": result.loss.detach(), "correct": result.correct, "gradient": gradient, "tau": tau.grad}


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("weight", [1.0, 0.25, 3.0])
@pytest.mark.parametrize(("count", "sentences"), [(9, 1000), (9, 14), (1, 5), (30, 40)])
def test_losses_and_gradients(count: int, sentences: int, weight: float, path: str) -> None:
    vectors, ids = triplets(count, sentences)
    for given in (None, ids):
        exact = vectors.clone().requires_grad_()
        tau = torch.tensor(TAU, dtype=torch.float64, requires_grad=True)
        losses, correct = formula(exact, tau, weight, given)
        losses.sum().backward()
        for kept in (True, False):
            with use_path(path), tiles((4, 7), kept):
                found = run(vectors, given, weight)
            torch.testing.assert_close(found["loss"], losses.detach(), rtol=0, atol=1e-12)
            torch.testing.assert_close(found["gradient"], exact.grad.movedim(0, 1), rtol=0, atol=1e-11)
            torch.testing.assert_close(found["tau"], tau.grad, rtol=1e-10, atol=1e-10)
            assert torch.equal(found["correct"], correct)


def test_masked_sentences_matter() -> None:
    vectors, ids = triplets(30, 40)
    assert not torch.allclose(run(vectors, None, 1.0)["loss"], run(vectors, ids, 1.0)["loss"], rtol=1e-2)
    assert not torch.allclose(run(vectors, None, 1.0)["loss"], run(vectors, None, 3.0)["loss"], rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_and_large_logits(dtype: torch.dtype) -> None:
    vectors, _ = triplets(20)
    vectors = (vectors * 4).to(dtype)
    expected, _ = formula(vectors.double(), torch.tensor(0.05), 1.0, None)
    with torch.autocast("cpu", torch.bfloat16):
        found = triplet_infonce(*vectors, 0.05)
    assert found.loss.dtype == torch.float32 and torch.isfinite(found.loss).all()
    finite = torch.isfinite(expected)  # the plain formula overflows
    torch.testing.assert_close(found.loss[finite].double(), expected[finite], rtol=1e-4, atol=1e-4)


def test_no_rows_and_what_is_refused() -> None:
    leaves = [torch.zeros(0, 6, requires_grad=True) for _ in range(3)]
    loss = triplet_infonce(*leaves, 0.1, ids=torch.zeros(0, 3, dtype=torch.int64)).loss
    loss.sum().backward()
    assert loss.shape == (0,) and all(leaf.grad is not None for leaf in leaves)
    vectors, ids = triplets(4)
    with pytest.raises(ValueError, match=r"negative must be \[B, D\] with B = 4, D = 6, not \[3, 6\]"):
        triplet_infonce(vectors[0], vectors[1], vectors[2][:3], 0.1)
    with pytest.raises(ValueError, match="ids must be"):
        triplet_infonce(*vectors, 0.1, ids=ids[:3])
    with pytest.raises(ValueError, match="weight must be finite and above 0, not 0"):
        triplet_infonce(*vectors, 0.1, weight=0)


def of_a_rank(rank: int, world: int) -> dict[str, Results]:
    found = {}
    for number, sizes in enumerate(SIZES[world]):
        vectors, ids = triplets(sum(sizes), 12)
        mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        for given in (None, ids):
            name = f"{number} {given is None}"
            own = None if given is None else ids[mine]
            found[name] = run(vectors[:, mine], own, 2.0, current_group())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", SIZES)
def test_ranks_find_what_one_process_finds(tmp_path: Path, world: int) -> None:
    found = run_ranks(world, tmp_path, of_a_rank)
    for number, sizes in enumerate(SIZES[world]):
        vectors, ids = triplets(sum(sizes), 12)
        for given in (None, ids):
            whole = run(vectors, given, 2.0)
            parts = [part[f"{number} {given is None}"] for part in found]
            for key in ("loss", "correct", "gradient"):
                torch.testing.assert_close(torch.cat([p[key] for p in parts]), whole[key], rtol=0, atol=1e-11)
            torch.testing.assert_close(sum(part["tau"] for part in parts), whole["tau"], rtol=1e-10, atol=1e-10)
