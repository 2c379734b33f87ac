"""inbatch_infonce against the formula of each direction, pair by pair, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xrep.kernels import precision
from xrep.kernels.inbatch_infonce import inbatch_infonce


def reference(x: Tensor, y: Tensor, tau: Tensor, same: Tensor, margin: float) -> Tensor:
    """Losses [2, B] of both directions; ``same[i, j]``: pairs i and j are not each other's negatives."""
    losses = []
    for a, b in ((x, y), (y, x)):
        for i in range(len(x)):
            positive = (a[i] @ b[i] - margin) / tau
            negatives = [a[i] @ b[j] / tau for j in range(len(x)) if j != i and not same[i, j]]
            losses.append(torch.logsumexp(torch.stack([positive, *negatives]), 0) - positive)
    return torch.stack(losses).view(2, -1)


def differentiate(function, x: Tensor, y: Tensor, tau: Tensor, weights: Tensor) -> dict[str, Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in (x, y, tau)]
    loss = function(*leaves)
    (loss * weights.to(loss.dtype)).sum().backward()
    return dict(zip(("loss", "x", "y", "tau"), (loss.detach(), *(leaf.grad for leaf in leaves)), strict=True))


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-3))


def make(batch: int, size: int = 12, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    x, y = (torch.nn.functional.normalize(torch.randn(batch, size, generator=generator), dim=1) * scale for _ in "xy")
    return x, y, torch.randn(2, batch, generator=generator)


@pytest.mark.parametrize(
    "batch, temperature, margin, scale, sentences",
    [(17, 0.05, 0.0, 1.0, None), (1, 0.05, 0.2, 1.0, None), (16, 0.05, 0.3, 1.0, 12), (5, 0.05, 0.0, 1.0, 1),
     (23, 0.01, 0.0, 8.0, None)],
    ids=["ragged", "one pair", "ids and margin", "everything masked", "large logits"],
)  # fmt: skip
def test_equals_the_formula(batch, temperature, margin, scale, sentences) -> None:
    x, y, weights = make(batch, scale=scale)
    ids = torch.stack([torch.randperm(batch) % (sentences or batch) for _ in range(2)], 1)
    same = (ids[:, None] == ids[None]).any(2)
    tau = torch.tensor(temperature)

    def kernel(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        result = inbatch_infonce(x, y, t, margin=margin, ids=ids if sentences else None)
        return torch.stack([result.forward, result.backward])

    def plain(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return reference(x, y, t, same if sentences else torch.eye(batch, dtype=torch.bool), margin)

    found = differentiate(kernel, x, y, tau, weights)
    single = differentiate(plain, x, y, tau, weights)
    exact = differentiate(plain, x.double(), y.double(), tau.double(), weights)
    errors = {key: (error(found[key], exact[key]), error(single[key], exact[key])) for key in exact}
    assert all(mine <= 1.5 * torchs + 2e-6 for mine, torchs in errors.values()), errors


def test_correct_in_each_direction() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    y = torch.tensor([[2.0, 0.0], [0.6, 0.9], [0.0, 0.8]])
    # By hand: x·y is [[2, .6, 0], [0, .9, .8], [1.2, 1.08, .64]].
    result = inbatch_infonce(x, y, 0.05)
    assert result.forward_correct.tolist() == [True, True, False]
    assert result.backward_correct.tolist() == [True, False, False]
    closer = inbatch_infonce(x, y, 0.05, ids=torch.tensor([[0, 0], [1, 1], [2, 1]]))
    assert closer.forward_correct.tolist() == [True, True, False]
    assert closer.backward_correct.tolist() == [True, True, True]


def test_neither_autocast_nor_the_fast_product_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = make(60, 40)
    tau, weights = torch.tensor(0.05), torch.ones(2, 60)

    def run() -> dict[str, Tensor]:
        return differentiate(lambda x, y, t: torch.stack(inbatch_infonce(x, y, t)[:2]), x, y, tau, weights)

    usual = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.stack(inbatch_infonce(x, y, tau)[:2]), usual["loss"])
    monkeypatch.setattr(precision, "_fast_allowed", False)
    slow = run()
    assert all(error(usual[key], slow[key].double()) < 1e-5 for key in usual)
