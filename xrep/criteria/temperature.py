"""A temperature that is trained together with the encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SMALLEST, LARGEST = 0.01, 1.0


class LearnableTemperature(nn.Module):
    """A learnable temperature: tau = exp(theta), within [0.01, 1].

    See CLIP (Radford et al. 2021) and 'parameter 1' of frozen_source (table 1). theta is a scalar, so weight decay
    never applies to it. It is moved back into the interval after each step; clamping tau itself would leave theta
    without a gradient outside the interval.

    Args:
        start: initial value of tau.
    """

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """Return tau, a scalar tensor."""
        return self.theta.exp()

    @torch.no_grad()
    def clamp(self) -> None:
        """Move tau back into its interval. Call it after each optimizer step."""
        self.theta.clamp_(math.log(SMALLEST), math.log(LARGEST))
