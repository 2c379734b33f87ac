"""A transformer encoder: token, position and type embeddings, then layers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xrep.data.batching import TokenBatch
from xrep.nn.containers import ModuleList
from xrep.nn.layers import Activation, EncoderLayer, Layout, Masking, Norm, Packing, layout_of


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """Everything that determines the tensors of an encoder and what it computes from them, except dropout."""

    vocabulary_size: int
    pad_id: int
    hidden_size: int
    layers: int
    heads: int
    feedforward_size: int
    max_positions: int
    """Longest sequence in tokens."""
    position_offset: int = 0
    """Row of the position table that the first token reads. RoBERTa and XLM-R start at pad id + 1, which is 2. The
    table has ``max_positions + position_offset`` rows."""
    type_vocabulary_size: int = 0
    """Number of rows in BERT's table of segment types; 0 if there is no table. A single sentence has type 0."""
    norm: Norm = "post"
    norm_epsilon: float = 1e-12
    activation: Activation = "gelu"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class TransformerEncoder(nn.Module):
    """Maps token ids to one vector per token.

    Post-norm is BERT's arrangement, which normalises the embeddings first. Pre-norm normalises the input of each
    sublayer and the final output instead.

    Args:
        initializer_range: standard deviation of the normal initialisation of all matrices.

    Attributes:
        activation_checkpointing: in training, keep only the input of each layer, and compute the layer again in the
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
        self.layers = ModuleList(
            EncoderLayer(*sizes, dropout, attention_dropout, shape.norm, epsilon, shape.activation)
            for _ in range(shape.layers)
        )
        self.norm_first = shape.norm == "pre"
        self.activation_checkpointing = False
        self.apply(lambda module: initialise(module, initializer_range))

    def forward(
        self,
        batch: TokenBatch,
        hidden_layer: int | None = None,
        *,
        positions: Tensor | None = None,
        added: Tensor | None = None,
        prefix: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of a layer, [B, T, H], with zeros at padding.

        Args:
            hidden_layer: number k in [0, layers] of the layer whose output is returned; 0 means the embeddings, None
                the last layer. Higher layers are not computed. A post-norm encoder normalises the embeddings; a
                pre-norm one normalises only the output of its last layer.
            positions: positions of the tokens, int64 [B, T] or [T]; None means 0, 1, ... in each row.
            added: [B, T, H], added to the token embeddings before they are normalised (XLM's language embeddings).
            prefix: [B, N, H], placed unchanged before the embedded tokens of each row (``embed_vectors`` makes vectors
                like those). Tokens and prefix attend to each other; the states of the prefix are not returned. The
                prefix uses no positions: those of the tokens begin at 0 unless ``positions`` says otherwise.

        Raises:
            ValueError: the encoder has no such layer.
        """
        last = len(self.layers)
        count = last if hidden_layer is None else hidden_layer
        if not 0 <= count <= last:
            raise ValueError(f"hidden_layer must lie in [0, {last}], not {hidden_layer}")
        layout = layout_of(batch)
        if positions is None:
            positions = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
        positions, tokens = positions.expand_as(batch.tokens), batch.tokens
        if layout is not None:
            tokens, positions = layout.pack(tokens), layout.pack(positions)
        vectors = self.token_embedding(tokens)
        if added is not None:
            vectors = vectors + (added if layout is None else layout.pack(added))
        x, whole = self.embed_vectors(vectors, positions), layout
        if prefix is not None:
            x, whole = _behind(prefix, x, batch, layout)
        again = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        for layer in islice(self.layers, count):
            x = checkpoint(layer, x, whole, use_reentrant=False) if again else layer(x, whole)
        if prefix is not None:
            x = x[prefix.size(0) * prefix.size(1) :] if isinstance(layout, Packing) else x[:, prefix.size(1) :]
        x = self.norm(x) if self.norm_first and count == last else x
        if isinstance(layout, Masking):
            return x.masked_fill(~batch.mask.unsqueeze(-1), 0.0)
        return x if layout is None else layout.pad(x)

    def embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Return the input of the first layer for token ids of any shape at ``positions`` (from 0; None adds none)."""
        return self.embed_vectors(self.token_embedding(tokens), positions)

    def embed_vectors(self, vectors: Tensor, positions: Tensor | None) -> Tensor:
        """Return the input of the first layer for vectors [..., H] that replace token embeddings."""
        x = vectors
        if self.type_embedding is not None:
            x = x + self.type_embedding.weight[0]
        if positions is not None:
            x = x + self.position_embedding(positions + self.shape.position_offset)
        return self.dropout(x if self.norm_first else self.norm(x))


def set_activation_checkpointing(module: nn.Module, on: bool) -> None:
    """Set ``activation_checkpointing`` of every encoder in a module."""
    for part in module.modules():
        if isinstance(part, TransformerEncoder):
            part.activation_checkpointing = on


def _behind(prefix: Tensor, x: Tensor, batch: TokenBatch, layout: Layout) -> tuple[Tensor, Layout]:
    """Return embedded tokens in ``layout`` with vectors [B, N, H] before each row, and the layout of the whole."""
    rows, count, _ = prefix.shape
    if layout is None:
        return torch.cat([prefix, x], dim=1), None
    mask = F.pad(batch.mask, (count, 0), value=True)
    if isinstance(layout, Masking):
        return torch.cat([prefix, x], dim=1), Masking(mask)
    # The pack holds all prefixes first, then all tokens; attention moves each to its place in the padded batch.
    places = torch.arange(count, device=mask.device)
    front = torch.arange(rows, device=mask.device).unsqueeze(1) * mask.size(1) + places
    behind = layout.rows + (layout.rows // layout.length + 1) * count
    whole = Packing(torch.cat([front.flatten(), behind]), mask)
    x = torch.cat([prefix.flatten(0, 1), x[: len(behind)]])
    return torch.cat([x, x[:1].expand(len(whole.packed_rows) - len(x), -1)]), whole


def initialise(module: nn.Module, initializer_range: float) -> None:
    """Initialise a linear layer or an embedding as BERT does: normal weights, with biases and the pad row zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=initializer_range)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
