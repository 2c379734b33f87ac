"""Negatives that are too similar to a query, because they may be translations of it, do not count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xrep.kernels.arguments import check_number, check_tensors
from xrep.kernels.linear import linear

ROUNDINGS = 64
"""Similarities that differ by fewer units in the last place may be equal, since they come from different products."""


@dataclass(frozen=True)
class Judge:
    """A negative does not count if its similarity to the query exceeds s⁺ + M or, if ``relative``, s⁺ + M |s⁺|.

    s⁺ is that of the query's positive, without any margin of the loss. Similarities are those that the loss compares
    (``hard_infonce``: cosines of what is not made harder yet), or products of a guide's vectors. M = 0.1 is the rule of
    Qwen3-Embedding (Zhang et al. 2025), M = -m the margin m of sentence-transformers' GIST losses (Solatorio 2024).

    Attributes:
        margin: M, of any sign.
        guide: float [B, S, G], a guide's vectors, of length 1, of each query, its positive (if S is 1, that is the same
            sentence) and, in triplets, its negative. NaN: the guide does not know the sentence, which always counts.
    """

    margin: float
    relative: bool = False
    guide: Tensor | None = None

    def __post_init__(self) -> None:
        check_number("the margin of a judge", self.margin, -math.inf)
        check_tensors(guide=(self.guide, "float B S G"))


def bars(judge: Judge | None, query: Tensor, positive: Tensor, tau: float | Tensor = 1.0) -> tuple[Any, Any]:
    """Return the largest similarity of a negative that counts, followed by the guide's vector if there is a guide, of
    queries and of positives, [B, 1] or [B, 1 + G]; None without a judge. The queries are divided by ``tau``."""
    if judge is None:
        return None, None
    with torch.no_grad():
        guides = [] if judge.guide is None else judge.guide.unbind(1)[:2]
        one, other = (guides[0], guides[-1]) if guides else (query, positive)
        similarity = (one * other).sum(1, keepdim=True)
        unit = similarity.abs() if judge.relative else 1.0 if guides else 1 / tau
        rounding = ROUNDINGS * torch.finfo(similarity.dtype).eps  # without it, chance would decide about repetitions
        limit = similarity + (judge.margin + rounding) * unit
        return (torch.cat([limit, one], 1), torch.cat([limit, other], 1)) if guides else (limit, limit)


def too_near(similarities: Tensor, own: Tensor | None, other: Tensor | None, same: Tensor | None = None) -> Any:
    """Return which negatives do not count, bool [R, C], given ``bars`` of both sides: those in ``same``, and those that
    are judged to be above the bar. Without bars it is ``same``."""
    if own is None or other is None:
        return same
    judged = similarities.detach() if own.size(1) == 1 else linear(own[:, 1:], other[:, 1:])
    near = judged > own[:, :1]
    return near if same is None else near.logical_or_(same)
