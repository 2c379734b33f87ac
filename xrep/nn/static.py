"""Static encoders: the vector of a token is its row of a table, whatever stands around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xrep.data.batch import TokenBatch, Vocabulary
from xrep.errors import UserError
from xrep.nn.encoder import Encoder, initialise
from xrep.nn.layers import Dropout
from xrep.nn.shape import UNLIMITED, EncoderSizes, Norm
from xrep.nn.weights import AGAIN, Weights
from xrep.text.sides import open_tokenizer

STATIC_TABLE = "embedding.weight"
"""Name of the table in the files of sentence-transformers' ``StaticEmbedding``."""


@dataclass(frozen=True, kw_only=True)
class StaticShape(EncoderSizes):
    """The sizes of a static encoder."""

    type: str = "static"
    pad_id: int | None = None
    layers: int = 0
    heads: int = 1
    feedforward_size: int = 1
    max_positions: int = UNLIMITED
    leading: int = 1
    """Number of special tokens in front of a sentence."""
    trailing: int = 1
    """Number of special tokens behind it."""


class StaticEncoder(Encoder):
    """A table of embeddings, as in model2vec and sentence-transformers' ``StaticEmbedding``. The special tokens around
    a sentence do not count: their vectors are 0, and those of the n tokens between them are scaled by T / n, so that
    the mean over all T tokens is the mean of the n rows."""

    Shape = StaticShape
    shape: StaticShape

    def __init__(self, shape: StaticShape, *, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.shape = shape  # pyright: ignore[reportIncompatibleVariableOverride]
        self.token_embedding = nn.Embedding(shape.vocabulary_size, shape.hidden_size)
        initialise(self.token_embedding, 0.02)
        self.layers: Sequence[Any] = ()
        self.dropout = Dropout(dropout)

    def forward(self, batch: TokenBatch, hidden_layer: int | None = None) -> Tensor:
        if hidden_layer not in (None, 0):
            raise ValueError(f"a static encoder has layer 0 alone, not {hidden_layer}")
        lengths, leading, trailing = batch.lengths.unsqueeze(1), self.shape.leading, self.shape.trailing
        places = torch.arange(batch.tokens.size(1), device=batch.tokens.device)
        counted = (places >= leading) & (places < lengths - trailing)
        scale = lengths / (lengths - leading - trailing).clamp(min=1) * counted
        rows = self.token_embedding(batch.tokens)
        return self.dropout(rows * scale.to(rows.dtype).unsqueeze(-1))

    @classmethod
    def new_shape(cls, *, norm: Norm, **sizes: Any) -> StaticShape:
        return StaticShape(vocabulary_size=sizes["vocabulary_size"], hidden_size=sizes["hidden_size"])

    @classmethod
    def read_shape(cls, directory: Path) -> StaticShape:
        rows, width = _table(directory).shape
        return StaticShape(vocabulary_size=rows, hidden_size=width, **around(Vocabulary.of(open_tokenizer(directory))))

    @classmethod
    def read_state(cls, directory: Path, shape: EncoderSizes) -> tuple[dict[str, Tensor], list[str]]:
        return {"token_embedding.weight": _table(directory)}, []


def around(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the numbers of special tokens around a sentence, as ``StaticShape`` has them."""
    return {"leading": vocabulary.leading_count, "trailing": vocabulary.special_count - vocabulary.leading_count}


def _table(directory: Path) -> Tensor:
    weights = Weights(directory)
    if (table := weights.get(STATIC_TABLE)) is None or table.ndim != 2:
        cure = "save it by sentence-transformers' StaticEmbedding" if weights.get("embeddings") is not None else AGAIN
        raise UserError(f"no table {STATIC_TABLE} of a static encoder", path=weights.path, cure=cure)
    return table
