"""The head of representation translation learning: from the token vectors of a sentence to its translation."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from xrep.nn.encoder import TransformerEncoder
from xrep.nn.layers import Packing

LANGUAGE_STD = 0.02
"""Standard deviation of fresh language embeddings: that of the encoder's own embeddings."""


class RTLHead(nn.Module):
    """K transformer layers over token vectors of x and [MASK] vectors in place of y (DAP, equation 4).

    The layers are copies of the last K of an encoder (and of the normalisation above them, where it has one). The
    vocabulary's matrix is the encoder's own embedding matrix, so it is not here: logits are ``head(...) @ embedding.T +
    head.bias``.

    Args:
        depth: layers of the encoder that count, from the first; the copies are the last of these.
        languages: rows of a table of language vectors, which are added to the input; 0: no table.

    Attributes:
        bias: [V], from 0.
    """

    def __init__(self, encoder: TransformerEncoder, layers: int, depth: int, languages: int) -> None:
        super().__init__()
        shape = encoder.shape
        self.layers = copy.deepcopy(encoder.layers[depth - layers : depth])
        self.norm = copy.deepcopy(encoder.norm) if encoder.norm_first else None
        self.language_embedding = nn.Embedding(languages, shape.hidden_size) if languages else None
        if self.language_embedding is not None:
            nn.init.normal_(self.language_embedding.weight, std=LANGUAGE_STD)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary_size))

    def forward(
        self, states: Tensor, masks: Tensor, languages: Tensor, slots: Tensor, lengths: Tensor, width: int
    ) -> Tensor:
        """The vectors of the last layer at the [MASK]s, [M, H].

        Args:
            states: [N, H], token vectors.
            masks: [M, H].
            languages: int64 [N + M], of ``states``, then of ``masks``; read if there are language vectors.
            slots: int64 [N + M], where each of these stands in [B * width]: row i is filled from its beginning.
            lengths: int64 [B].
        """
        x = torch.cat([states, masks])
        if self.language_embedding is not None:
            x = x + self.language_embedding(languages)
        layout = Packing(slots, torch.arange(width, device=lengths.device) < lengths.unsqueeze(1))
        x = torch.cat([x, x[:1].expand(len(layout.packed_rows) - len(x), -1)])
        for layer in self.layers:
            x = layer(x, layout)
        x = x[len(states) : len(states) + len(masks)]
        return x if self.norm is None else self.norm(x)
