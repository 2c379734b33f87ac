"""A transformer encoder from scratch: token and learned position embeddings, then layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from xrep.data.batching import TokenBatch
from xrep.nn.layers import EncoderLayer, Packing


class TransformerEncoder(nn.Module):
    """Token ids -> one vector per token.

    Post-norm is BERT's arrangement (embeddings normalised first); pre-norm normalises each sublayer's input and the
    final output instead.

    Args:
        max_positions: longest sequence in tokens.
        initializer_range: standard deviation of the normal initialisation of all matrices.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        pad_id: int,
        max_positions: int,
        hidden_size: int,
        layers: int,
        heads: int,
        feedforward_size: int,
        dropout: float,
        attention_dropout: float,
        norm: Literal["post", "pre"],
        norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary_size, hidden_size, padding_idx=pad_id)
        self.position_embedding = nn.Embedding(max_positions, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(hidden_size, heads, feedforward_size, dropout, attention_dropout, norm, norm_epsilon)
            for _ in range(layers)
        )
        self.norm_first = norm == "pre"
        self.apply(lambda module: _initialise(module, initializer_range))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Hidden states of the last layer, [B, T, H]; zeros at padding."""
        packing = Packing(batch.mask) if batch.is_padded else None
        positions = torch.arange(batch.tokens.size(1), device=batch.tokens.device).expand_as(batch.tokens)
        tokens = batch.tokens
        if packing is not None:
            tokens, positions = packing.pack(tokens), packing.pack(positions)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        x = self.dropout(x if self.norm_first else self.norm(x))
        for layer in self.layers:
            x = layer(x, packing)
        x = self.norm(x) if self.norm_first else x
        return x if packing is None else packing.pad(x)


def _initialise(module: nn.Module, initializer_range: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
