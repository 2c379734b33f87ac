"""Several views of one sentence vector: the projections of CMLM."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from xrep.nn.containers import ModuleList
from xrep.nn.layers import Linear


class ProjectionSpaces(nn.Module):
    """P of CMLM (section 2 and appendix C): maps a vector of width H to N vectors of width H.

    The first of them is the input itself. Each of the others has its own perceptron, FC(H, 2H, ReLU), FC(2H, 2H, ReLU),
    FC(2H, H). The perceptrons start with He's initialisation and biases of zero, so that the N vectors have about the
    same size whatever H is.
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
        """Return N, the number of vectors."""
        return 1 + len(self.perceptrons)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [B, H] to [B, N, H]."""
        views = (own(vectors.to(_linear(own, 0).weight.dtype)).to(vectors.dtype) for own in self.perceptrons)
        return torch.stack([vectors, *views], dim=1)


def _linear(perceptron: nn.Sequential, place: int) -> Linear:
    layer = perceptron[place]
    assert isinstance(layer, Linear)
    return layer
