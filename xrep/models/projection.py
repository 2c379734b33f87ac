"""Projections from the pooled vector to the sentence vector, or to several views of it as in CMLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xrep.interop.sentence_modules import DenseActivation, DenseSpec
from xrep.nn.layers import Linear


@dataclass(frozen=True, kw_only=True)
class ProjectionShape:
    """Sizes of a projection."""

    input_size: int
    output_size: int
    bias: bool = True
    activation: DenseActivation = "none"
    spaces: int | None = None
    """Number of projection spaces to average, all as wide as the input; None for a linear layer."""

    @classmethod
    def of(cls, dense: DenseSpec, input_size: int) -> ProjectionShape:
        size, activation = dense.output_size, dense.activation
        return cls(input_size=input_size, output_size=size, bias=dense.bias, activation=activation)


class Projection(Linear):
    """A linear layer, followed by tanh if ``shape.activation`` is tanh."""

    def __init__(self, shape: ProjectionShape) -> None:
        super().__init__(shape.input_size, shape.output_size, bias=shape.bias)
        self.shape = shape

    def forward(self, input: Tensor) -> Tensor:
        """[B, input_size] -> [B, output_size]."""
        projected = super().forward(input.to(self.weight.dtype)).to(input.dtype)
        return torch.tanh(projected) if self.shape.activation == "tanh" else projected


class ProjectionSpaces(nn.Module):
    """P of CMLM (section 2 and appendix C): maps a vector of width H to N vectors of width H.

    The first of them is the input itself. Each of the others has its own perceptron, FC(H, 2H, ReLU), FC(2H, 2H, ReLU),
    FC(2H, H). The perceptrons start with He's initialisation and biases of zero, so that the N vectors have about the
    same size whatever H is.
    """

    def __init__(self, hidden_size: int, spaces: int) -> None:
        super().__init__()
        self.perceptrons = nn.ModuleList(_perceptron(hidden_size, 2 * hidden_size) for _ in range(spaces - 1))
        for name, parameter in self.perceptrons.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.kaiming_normal_(parameter, nonlinearity="linear" if name.endswith("4.weight") else "relu")

    def __len__(self) -> int:
        """Return N, the number of vectors."""
        return 1 + len(self.perceptrons)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map [B, H] to [B, N, H]."""
        views = (own(vectors.to(next(own.parameters()).dtype)).to(vectors.dtype) for own in self.perceptrons)
        return torch.stack([vectors, *views], dim=1)


def _perceptron(outer: int, inner: int) -> nn.Sequential:
    first, second, third = Linear(outer, inner), Linear(inner, inner), Linear(inner, outer)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


class MeanOfSpaces(nn.Module):
    """The mean of the pooled vector and its projections (``proj`` in table 7 of CMLM).

    Attributes:
        spaces: Module that returns the vectors to average, [B, H] -> [B, N, H].
    """

    def __init__(self, shape: ProjectionShape) -> None:
        super().__init__()
        assert shape.spaces is not None
        self.shape = shape
        self.spaces = ProjectionSpaces(shape.input_size, shape.spaces)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return self.spaces(pooled).mean(dim=1)


def make_projection(shape: ProjectionShape) -> Projection | MeanOfSpaces:
    return Projection(shape) if shape.spaces is None else MeanOfSpaces(shape)
