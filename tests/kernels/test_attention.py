from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from tests.support.closeness import assert_near
from xrep.kernels import attention as module
from xrep.kernels.attention import attention, cached_attention


@pytest.mark.parametrize("autocast", [True, False])
def test_attention_in_bfloat16_is_differentiated_in_float32_on_cpus(autocast: bool, monkeypatch) -> None:
    monkeypatch.setattr(module, "layer_dtype", lambda tensor: tensor.dtype)  # as on a CPU that has bfloat16 products
    draw = torch.Generator().manual_seed(0)
    q, k, v, direction = (torch.randn(2, 3, 7, 8, generator=draw).bfloat16() for _ in range(4))
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[1, ..., 4:] = False

    leaves = [each.clone().requires_grad_() for each in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        result = attention(*leaves, mask, 0.0)
    found = [result, *torch.autograd.grad((result * direction).sum(), leaves)]
    wide = [each.float().requires_grad_() for each in (q, k, v)]
    exact = F.scaled_dot_product_attention(*wide, attn_mask=mask)
    for mine, theirs in zip(found, [exact, *torch.autograd.grad((exact * direction).sum(), wide)], strict=True):
        assert mine.dtype == torch.bfloat16 and torch.equal(mine, theirs.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_attention_of_hypotheses_to_shared_keys_equals_torch(dtype, masked: bool, transposed: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 3, n, 8, generator=draw, dtype=dtype) for n in (4, 7, 7))
    keys = keys.transpose(2, 3).contiguous().transpose(2, 3) if transposed else keys
    mask = torch.zeros(2, 1, 4, 7, dtype=dtype)
    mask[0, :, 1:, 3:] = mask[1, :, 0, :6] = -torch.inf
    given = mask.expand(-1, 3, -1, -1).flatten(0, 1) if masked else None
    wide = q.double(), keys.double(), values.double()
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask.double() if masked else None)
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}[dtype]
    found = cached_attention(q, keys, values, given)
    assert found.dtype == dtype
    assert_near(found, expected, tolerance)
