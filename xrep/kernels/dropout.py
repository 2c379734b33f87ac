"""Dropout whose random numbers take little time on CPUs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 1 << 16
"""Random numbers have 16 bits, so that on CPUs a probability is rounded to a multiple of 1 / STEPS."""


def dropout(x: Tensor, probability: float) -> Tensor:
    """Set numbers to 0 with a probability, and scale the others up so that the mean stays, as ``F.dropout``.

    On CPUs, torch draws a number for each of them by a generator that takes as long as several passes over ``x``. Here
    torch's generator seeds another one (SFC64), whose words of 64 bits decide over four numbers each.
    """
    share = round(probability * STEPS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or share in (0, STEPS):
        return F.dropout(x, probability)
    seed = torch.randint(2**62, (1,), device="cpu").numpy()
    words = np.asarray(np.random.SFC64(seed).random_raw(-(-x.numel() // 4)), dtype="<u8")
    kept = torch.from_numpy((words.view("<u2") >= share).view(np.uint8)[: x.numel()])
    return x * kept.to(x.dtype).mul_(STEPS / (STEPS - share)).view(x.shape)
