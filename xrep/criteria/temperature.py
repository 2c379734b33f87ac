"""A temperature that is learnt with the vectors it divides the similarities of."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SMALLEST, LARGEST = 0.01, 1.0


class LearnableTemperature(nn.Module):
    """tau = exp(theta), within [0.01, 1] (CLIP, Radford et al. 2021; 'parameter 1' of frozen_source, table 1).

    theta has no dimension, so it never decays. It is put back into the interval after each step: a bound on tau itself
    would leave theta without a gradient outside.

    Args:
        start: of tau.
    """

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        """tau, a tensor of no dimension."""
        return self.theta.exp()

    @torch.no_grad()
    def clamp(self) -> None:
        """After an optimizer step."""
        self.theta.clamp_(math.log(SMALLEST), math.log(LARGEST))
