"""Several views of one sentence vector: CMLM's projections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xrep.nn.containers import ModuleList
from xrep.nn.layers import Linear


class ProjectionSpaces(nn.Module):
    """P of CMLM (section 2 and appendix C): a vector of width H as N of that width, the first of which is itself.

    Each other one has a perceptron of its own, FC(H, 2H, ReLU), FC(2H, 2H, ReLU), FC(2H, H). They begin with He's
    initialisation and no biases, so that the N vectors are of about the same size whatever H is.
    """

    def __init__(self, hidden_size: int, spaces: int) -> None:
        super().__init__()
        self.perceptrons = ModuleList(
            nn.Sequential(
                Linear(hidden_size, 2 * hidden_size),
                nn.ReLU(),
                Linear(2 * hidden_size, 2 * hidden_size),
                nn.ReLU(),
                Linear(2 * hidden_size, hidden_size),
            )
            for _ in range(spaces - 1)
        )
        for own in self.perceptrons:
            for place in (0, 2, 4):
                layer = _linear(own, place)
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear" if place == 4 else "relu")
                nn.init.zeros_(layer.bias)

    def __len__(self) -> int:
        """N."""
        return 1 + len(self.perceptrons)

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, H] -> [B, N, H]."""
        views = (own(vectors.to(_linear(own, 0).weight.dtype)).to(vectors.dtype) for own in self.perceptrons)
        return torch.stack([vectors, *views], dim=1)


def _linear(perceptron: nn.Sequential, place: int) -> Linear:
    layer = perceptron[place]
    assert isinstance(layer, Linear)
    return layer
