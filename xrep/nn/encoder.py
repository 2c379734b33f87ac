"""A transformer encoder: token, position and type embeddings, then layers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xrep.data.batching import TokenBatch
from xrep.nn.layers import Activation, EncoderLayer, Layout, Masking, Packing

PACKED_BELOW = 0.9
"""Share of real tokens in a batch below which they are packed."""


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """Everything that fixes the tensors of an encoder and what it computes from them (but for dropout)."""

    vocabulary_size: int
    pad_id: int
    hidden_size: int
    layers: int
    heads: int
    feedforward_size: int
    max_positions: int
    """Longest sequence in tokens."""
    position_offset: int = 0
    """Row of the position table that the first token reads: RoBERTa's and XLM-R's first is pad id + 1, that is 2. The
    table has ``max_positions + position_offset`` rows."""
    type_vocabulary_size: int = 0
    """Rows of BERT's table of segments; 0: no table. A single sentence is of type 0."""
    norm: Literal["post", "pre"] = "post"
    norm_epsilon: float = 1e-12
    activation: Activation = "gelu"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class TransformerEncoder(nn.Module):
    """Token ids -> one vector per token.

    Post-norm is BERT's arrangement (embeddings normalised first); pre-norm normalises each sublayer's input and the
    final output instead.

    Args:
        initializer_range: standard deviation of the normal initialisation of all matrices.

    Attributes:
        activation_checkpointing: in training keep the input of each layer alone, and compute the layer again in the
            backward pass (``set_activation_checkpointing``).
    """

    def __init__(
        self, shape: EncoderShape, *, dropout: float, attention_dropout: float, initializer_range: float = 0.02
    ) -> None:
        super().__init__()
        self.shape = shape
        hidden_size, epsilon = shape.hidden_size, shape.norm_epsilon
        self.token_embedding = nn.Embedding(shape.vocabulary_size, hidden_size, padding_idx=shape.pad_id)
        self.position_embedding = nn.Embedding(shape.max_positions + shape.position_offset, hidden_size)
        types = shape.type_vocabulary_size
        self.type_embedding = nn.Embedding(types, hidden_size) if types else None
        self.norm = nn.LayerNorm(hidden_size, eps=epsilon)
        self.dropout = nn.Dropout(dropout)
        sizes = (hidden_size, shape.heads, shape.feedforward_size)
        self.layers = nn.ModuleList(
            EncoderLayer(*sizes, dropout, attention_dropout, shape.norm, epsilon, shape.activation)
            for _ in range(shape.layers)
        )
        self.norm_first = shape.norm == "pre"
        self.activation_checkpointing = False
        self.apply(lambda module: _initialise(module, initializer_range))

    def forward(self, batch: TokenBatch, hidden_layer: int | None = None) -> Tensor:
        """Hidden states of a layer, [B, T, H]; zeros at padding.

        Args:
            hidden_layer: k in [0, layers]: the output of layer k, of the embeddings for 0 (a post-norm encoder
                normalises them; a pre-norm one normalises the output of its last layer alone). None: the last layer.
                The layers above are not computed.

        Raises:
            ValueError: there is no such layer.
        """
        last = len(self.layers)
        count = last if hidden_layer is None else hidden_layer
        if not 0 <= count <= last:
            raise ValueError(f"hidden_layer must lie in [0, {last}], not {hidden_layer}")
        layout = _layout(batch)
        positions = torch.arange(batch.tokens.size(1), device=batch.tokens.device).expand_as(batch.tokens)
        tokens = batch.tokens
        if layout is not None:
            tokens, positions = layout.pack(tokens), layout.pack(positions)
        x = self.embed(tokens, positions)
        again = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        for layer in islice(self.layers, count):
            x = checkpoint(layer, x, layout, use_reentrant=False) if again else layer(x, layout)
        x = self.norm(x) if self.norm_first and count == last else x
        if isinstance(layout, Masking):
            return x.masked_fill(~batch.mask.unsqueeze(-1), 0.0)
        return x if layout is None else layout.pad(x)

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Input of the first layer for token ids of any shape at ``positions`` (from 0; None: nowhere)."""
        x = self.token_embedding(tokens)
        if self.type_embedding is not None:
            x = x + self.type_embedding.weight[0]
        if positions is not None:
            x = x + self.position_embedding(positions + self.shape.position_offset)
        return self.dropout(x if self.norm_first else self.norm(x))


def set_activation_checkpointing(module: nn.Module, on: bool) -> None:
    """Switch ``activation_checkpointing`` of every encoder in a module."""
    for part in module.modules():
        if isinstance(part, TransformerEncoder):
            part.activation_checkpointing = on


def _layout(batch: TokenBatch) -> Layout:
    if not batch.is_padded:
        return None
    packed = batch.real_tokens < PACKED_BELOW * batch.tokens.numel()
    return Packing.of(batch) if packed else Masking(batch.mask)


def _initialise(module: nn.Module, initializer_range: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
