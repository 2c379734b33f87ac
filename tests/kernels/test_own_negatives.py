"""add_own_negatives against the plain formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.own_negatives import add_own_negatives

TAU, MARGIN = 0.2, 0.1
ROWS = [0, 0, 2, 2, 2, 5]


def formula(x: Tensor, y: Tensor, n: Tensor, rows: list[int], tau: Tensor) -> tuple[Tensor, list[bool]]:
    losses, correct = [], []
    for i in range(len(x)):
        right = (x[i] @ y[i] - MARGIN) / tau
        others = [x[i] @ y[j] / tau for j in range(len(y)) if j != i]
        others += [x[i] @ n[k] / tau for k, row in enumerate(rows) if row == i]
        losses.append(torch.stack([right, *others]).logsumexp(0) - right)
        correct.append(all(right > other for other in others))
    return torch.stack(losses), correct


def vectors(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[Tensor]:
    torch.manual_seed(1)
    made = [scale * torch.randn(rows, 5, dtype=torch.float64) for rows in (6, 6, len(ROWS))]
    made[1] = 0.7 * made[0] + 0.3 * made[1]
    return [side.to(dtype).requires_grad_() for side in [*made, torch.tensor(TAU, dtype=torch.float64)]]


@pytest.mark.parametrize("scale", [0.5, 8.0], ids=["mild", "logits of hundreds"])
def test_losses_and_gradients(scale: float) -> None:
    mine, theirs = vectors(scale=scale), vectors(scale=scale)
    x, y, n, tau = mine
    before = inbatch_infonce(x, y, tau, margin=MARGIN)
    rows = torch.tensor(ROWS)
    loss, correct = add_own_negatives(before.forward, before.forward_correct, x, y, n, rows, tau, margin=MARGIN)
    expected, found = formula(*theirs[:3], ROWS, theirs[3])
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert correct.tolist() == found and any(found) and not all(found)
    assert (loss >= before.forward).all()
    weights = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    (weights * loss).sum().backward()
    (weights * expected).sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        assert other.grad.abs().max() > 1e-6
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_half_precision_is_summed_in_float32() -> None:
    x, y, n, tau = vectors(torch.bfloat16)
    exact = [side.detach().double() for side in (x, y, n)]
    with torch.autocast("cpu", torch.bfloat16):
        before = inbatch_infonce(x, y, TAU, margin=MARGIN)
        given = (before.forward, before.forward_correct, x, y, n, torch.tensor(ROWS))
        loss, _ = add_own_negatives(*given, TAU, margin=MARGIN)
    assert loss.dtype == torch.float32
    expected, _ = formula(*exact, ROWS, torch.tensor(TAU, dtype=torch.float64))
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_without_negatives_and_without_queries_nothing_changes() -> None:
    for count in (6, 0):
        x, y, n, tau = vectors()
        x, y = x[:count], y[:count]
        before = inbatch_infonce(x, y, tau)
        none = torch.zeros(0, dtype=torch.int64)
        loss, correct = add_own_negatives(before.forward, before.forward_correct, x, y, n[:0], none, tau)
        assert torch.equal(loss, before.forward) and torch.equal(correct, before.forward_correct)
        loss.sum().backward()
        assert not tau.grad.isnan()


def test_a_small_loss_keeps_its_digits() -> None:
    """The loss of a pair that is far ahead is below the precision of 1 in float32."""
    x = torch.eye(2, 5, requires_grad=True)
    before = inbatch_infonce(x, x, 0.05)
    negative = torch.zeros(1, 5)
    loss, _ = add_own_negatives(before.forward, before.forward_correct, x, x, negative, torch.tensor([0]), 0.05)
    assert loss[0].item() == pytest.approx(2 * loss[1].item(), rel=1e-5) and 0 < loss[1].item() < 1e-8


def test_shapes_that_do_not_fit() -> None:
    x, y, n, tau = vectors()
    found = inbatch_infonce(x, y, TAU)
    with pytest.raises(ValueError, match=r"rows must be \[N\] with N = 6, not \[5\]"):
        add_own_negatives(found.forward, found.forward_correct, x, y, n, torch.tensor(ROWS[:5]), TAU)
