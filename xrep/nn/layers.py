"""Building blocks of the transformer: linear layer, packed batches, self-attention, encoder layer."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batching import TokenBatch
from xrep.kernels.attention import attention
from xrep.kernels.linear import fused_linear, linear

Activation = Literal["gelu", "gelu_tanh", "relu"]


class Linear(nn.Linear):
    """``nn.Linear`` that takes the faster float32 product on CPUs where it is as exact."""

    def forward(self, input: Tensor) -> Tensor:
        fused = fused_linear(input, self.weight, self.bias, gelu=False) if self.bias is not None else None
        return linear(input, self.weight, self.bias) if fused is None else fused


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The function between the two products of a feed-forward network; gelu_tanh is GELU's tanh approximation."""
    if activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def feedforward(x: Tensor, inner: Linear, outer: Linear, activation: Activation) -> Tensor:
    """Two linear layers with the function between them."""
    hidden = fused_linear(x, inner.weight, inner.bias, gelu=True) if activation == "gelu" else None
    return outer(activate(inner(x), activation) if hidden is None else hidden)


class Packing:
    """The real tokens of a padded batch, end to end: everything but attention runs on them alone.

    Contrastive batches mix lengths, and padding would nearly double the work of the linear layers. Copies of the first
    token fill the pack up to one of few sizes (at most an eighth more): the CPU library compiles and caches a product
    for every size it meets, which takes gigabytes where each batch has another one.

    Args:
        rows: int64 [N], where each packed token stands in [B * T].
        mask: bool [B, T], True at real tokens.
    """

    def __init__(self, rows: Tensor, mask: Tensor) -> None:
        self.batch, self.length = mask.shape
        unit = 1 << max(3, len(rows).bit_length() - 4)
        self.rows, self.packed_rows = rows, torch.cat([rows, rows[:1].expand(-len(rows) % unit)])
        self.attention_mask = mask[:, None, None, :]

    @classmethod
    def of(cls, batch: TokenBatch) -> Packing:
        """Sentence by sentence."""
        length, lengths, count, device = batch.tokens.size(1), batch.lengths, batch.real_tokens, batch.tokens.device
        # Where each sentence begins, padded and packed. The mask's nonzero() would wait for a GPU to learn its size.
        shift = torch.arange(len(batch), device=device) * length - (lengths.cumsum(0) - lengths)
        return cls(torch.arange(count, device=device) + shift.repeat_interleave(lengths, output_size=count), batch.mask)

    def pack(self, padded: Tensor) -> Tensor:
        """[B, T, ...] -> [N, ...], N the number of real tokens, rounded up."""
        return padded.flatten(0, 1).index_select(0, self.packed_rows)

    def pad(self, packed: Tensor) -> Tensor:
        """[N, ...] -> [B, T, ...], zeros at padding."""
        flat = packed.new_zeros(self.batch * self.length, *packed.shape[1:])
        return flat.index_copy(0, self.rows, packed[: len(self.rows)]).unflatten(0, (self.batch, self.length))


class Masking:
    """A padded batch whose padding is so little that moving the tokens would cost more than what it computes there.

    Args:
        mask: bool [B, T], True at real tokens.
    """

    def __init__(self, mask: Tensor) -> None:
        self.attention_mask = mask[:, None, None, :]

    def pack(self, padded: Tensor) -> Tensor:
        return padded

    def pad(self, packed: Tensor) -> Tensor:
        return packed


Layout = Packing | Masking | None
"""How a batch lies in memory; None: it has no padding."""

PACKED_BELOW = 0.9
"""Share of real tokens in a batch below which they are packed."""


def layout_of(batch: TokenBatch) -> Layout:
    """How an encoder or decoder computes a batch."""
    if not batch.is_padded:
        return None
    packed = batch.real_tokens < PACKED_BELOW * batch.tokens.numel()
    return Packing.of(batch) if packed else Masking(batch.mask)


class SelfAttention(nn.Module):
    """Multi-head self-attention over [B, T, H], or over tokens in another ``layout``.

    Args:
        causal: each token attends to itself and those before it. Padding stands behind them, so there is no mask.
    """

    def __init__(self, hidden_size: int, heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.output = Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        qkv = self.qkv(x) if layout is None else layout.pad(self.qkv(x))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if layout is None or self.causal else layout.attention_mask
        dropout = self.dropout if self.training else 0.0
        mixed = attention(q, k, v, mask, dropout, causal=self.causal).transpose(1, 2).flatten(2)
        return self.output(mixed if layout is None else layout.pack(mixed))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and layer normalisation."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        feedforward_size: int,
        dropout: float,
        attention_dropout: float,
        norm: Literal["post", "pre"],
        norm_epsilon: float,
        activation: Activation,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden_size, heads, attention_dropout)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.feedforward_in = Linear(hidden_size, feedforward_size)
        self.feedforward_out = Linear(feedforward_size, hidden_size)
        self.feedforward_norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.norm = norm
        self.activation: Activation = activation

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.norm == "pre":
            x = x + self.dropout(self.attention(self.attention_norm(x), layout))
            return x + self.dropout(self._feedforward(self.feedforward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, layout)))
        return self.feedforward_norm(x + self.dropout(self._feedforward(x)))

    def _feedforward(self, x: Tensor) -> Tensor:
        return feedforward(x, self.feedforward_in, self.feedforward_out, self.activation)
