"""Two sets of negatives one after the other give the result of both together."""

from __future__ import annotations

import pytest
import torch

from tests.support.closeness import assert_near
from xrep.kernels.queue_infonce import InfoNCE, against_both, queue_infonce


@pytest.mark.parametrize("tau", [1.0, 0.05, 0.004])
@pytest.mark.parametrize("sizes", [(7, 40), (40, 7), (0, 9), (9, 0), (0, 0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_gradient_and_correctness(tau: float, sizes: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = ((12, 16), (12, 16), (sizes[0], 16), (sizes[1], 16))
    query, positive, one, other = (torch.nn.functional.normalize(torch.randn(s), dim=1).to(dtype) for s in shapes)
    positive[:4] = query[:4]  # the loss is nearly 0
    query.requires_grad_()
    theta = torch.tensor(tau, dtype=dtype, requires_grad=True)
    results = []
    for found in (
        queue_infonce(query, positive, torch.cat([one, other]), theta),
        against_both(queue_infonce(query, positive, one, theta), queue_infonce(query, positive, other, theta)),
    ):
        results.append([found.loss, *torch.autograd.grad(found.loss.sum(), [query, theta]), found.correct])
    exact = dtype == torch.float64
    for expected, mine in zip(*results, strict=True):
        assert_near(mine, expected, 1e-12 if exact else 1e-5)


def test_losses_that_are_large_and_tiny() -> None:
    pairs = torch.tensor([[1e-9, 2e-9], [300.0, 299.0], [300.0, 0.0], [0.0, 0.0], [1e-9, 500.0]])
    one, other = (InfoNCE(loss, torch.ones(5, dtype=torch.bool)) for loss in pairs.T)
    expected = torch.log1p(sum(torch.expm1(loss.double()) for loss in pairs.T)).float()
    torch.testing.assert_close(against_both(one, other).loss, expected, rtol=1e-6, atol=0)
