from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from xrep.kernels import attention as module
from xrep.kernels.attention import attention


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
