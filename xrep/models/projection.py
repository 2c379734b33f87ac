"""The map from a pooled vector to the sentence vector."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from xrep.nn.layers import Linear
from xrep.nn.pretrained import DenseSpec


@dataclass(frozen=True, kw_only=True)
class ProjectionShape:
    """Sizes of a projection."""

    input_size: int
    output_size: int
    bias: bool = True
    activation: Literal["none", "tanh"] = "none"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, dense: DenseSpec) -> ProjectionShape:
        output_size, input_size = dense.weight.shape
        return cls(
            input_size=input_size, output_size=output_size, bias=dense.bias is not None, activation=dense.activation
        )


class Projection(Linear):
    """A linear layer, with tanh if ``shape`` says so."""

    def __init__(self, shape: ProjectionShape) -> None:
        super().__init__(shape.input_size, shape.output_size, bias=shape.bias)
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[B, input_size] -> [B, output_size]."""
        projected = super().forward(x.to(self.weight.dtype)).to(x.dtype)
        return torch.tanh(projected) if self.shape.activation == "tanh" else projected

    def load(self, dense: DenseSpec) -> None:
        with torch.no_grad():
            self.weight.copy_(dense.weight)
            if dense.bias is not None:
                self.bias.copy_(dense.bias)
