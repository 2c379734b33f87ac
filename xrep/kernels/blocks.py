"""The data that the work on one block of the queue reads and updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class QueueSoftmax:
    """The running softmax of each query over its positive and the blocks of the queue seen so far.

    Attributes:
        scale: 0-d, multiplies similarities (1 / temperature); None if the queries are already multiplied by it.
        maximum: [B], the largest logit, including the positive.
        total: [B], Σ exp(logit - maximum) over the negatives.
        hardest: [B], the largest logit of a negative.
        mixture: [B, D], Σ exp(logit - maximum) · key over the negatives; None if no gradient is wanted.
        operand: type in which the weights multiply the block.
    """

    scale: Tensor | None
    maximum: Tensor
    total: Tensor
    hardest: Tensor
    mixture: Tensor | None
    operand: torch.dtype
