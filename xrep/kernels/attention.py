"""Attention that is fast for short sentences on CPUs, and for sentences of different lengths on GPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.dropout import dropout as drop

SHORT = 64
"""Up to this many tokens, attention written out is faster than torch's flash kernel on CPUs without gradient."""


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, *, causal: bool = False) -> Tensor:
    """Compute scaled dot-product attention [B, heads, T, d] to keys and values [B, heads, S, d].

    Args:
        mask: bool, broadcast to [B, heads, T, S]; False for keys that a query must not attend to.
        dropout: dropout probability of the attention weights.
        causal: token t attends to keys 0 to t only; there must be no ``mask`` then.
    """
    on_cpu, learns = q.device.type == "cpu", torch.is_grad_enabled()
    if on_cpu and learns and (q.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")):
        # torch's backward pass takes ten times as long in bfloat16 as in float32 (torch 2.13, with AMX).
        with torch.autocast("cpu", enabled=False):
            return attention(q.float(), k.float(), v.float(), mask, dropout, causal=causal).to(q.dtype)
    # torch has no fast kernel with dropout on CPUs.
    if on_cpu and not torch.compiler.is_compiling() and (dropout or (not learns and q.size(2) <= SHORT)):
        mask = mask_of_future(q.size(2), k.size(2), q.device) if causal else mask
        return _written_out(q, k, v, mask, dropout)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal)


def attention_by_length(qkv: Tensor, groups: Sequence[tuple[int, int]], heads: int, dropout: float) -> Tensor:
    """Compute the attention of packed tokens to all tokens of their own sentence, [N, H], without padding.

    Args:
        qkv: [N, 3 H], queries, keys and values of sentences one after the other. Tokens after the last sentence get
            zeros.
        groups: the number of sentences of each length, and the length.
    """
    sizes, mixed = [count * length for count, length in groups], []
    *parts, rest = qkv.split([*sizes, len(qkv) - sum(sizes)])
    for part, (count, length) in zip(parts, groups, strict=True):
        q, k, v = part.view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed.append(attention(q, k, v, None, dropout).transpose(1, 2).reshape(len(part), -1))
    return torch.cat([*mixed, rest.new_zeros(len(rest), qkv.size(1) // 3)])


def packed_attention(qkv: Tensor, offsets: Tensor, longest: int, dropout: float) -> Tensor:
    """Compute the attention of packed tokens to all tokens of their own sentence, [N, heads, d], without padding.

    This is torch's flash kernel of sentences of any length, whose public function has no dropout (torch 2.13).

    Args:
        qkv: [N, 3, heads, d], queries, keys and values in half precision on a GPU (``packs_attention``).
        offsets: int32 [B + 1], the first token of each sentence, and N.
        longest: the number of tokens of the longest sentence, or more.
        dropout: dropout probability of the attention weights.
    """
    q, k, v = qkv.unbind(1)
    bounds = (offsets, offsets, longest, longest)
    return torch.ops.aten._flash_attention_forward(q, k, v, *bounds, dropout, False, False)[0]


@functools.cache
def packs_attention(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return whether ``packed_attention`` can compute heads of ``size`` numbers of a type on a device."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16) or size % 8 or size > 128:
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def mask_of_future(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return the causal mask, bool [1, 1, queries, keys]: query t attends to keys 0 to t."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Compute attention from single operations.

    Scale and mask are part of the first product. The softmax is taken in float32, where torch's kernel is fastest.
    """
    batch, heads, length, size = q.shape
    scores = q.new_zeros(())
    if mask is not None:
        scores = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        scores = scores.expand(batch, heads, length, k.size(2)).flatten(0, 1)
    scores = torch.baddbmm(
        scores, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0 if mask is None else 1, alpha=size**-0.5
    )
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    if dropout:
        weights = drop(weights, dropout)
    return torch.bmm(weights, v.flatten(0, 1)).unflatten(0, (batch, heads))


def cached_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the attention of the next token of K hypotheses of each sentence, [B, heads, K, d], without gradient.

    Args:
        keys, values: [B, heads, N, d], shared by the hypotheses of a sentence.
        mask: [B · heads, K, N], added to the scores: -inf at keys that a hypothesis must not attend to.
    """
    scores, start = (q.new_zeros(()), 0) if mask is None else (mask, 1)
    keys = keys.flatten(0, 1).transpose(1, 2)
    scores = torch.baddbmm(scores, q.flatten(0, 1), keys, beta=start, alpha=q.size(3) ** -0.5)
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(values.dtype)
    return torch.bmm(weights, values.flatten(0, 1)).unflatten(0, q.shape[:2])
