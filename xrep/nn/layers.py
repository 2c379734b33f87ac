"""Building blocks of the transformer: linear layer, packed batches, self-attention, encoder layer."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.kernels.linear import linear


class Linear(nn.Linear):
    """``nn.Linear`` that takes the faster float32 product on CPUs where it is as exact."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Packing:
    """The real tokens of a padded batch, end to end: everything but attention runs on them alone.

    Contrastive batches mix lengths, and padding would nearly double the work of the linear layers. Copies of the first
    token fill the pack up to one of few sizes (at most an eighth more): the CPU library compiles and caches a product
    for every size it meets, which takes gigabytes where each batch has another one.

    Args:
        mask: bool [B, T], True at real tokens.
    """

    def __init__(self, mask: Tensor) -> None:
        self.batch, self.length = mask.shape
        self.rows = mask.flatten().nonzero().squeeze(1)
        count = len(self.rows)
        unit = max(8, 1 << count.bit_length() - 4)
        self.packed_rows = torch.cat([self.rows, self.rows[:1].expand(-count % unit)])
        self.attention_mask = mask[:, None, None, :]

    def pack(self, padded: Tensor) -> Tensor:
        """[B, T, ...] -> [N, ...], N the number of real tokens, rounded up."""
        return padded.flatten(0, 1).index_select(0, self.packed_rows)

    def pad(self, packed: Tensor) -> Tensor:
        """[N, ...] -> [B, T, ...], zeros at padding."""
        flat = packed.new_zeros(self.batch * self.length, *packed.shape[1:])
        return flat.index_copy(0, self.rows, packed[: len(self.rows)]).unflatten(0, (self.batch, self.length))


class SelfAttention(nn.Module):
    """Multi-head self-attention over [B, T, H], or over packed tokens [N, H] with their ``packing``."""

    def __init__(self, hidden_size: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.output = Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, packing: Packing | None) -> Tensor:
        qkv = self.qkv(x) if packing is None else packing.pad(self.qkv(x))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if packing is None else packing.attention_mask
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).flatten(2)
        return self.output(mixed if packing is None else packing.pack(mixed))


class EncoderLayer(nn.Module):
    """Self-attention and a GELU feed-forward network, each with a residual connection and layer normalisation."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        feedforward_size: int,
        dropout: float,
        attention_dropout: float,
        norm: Literal["post", "pre"],
        norm_epsilon: float,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden_size, heads, attention_dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.feedforward_in = Linear(hidden_size, feedforward_size)
        self.feedforward_out = Linear(feedforward_size, hidden_size)
        self.feedforward_norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.norm = norm

    def forward(self, x: Tensor, packing: Packing | None) -> Tensor:
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), packing))
            return x + self.dropout(self._feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, packing)))
        return self.feedforward_norm(x + self.dropout(self._feedforward(x)))

    def _feedforward(self, x: Tensor) -> Tensor:
        return self.feedforward_out(F.gelu(self.feedforward_in(x)))
