"""Attention against torch's, and dropout against its distribution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.closeness import assert_near
from xrep.kernels.attention import attention, cached_attention
from xrep.kernels.dropout import dropout


@pytest.mark.parametrize("autocast", [True, False])
def test_attention_in_bfloat16_is_differentiated_in_float32_on_cpus(autocast: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v, direction = (torch.randn(2, 3, 7, 8, generator=draw).bfloat16() for _ in range(4))
    mask = (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None]
    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = attention(*leaves, mask, 0.0)
    found = [result, *torch.autograd.grad((result * direction).sum(), leaves)]
    wide = [each.float().requires_grad_() for each in (q, k, v)]
    exact = F.scaled_dot_product_attention(*wide, attn_mask=mask)
    for mine, theirs in zip(found, [exact, *torch.autograd.grad((exact * direction).sum(), wide)], strict=True):
        assert mine.dtype == torch.bfloat16 and torch.equal(mine, theirs.bfloat16())


@pytest.mark.parametrize("dtype, share", [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_attention_of_hypotheses_to_shared_keys_equals_torch(dtype, share, masked: bool, transposed: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 3, n, 8, generator=draw, dtype=dtype) for n in (4, 7, 7))
    keys = keys.transpose(2, 3).contiguous().transpose(2, 3) if transposed else keys
    mask = torch.zeros(2, 1, 4, 7, dtype=dtype)
    mask[0, :, 1:, 3:] = mask[1, :, 0, :6] = -torch.inf
    wide = q.double(), keys.double(), values.double()
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask.double() if masked else None)
    found = cached_attention(q, keys, values, mask.expand(-1, 3, -1, -1).flatten(0, 1) if masked else None)
    assert found.dtype == dtype
    assert_near(found, expected, share)


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


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_has_its_share_its_mean_and_its_gradient(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.full((301, 333), 2.0, requires_grad=True)
    result = dropout(x, probability)
    dropped = result == 0
    assert float(dropped.float().mean()) == pytest.approx(probability, abs=0.006)  # four standard deviations
    assert (result[~dropped] == 2 / (1 - round(probability * 65536) / 65536)).all()
    for there, here in ((dropped[:, 1:], dropped[:, :-1]), (dropped[1:], dropped[:-1])):  # neighbours are independent
        assert float((there & here).float().mean()) == pytest.approx(probability**2, abs=0.006)
    result.sum().backward()
    assert torch.equal(x.grad, result.detach() / 2)


def test_torchs_generator_decides_on_dropout_and_moves_on() -> None:
    x = torch.ones(7, 5)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first) and not torch.equal(first, second)
    # They depend neither on the processor nor on the version of torch or numpy.
    assert first.flatten()[:12].ne(0).int().tolist() == [1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert torch.equal(dropout(x, 0.0), x) and not dropout(x, 1.0).any()
    assert dropout(torch.ones(2, 0), 0.3).shape == (2, 0) and dropout(torch.tensor(1.0), 0.3).shape == ()
    assert dropout(x.bfloat16(), 0.3).dtype == torch.bfloat16
