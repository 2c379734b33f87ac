"""A transformer decoder over the states of an encoder, for all positions at once or one at a time with a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xrep.kernels.attention import attention, cached_attention
from xrep.nn.containers import ModuleList
from xrep.nn.encoder import initialise
from xrep.nn.half import in_half
from xrep.nn.layers import Layout, Linear, Masking, SelfAttention, TransformerLayer
from xrep.nn.shape import DecoderShape, LayerShape

DROP_EVERY = 8
"""Number of steps after which a cache drops the tokens that no hypothesis has any more."""
WORTH_MOVING = 0.75
"""Share of the tokens in a cache that may remain if they are to be moved together."""


@dataclass
class SourceMemory:
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
        self.keys = [keys.index_select(0, rows) for keys in self.keys]
        self.values = [values.index_select(0, rows) for values in self.values]
        self.mask = None if self.mask is None else self.mask.index_select(0, rows)


class StepCache:
    """The keys and values of all tokens decoded so far, for all hypotheses of each sentence, in the order of decoding.

    Hypotheses share the tokens that they have in common, and nothing is moved when hypotheses change their order. A
    mask marks the tokens of each hypothesis, and attention ignores the others. Every few steps the tokens that no
    hypothesis continues any more are dropped: most hypotheses of a beam differ in their last tokens only, so that
    attention then reads little more than one hypothesis has.

    Attributes:
        own: [B, K, N], 0 at the tokens of a hypothesis and -inf at all others; the last K columns are the tokens of
            this step. None until a sentence has several hypotheses.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        """N, the number of tokens of all hypotheses of a sentence."""
        self.own: Tensor | None = None
        self._buffers: list[Tensor | None] = [None] * layers
        self._next_drop = 0

    def advance(self, parents: Tensor | None, count: int) -> None:
        """Make room for the next token of ``count`` hypotheses per sentence.

        Args:
            parents: int64 [B, count], the index of the previous hypothesis that each one continues. It may be None
                until a sentence has several hypotheses.
        """
        if count > 1 or self.own is not None:
            if parents is None or self._buffers[0] is None:
                raise ValueError("what several hypotheses continue must be said, and the first token is one for all")
            batch = self._buffers[0].size(1)
            before = self._buffers[0].new_zeros(batch, 1, self.length) if self.own is None else self.own
            before = before.gather(1, parents.unsqueeze(2).expand(-1, -1, self.length))
            if self.length >= self._next_drop:
                before = self._without_dropped(before)
                self._next_drop = self.length + DROP_EVERY * count
            new = torch.full((count, count), float("-inf"), dtype=before.dtype, device=before.device).fill_diagonal_(0)
            self.own = torch.cat([before, new.expand(batch, -1, -1)], dim=2)
        self.length += count

    def _without_dropped(self, own: Tensor) -> Tensor:
        """Move the tokens that a hypothesis still has to the front of the buffers; return their columns of ``own``."""
        used = (own == 0).any(1)
        longest = int(used.sum(1).max())
        if longest > WORTH_MOVING * self.length:
            return own
        places = used.byte().argsort(dim=1, descending=True, stable=True)[:, :longest]
        for buffer in self._buffers:
            assert buffer is not None
            both, batch, heads, room, size = buffer.shape
            first = torch.arange(both * batch * heads, device=own.device).mul_(room).view(both, batch, heads, 1)
            rows = (first + places.unsqueeze(1)).flatten()
            kept = buffer.view(-1, size).index_select(0, rows)
            buffer[:, :, :, :longest] = kept.view(both, batch, heads, longest, size)
        self.length = longest
        return own.gather(2, places.unsqueeze(1).expand(-1, own.size(1), -1))

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of one layer, [B, heads, K, d]; return those of all steps, [B, heads, N, d]."""
        buffer, count = self._buffers[layer], keys.size(2)
        if buffer is None or buffer.size(3) < self.length:
            batch, heads, _, size = keys.shape
            larger = keys.new_empty(2, batch, heads, max(32 * count, 2 * self.length), size)
            if buffer is not None:
                larger[:, :, :, : self.length - count] = buffer[:, :, :, : self.length - count]
            self._buffers[layer] = buffer = larger
        new = slice(self.length - count, self.length)
        buffer[0, :, :, new], buffer[1, :, :, new] = keys, values
        return buffer[0, :, :, : self.length], buffer[1, :, :, : self.length]

    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences with the indices ``rows``, int64 [B']."""
        self._buffers = [None if b is None else b.index_select(1, rows) for b in self._buffers]
        self.own = None if self.own is None else self.own.index_select(0, rows)


class TransformerDecoder(nn.Module):
    """Maps vectors of the target tokens so far and states of the source to states that predict the next token.

    The model itself embeds the tokens and scores the vocabulary, because it may share both with its encoder.
    """

    def __init__(
        self, shape: DecoderShape, *, dropout: float, attention_dropout: float, initializer_range: float = 0.02
    ) -> None:
        super().__init__()
        self.shape = shape
        self.position_embedding = nn.Embedding(shape.max_positions, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.layers = ModuleList(DecoderLayer(shape, dropout, attention_dropout) for _ in range(shape.layers))
        self.norm_first = shape.norm == "pre"
        self.apply(lambda module: initialise(module, initializer_range))

    def remember(self, states: Tensor, layout: Layout, mask: Tensor | None) -> SourceMemory:
        """Compute the keys and values of the source.

        Args:
            states: output of the encoder, [B, S, source_size].
            layout: layout of the source batch.
            mask: bool [B, S], True at real tokens; None if there is no padding.
        """
        packed = layout.pack(states)
        pairs = [layer.source_attention.keys_values(packed, layout) for layer in self.layers]
        mask = None if mask is None else mask[:, None, None, :]
        return SourceMemory([keys for keys, _ in pairs], [values for _, values in pairs], mask)

    def forward(self, vectors: Tensor, layout: Layout, memory: SourceMemory) -> Tensor:
        """Return states [B, T, H], or packed as in ``layout``; each depends on the tokens up to its own.

        Args:
            vectors: embeddings of the tokens, [B, T, H].
            layout: layout of the target batch.
        """
        x = layout.pack(self._embed(vectors, torch.arange(vectors.size(1), device=vectors.device)))
        with in_half(self.layers, x) as (layers, x):
            for layer, keys, values in zip(layers, memory.keys, memory.values, strict=True):
                x = layer(x, layout, (keys, values, memory.mask))
        return self.norm(x) if self.norm_first else x

    def step(self, vectors: Tensor, position: int, cache: StepCache, memory: SourceMemory) -> Tensor:
        """Return states [B, K, H] of the next token of K hypotheses of each sentence.

        Args:
            vectors: embeddings of these tokens, [B, K, H].
            position: position of these tokens, counted from 0.
            cache: has already advanced to these tokens.
        """
        x = self._embed(vectors, torch.full((), position, device=vectors.device))
        for number, (layer, keys, values) in enumerate(zip(self.layers, memory.keys, memory.values, strict=True)):
            x = layer(x, Masking(), (keys, values, memory.mask), (number, cache))
        return self.norm(x) if self.norm_first else x

    def _embed(self, vectors: Tensor, positions: Tensor) -> Tensor:
        x = vectors + self.position_embedding(positions)
        return self.dropout(x if self.norm_first else self.norm(x))


class DecoderLayer(TransformerLayer):
    """A layer with attention to earlier tokens, attention to the source, and a feed-forward network."""

    attention: CausalAttention

    def _add_attention(self, shape: LayerShape, dropout: float) -> None:
        assert isinstance(shape, DecoderShape)
        self.attention = CausalAttention(shape.hidden_size, shape.heads, dropout, causal=True)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.source_attention = SourceAttention(shape, dropout)
        self.source_attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        source: tuple[Tensor, Tensor, Tensor | None],
        step: tuple[int, StepCache] | None = None,
    ) -> Tensor:
        # source: keys, values and mask of the source; step: number of the layer and the cache, for one token alone.
        if step is None:
            x = self._sublayer(x, self.attention_norm, self.attention, layout)
        else:
            x = self._sublayer(x, self.attention_norm, self.attention.step, *step)
        x = self._sublayer(x, self.source_attention_norm, self.source_attention, layout, *source)
        return self._sublayer(x, self.feedforward_norm, self._feedforward)


class CausalAttention(SelfAttention):
    """Self-attention of each token to itself and earlier tokens, for all tokens or for the next one."""

    def step(self, x: Tensor, number: int, cache: StepCache) -> Tensor:
        q, k, v = self.project(x, Masking())
        keys, values = cache.add(number, k, v)
        return self.output(cached_attention(q, keys, values, cache.own).transpose(1, 2).flatten(2))


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

    def forward(self, x: Tensor, layout: Layout, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        q = layout.pad(self.query(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        return self.output(layout.pack(attention(q, keys, values, mask, dropout).transpose(1, 2).flatten(2)))
