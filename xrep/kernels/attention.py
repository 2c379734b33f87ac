"""Attention of short sentences on CPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SHORT = 64
"""Tokens up to which attention is faster written out than in torch's flash kernel, on CPUs and without gradient."""


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Scaled dot-product attention [B, heads, T, d].

    Args:
        mask: bool, False where nothing is looked at, broadcast to [B, heads, T, T].
        dropout: of the attention weights.
    """
    plain = not (dropout or torch.is_grad_enabled() or torch.compiler.is_compiling())
    if plain and q.device.type == "cpu" and q.size(2) <= SHORT:
        return _written_out(q, k, v, mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scale and mask go into the first product; softmax is taken in float32, where torch's kernel is fastest."""
    batch, heads, length, size = q.shape
    scores = q.new_zeros(())
    if mask is not None:
        scores = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        scores = scores.expand(batch, heads, length, length).flatten(0, 1)
    scores = torch.baddbmm(
        scores, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0 if mask is None else 1, alpha=size**-0.5
    )
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    return torch.bmm(weights, v.flatten(0, 1)).unflatten(0, (batch, heads))
