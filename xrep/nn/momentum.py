"""A momentum encoder: an exponential moving average of a model, which never receives gradient."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

M = TypeVar("M", bound=nn.Module)


class MomentumEncoder(nn.Module, Generic[M]):
    """A copy of a model that follows it: theta <- m * theta + (1 - m) * theta_base (dual momentum contrast, eq. 1).

    Args:
        momentum: m in [0, 1]; with 0 the copy has the base model's parameters as of the last update.
        dropout: whether dropout stays on in the copy while the base model trains, as in MoCo; without it the keys of
            different batches are more similar.
    """

    def __init__(self, model: M, momentum: float, dropout: bool) -> None:
        super().__init__()
        self.model: M = copy.deepcopy(model).requires_grad_(False)
        self.dropout = dropout
        self._average = get_ema_multi_avg_fn(momentum)

    def train(self, mode: bool = True) -> MomentumEncoder[M]:
        super().train(mode)
        self.model.train(mode and self.dropout)
        return self

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the parameters towards those of ``model`` (equation 1); buffers are copied."""
        averages, bases = list(self.model.parameters()), list(model.parameters())
        self._average([p.detach() for p in averages], [p.detach() for p in bases], 1)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
