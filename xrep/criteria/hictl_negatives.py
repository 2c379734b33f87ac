"""The hardness of HiCTL's negatives, which increases as the loss of the last steps falls."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xrep.kernels.gather import current_group

BATCHES = 100
"""Number of recent steps averaged into p⁺ (equation 6)."""


class Hardness(nn.Module):
    """The exponent ζ · p⁺ of equation 6, where p⁺ is the mean of exp(-L_S) over the last 100 optimizer steps.

    L_S is the loss of a step over the pairs of all ranks and batches, with the negatives as hard as they were in that
    step. With fewer steps so far, p⁺ is the mean of those; before the first step it is 0, so negatives begin unchanged.
    The history is a buffer, so checkpoints contain it, and it is the same on all ranks.

    Args:
        slack: ζ.
    """

    history: Tensor
    steps: Tensor

    def __init__(self, slack: float) -> None:
        super().__init__()
        self.slack = slack
        self.register_buffer("history", torch.zeros(BATCHES))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._loss: Tensor | None = None
        self._sentences = 0

    def p_positive(self) -> Tensor:
        """Return p⁺, a scalar tensor."""
        return self.history.sum() / self.steps.clamp(1, BATCHES)

    def exponent(self) -> Tensor:
        return self.slack * self.p_positive()

    def note(self, loss: Tensor, sentences: int) -> None:
        """Record a batch of the current step: the summed loss of its queries, and how many they are."""
        loss = loss.detach().double()
        self._loss = loss if self._loss is None else self._loss + loss
        self._sentences += sentences

    @torch.no_grad()
    def update(self) -> None:
        """Add the current step to the history. Call it after each optimizer step, on every rank."""
        if self._loss is None:
            return
        both = torch.stack([self._loss, torch.full_like(self._loss, self._sentences)])
        if current_group() is not None:
            dist.all_reduce(both)
        loss, sentences = both
        place, there_are_some = self.steps.reshape(1) % BATCHES, sentences > 0
        p_positive = torch.exp(-loss / sentences.clamp(min=1)).to(self.history.dtype)
        before = self.history.index_select(0, place)
        self.history.index_copy_(0, place, torch.where(there_are_some, p_positive, before))
        self.steps += there_are_some
        self._loss, self._sentences = None, 0
