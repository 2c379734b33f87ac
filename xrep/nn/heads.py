"""Heads on token vectors that are used in training but not in inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xrep.nn.layers import Linear, activate
from xrep.nn.shape import Activation, EncoderShape, EncoderSizes


class MaskedLanguageHead(nn.Module):
    """The head of masked language models (BERT, RoBERTa).

    It consists of a linear layer, an activation and a normalisation, followed by a product with the embedding matrix
    and a bias per word. ``linear_cross_entropy`` computes that product: the logits are
    ``head(hidden) @ embedding.T + head.bias``.

    Args:
        shape: That of the encoder whose token vectors it reads.

    Attributes:
        bias: [V], one value per word of the vocabulary.
    """

    def __init__(self, shape: EncoderSizes) -> None:
        super().__init__()
        self.dense = Linear(shape.hidden_size, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary_size))
        # RoBERTa's head has GELU whatever its encoder has, BERT's head has the activation of its encoder.
        is_bert = isinstance(shape, EncoderShape) and shape.position_offset == 0
        self.activation: Activation = shape.activation if is_bert else "gelu"
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vectors [N, H] that are multiplied with the embedding matrix, from token vectors [N, H]."""
        return self.norm(activate(self.dense(hidden), self.activation))
