"""A transformer decoder over the states of an encoder, for all positions at once or one at a time with a cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.kernels.attention import attention, cached_attention
from xrep.nn.encoder import initialise_by_width
from xrep.nn.half import Stack, in_half
from xrep.nn.layers import Layout, Linear, Masking, SelfAttention, TransformerLayer
from xrep.nn.shape import DecoderShape, EncoderShape

ROOM = 8
"""Number of steps for which a cache makes room at a time."""


@dataclass
class SourceKeys:
    """The keys and values of the source sentences for each layer, computed once.

    Attributes:
        keys, values: one tensor [B, heads, S, d] for each layer.
        mask: bool [B, 1, 1, S], True at real tokens; None if there is no padding.
    """

    keys: list[Tensor]
    values: list[Tensor]
    mask: Tensor | None

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences with the indices ``rows``, int64 [B']."""
        self.keys = [keys.transpose(2, 3).index_select(0, rows).transpose(2, 3) for keys in self.keys]
        self.values = [values.index_select(0, rows) for values in self.values]
        self.mask = None if self.mask is None else self.mask.index_select(0, rows)


class StepCache:
    """The keys and values of all tokens decoded so far, for all hypotheses of each sentence, in the order of decoding.

    Hypotheses share the tokens that they have in common, and nothing is moved when hypotheses change their order. A
    mask marks the tokens of each hypothesis, and attention ignores the others. The tensors have room for some more
    tokens, so that their sizes rarely change. When they are full, the tokens that no hypothesis continues are dropped:
    most hypotheses of a beam differ in their last tokens only.

    Args:
        layers: number of layers of the decoder.
        like: [B, ...], a tensor of B sentences with the type and the device of keys and values.

    Attributes:
        own: [B, K, N], 0 at the tokens of a hypothesis and -inf at all others and where there is no token yet.
    """

    def __init__(self, layers: int, like: Tensor) -> None:
        self.own = like.new_full((len(like), 1, ROOM), -torch.inf)
        self._length = 0
        self._stored: list[tuple[Tensor, Tensor] | None] = [None] * layers
        """Keys [B, heads, d, N], the order in which they are multiplied fastest, and values [B, heads, N, d]."""

    def advance(self, parents: Tensor | None, count: int) -> None:
        """Make room for the next token of ``count`` hypotheses per sentence.

        Args:
            parents: int64 [B, count], the index of the previous hypothesis that each one continues. It may be None
                until a sentence has several hypotheses.
        """
        if parents is not None:
            self.own = self.own.gather(1, parents.unsqueeze(2).expand(-1, -1, self.own.size(2)))
        elif count > 1 or self.own.size(1) > 1:
            raise ValueError("what several hypotheses continue must be said, and the first token is one for all")
        if self._length + count > self.own.size(2):
            self._make_room(ROOM * count)
        new = torch.full((count, count), -torch.inf, dtype=self.own.dtype, device=self.own.device).fill_diagonal_(0)
        self.own[:, :, self._length : self._length + count] = new
        self._length += count

    def _make_room(self, more: int) -> None:
        """Copy the tokens that a hypothesis has into tensors that have room for ``more``."""
        used = (self.own == 0).any(1)
        self._length = int(used.sum(1).max())
        # Places behind the used ones hold copies of any tokens, whose numbers are finite and which the mask excludes.
        places = used.byte().argsort(dim=1, descending=True, stable=True)[:, : self._length + more]
        places = F.pad(places, (0, self._length + more - places.size(1)))
        self.own = self.own.gather(2, places.unsqueeze(1).expand(-1, self.own.size(1), -1))
        self.own[:, :, self._length :] = -torch.inf
        for number, pair in enumerate(self._stored):
            if pair is not None:
                keys, values = pair
                _, heads, room, size = values.shape
                columns = places[:, None, None].expand(-1, heads, size, -1)
                first = torch.arange(len(places) * heads, device=places.device).mul_(room).view(-1, heads, 1)
                rows = (first + places.unsqueeze(1)).flatten()
                values = values.view(-1, size).index_select(0, rows).view(-1, heads, places.size(1), size)
                self._stored[number] = keys.gather(3, columns), values

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of one layer, [B, heads, K, d]; return those of all steps, [B, heads, N, d]."""
        pair = self._stored[layer]
        if pair is None:
            batch, heads, _, size = keys.shape
            room = self.own.size(2)
            pair = keys.new_zeros(batch, heads, size, room), keys.new_zeros(batch, heads, room, size)
            self._stored[layer] = pair
        new = slice(self._length - keys.size(2), self._length)
        pair[0][..., new], pair[1][:, :, new] = keys.transpose(2, 3), values
        return pair[0].transpose(2, 3), pair[1]

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences with the indices ``rows``, int64 [B']."""
        self._stored = [
            pair and (pair[0].index_select(0, rows), pair[1].index_select(0, rows)) for pair in self._stored
        ]
        self.own = self.own.index_select(0, rows)


class TransformerDecoder(Stack):
    """Maps vectors of the target tokens so far and states of the source to states that predict the next token.

    The model itself embeds the tokens and scores the vocabulary, because it may share both with its encoder.
    """

    def __init__(self, shape: DecoderShape, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape
        self.position_embedding = nn.Embedding(shape.max_positions, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.layers: Any = nn.ModuleList(DecoderLayer(shape, dropout, attention_dropout) for _ in range(shape.layers))
        self.norm_first = shape.norm == "pre"
        self.apply(initialise_by_width)

    def keys_of(self, states: Tensor, layout: Layout, mask: Tensor | None) -> SourceKeys:
        """Compute the keys and values of the source.

        Args:
            states: output of the encoder, [B, S, source_size].
            layout: layout of the source batch.
            mask: bool [B, S], True at real tokens; None if there is no padding.
        """
        packed = layout.pack(states)
        pairs = [layer.source_attention.keys_values(packed, layout) for layer in self.layers]
        mask = None if mask is None else mask[:, None, None, :]
        return SourceKeys([keys for keys, _ in pairs], [values for _, values in pairs], mask)

    def forward(self, vectors: Tensor, layout: Layout, source: SourceKeys) -> Tensor:
        """Return states [B, T, H], or packed as in ``layout``; each depends on the tokens up to its own.

        Args:
            vectors: embeddings of the tokens, [B, T, H].
            layout: layout of the target batch.
        """
        x = layout.pack(self._embed(vectors, torch.arange(vectors.size(1), device=vectors.device)))
        with in_half(self.layers, x, self.casts) as (layers, x):
            for layer, keys, values in zip(layers, source.keys, source.values, strict=True):
                x = layer(x, layout, (keys, values, source.mask))
        return self.norm(x) if self.norm_first else x

    def step(self, vectors: Tensor, position: int, cache: StepCache, source: SourceKeys) -> Tensor:
        """Return states [B, K, H] of the next token of K hypotheses of each sentence.

        Args:
            vectors: embeddings of these tokens, [B, K, H].
            position: position of these tokens, counted from 0.
            cache: has already advanced to these tokens.
        """
        x = self._embed(vectors, torch.full((), position, device=vectors.device))
        own, mask = self._for_heads(cache.own.unsqueeze(1)), None
        if source.mask is not None:
            mask = x.new_zeros(source.mask.shape).masked_fill_(~source.mask, -torch.inf)
            mask = self._for_heads(mask.expand(-1, -1, x.size(1), -1))
        for number, (layer, keys, values) in enumerate(zip(self.layers, source.keys, source.values, strict=True)):
            x = layer.step(x, (keys, values, mask), number, cache, own)
        return self.norm(x) if self.norm_first else x

    def _for_heads(self, mask: Tensor) -> Tensor:
        """Return a mask [B, 1, K, N] for each head, [B · heads, K, N]."""
        return mask.expand(-1, self.shape.heads, -1, -1).flatten(0, 1)

    def _embed(self, vectors: Tensor, positions: Tensor) -> Tensor:
        x = vectors + self.position_embedding(positions)
        return self.dropout(x if self.norm_first else self.norm(x))


class DecoderLayer(TransformerLayer):
    """A layer with attention to earlier tokens, attention to the source, and a feed-forward network."""

    attention: CausalAttention

    def _add_attention(self, shape: EncoderShape | DecoderShape, dropout: float) -> None:
        assert isinstance(shape, DecoderShape)
        self.attention = CausalAttention(shape.hidden_size, shape.heads, dropout, causal=True)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.source_attention = SourceAttention(shape, dropout)
        self.source_attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)

    def forward(self, x: Tensor, layout: Layout, source: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
        # source: keys, values and mask of the source
        own = self.attention_norm, self.attention, layout
        of_source = self.source_attention_norm, self.source_attention, layout, *source
        return self._sublayers(x, own, of_source, (self.feedforward_norm, self._feedforward))

    def step(
        self, x: Tensor, source: tuple[Tensor, Tensor, Tensor | None], number: int, cache: StepCache, mask: Tensor
    ) -> Tensor:
        """As ``forward`` for the next token of each hypothesis; masks are as for ``cached_attention``."""
        own = self.attention_norm, self.attention.step, number, cache, mask
        of_source = self.source_attention_norm, self.source_attention.step, *source
        return self._sublayers(x, own, of_source, (self.feedforward_norm, self._feedforward))


class CausalAttention(SelfAttention):
    """Self-attention of each token to itself and earlier tokens, for all tokens or for the next one."""

    def step(self, x: Tensor, number: int, cache: StepCache, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x, Masking())
        return self.output(cached_attention(q, *cache.add(number, k, v), mask).transpose(1, 2).flatten(2)), x


class SourceAttention(nn.Module):
    """Attention of target tokens to the encoder's states."""

    def __init__(self, shape: DecoderShape, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.query = Linear(shape.hidden_size, shape.hidden_size)
        self.key_value = Linear(shape.source_size, 2 * shape.hidden_size)
        self.output = Linear(shape.hidden_size, shape.hidden_size)

    def keys_values(self, states: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return keys and values, [B, heads, S, d] each; ``states`` are packed as in ``layout``."""
        both = layout.pad(self.key_value(states)).unflatten(-1, (2, self.heads, -1))
        keys, values = both.permute(2, 0, 3, 1, 4)
        if torch.is_grad_enabled():
            return keys, values
        # Every step reads them, fastest in this order.
        return keys.transpose(2, 3).contiguous().transpose(2, 3), values.contiguous()

    def forward(
        self, x: Tensor, layout: Layout, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the attention, and ``x`` for the residual connection."""
        q = layout.pad(self.query(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        return self.output(layout.pack(attention(q, keys, values, mask, dropout).transpose(1, 2).flatten(2))), x

    def step(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.output(cached_attention(q, keys, values, mask).transpose(1, 2).flatten(2)), x
