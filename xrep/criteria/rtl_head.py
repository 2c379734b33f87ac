"""The head of representation translation learning, which predicts a translation from token vectors of a sentence."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from xrep.criteria.reconstruction import language_embedding
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.layers import Packing


class RTLHead(nn.Module):
    """K transformer layers over token vectors of x and [MASK] vectors in place of y (DAP, equation 4).

    The layers are copies of the last K layers of an encoder (and of the normalisation after them, if it has one). The
    output matrix is the encoder's own embedding matrix, so it is not stored here: logits are ``head(...) @ embedding.T
    + head.bias``.

    Args:
        depth: number of encoder layers in use, counted from the first; the copies are the last of these.
        languages: number of rows of the table of language vectors, which are added to the input; 0: no table.

    Attributes:
        bias: [V], initialised with 0.
    """

    def __init__(self, encoder: TransformerEncoder, layers: int, depth: int, languages: int) -> None:
        super().__init__()
        shape = encoder.shape
        self.layers = copy.deepcopy(encoder.layers[depth - layers : depth])
        self.norm = copy.deepcopy(encoder.norm) if encoder.norm_first else None
        self.language_embedding = language_embedding(languages, shape.hidden_size)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary_size))

    def forward(
        self, states: Tensor, masks: Tensor, languages: Tensor, slots: Tensor, lengths: Tensor, width: int
    ) -> Tensor:
        """Return the vectors of the last layer at the [MASK]s, [M, H].

        Args:
            states: [N, H], token vectors.
            masks: [M, H], embedded [MASK]s.
            languages: int64 [N + M], languages of ``states``, then of ``masks``; used only if there are language
                vectors.
            slots: int64 [N + M], index of each of these in [B * width]: row i is filled from its beginning.
            lengths: int64 [B], number of tokens in each row.
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
