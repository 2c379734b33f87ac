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
    if dropout or q.size(2) > SHORT or q.device.type != "cpu" or torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    scores = torch.matmul(q * q.size(-1) ** -0.5, k.transpose(-1, -2))
    if mask is not None:
        scores.masked_fill_(~mask, float("-inf"))
    return torch.matmul(scores.softmax(-1), v)
