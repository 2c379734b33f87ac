"""Heads on token vectors that are used in training but not in inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xrep.nn.layers import Linear, activate
from xrep.nn.shape import Activation


class MaskedLanguageHead(nn.Module):
    """The head of masked language models (BERT, RoBERTa).

    It consists of a linear layer, an activation and a normalisation, followed by a product with the embedding matrix
    and a bias per word. ``linear_cross_entropy`` computes that product: the logits are
    ``head(hidden) @ embedding.T + head.bias``.

    Attributes:
        bias: [V], one value per word of the vocabulary.
    """

    def __init__(
        self,
        hidden_size: int,
        vocabulary_size: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-12,
    ) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.activation: Activation = activation
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the vectors [N, H] that are multiplied with the embedding matrix, from token vectors [N, H]."""
        return self.norm(activate(self.dense(hidden), self.activation))
