"""InfoNCE between the two sides of a batch of pairs: every other pair of the batch is a negative."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.linear import linear


class InBatchInfoNCE(NamedTuple):
    """Per pair: float32 losses [B] (nats) of finding y by x and x by y, and whether each was found (bool [B])."""

    forward: Tensor
    backward: Tensor
    forward_correct: Tensor
    backward_correct: Tensor


def inbatch_infonce(
    x: Tensor, y: Tensor, temperature: float | Tensor, *, margin: float = 0.0, ids: Tensor | None = None
) -> InBatchInfoNCE:
    """-log softmax of each pair's similarity within its row and within its column of the batch's similarities.

    Args:
        x, y: [B, D]; row i of ``y`` is the positive of row i of ``x``.
        temperature: divides all similarities; may be a learnable tensor.
        margin: subtracted from the similarity of each positive before the temperature (additive margin softmax).
        ids: int64 [B, C]: two pairs that are equal in any column are not each other's negatives.
    """
    with torch.autocast(x.device.type, enabled=False):  # similarities are float32 whatever else is rounded
        similarities = linear(x.float(), y.float())
    if margin:
        similarities = similarities - margin * torch.eye(len(x), device=x.device)
    logits = similarities / temperature
    if ids is not None:
        same = (ids.unsqueeze(0) == ids.unsqueeze(1)).any(-1)
        logits = logits.masked_fill(same & ~torch.eye(len(x), dtype=torch.bool, device=x.device), float("-inf"))
    gold = torch.arange(len(x), device=x.device)
    return InBatchInfoNCE(
        F.cross_entropy(logits, gold, reduction="none"),
        F.cross_entropy(logits.t(), gold, reduction="none"),
        logits.argmax(1) == gold,
        logits.argmax(0) == gold,
    )
