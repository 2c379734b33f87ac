"""Projections from the pooled vector to the sentence vector."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xrep.interop.pretrained import DenseSpec
from xrep.nn.layers import Linear
from xrep.nn.projection_spaces import ProjectionSpaces


@dataclass(frozen=True, kw_only=True)
class ProjectionShape:
    """Sizes of a projection."""

    input_size: int
    output_size: int
    bias: bool = True
    activation: Literal["none", "tanh"] = "none"
    spaces: int | None = None
    """Number of projection spaces to average, all as wide as the input; None for a linear layer."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, dense: DenseSpec) -> ProjectionShape:
        output_size, input_size = dense.weight.shape
        return cls(
            input_size=input_size, output_size=output_size, bias=dense.bias is not None, activation=dense.activation
        )


class Projection(Linear):
    """A linear layer, followed by tanh if ``shape.activation`` is tanh."""

    def __init__(self, shape: ProjectionShape) -> None:
        super().__init__(shape.input_size, shape.output_size, bias=shape.bias)
        self.shape = shape

    def forward(self, input: Tensor) -> Tensor:
        """[B, input_size] -> [B, output_size]."""
        projected = super().forward(input.to(self.weight.dtype)).to(input.dtype)
        return torch.tanh(projected) if self.shape.activation == "tanh" else projected

    def load(self, dense: DenseSpec) -> None:
        with torch.no_grad():
            self.weight.copy_(dense.weight)
            if dense.bias is not None:
                self.bias.copy_(dense.bias)


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
