from __future__ import annotations

import pytest
import torch

from xrep.kernels.attention import attention
from xrep.kernels.dropout import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_share_the_mean_and_the_gradient(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    result = dropout(x, probability)
    dropped = result == 0
    assert float(dropped.float().mean()) == pytest.approx(probability, abs=0.006)  # four standard deviations
    assert torch.equal(
        result[~dropped], torch.full_like(result[~dropped], 2 / (1 - round(probability * 65536) / 65536))
    )
    for there, here in ((dropped[:, 1:], dropped[:, :-1]), (dropped[1:], dropped[:-1])):  # neighbours are independent
        assert float((there & here).float().mean()) == pytest.approx(probability**2, abs=0.006)
    result.sum().backward()
    assert torch.equal(x.grad, result.detach() / 2)


def test_torchs_generator_decides_and_moves_on() -> None:
    x = torch.ones(7, 5)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first) and not torch.equal(first, second)
    # They depend neither on the processor nor on the version of torch or numpy.
    assert first.flatten()[:12].ne(0).int().tolist() == [1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]


def test_nothing_and_everything() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(dropout(x, 0.0), x) and not dropout(x, 1.0).any()
    assert dropout(torch.ones(2, 0), 0.3).shape == (2, 0) and dropout(torch.tensor(1.0), 0.3).shape == ()
    assert dropout(x.bfloat16(), 0.3).dtype == torch.bfloat16


@pytest.mark.parametrize("autocast", [False, True])
def test_attention_drops_weights_as_torch_does(autocast: bool) -> None:
    """Each key has a direction of its own as its value, so the result shows the weights."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 3, 40, 6)
    v, mask = torch.eye(40).expand(2, 3, 40, 40), torch.rand(2, 1, 1, 40) < 0.8
    kept = torch.where(mask, torch.softmax((q @ k.mT * 6**-0.5).masked_fill(~mask, -torch.inf), -1), 0.0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = attention(q, k, v, mask, 0.25).float()
    seen = (found != 0) & mask
    assert float(seen[mask.expand_as(seen)].float().mean()) == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(found[seen], kept[seen] / 0.75, rtol=1e-2 if autocast else 1e-4, atol=1e-6)
    assert not found[~mask.expand_as(found)].any()
