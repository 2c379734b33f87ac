"""Pooling of token vectors into one sentence vector; padding is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "max", "cls", "last"]


def pool(tokens: Tensor, mask: Tensor, kind: Pooling) -> Tensor:
    """Pool [B, T, H] to [B, H] over the positions where ``mask`` (bool [B, T]) is True; ``cls`` takes the first token,
    ``last`` the last one, which is the only one that has seen all others in a decoder. Padding is at the end.

    Half-precision tokens give a float32 vector, because a half-precision mean would be rounded once more.
    """
    import torch  # here, because options name kinds of pooling without torch

    if tokens.dtype in (torch.float16, torch.bfloat16):
        tokens = tokens.float()
    if kind == "cls":
        return tokens[:, 0]
    if kind == "last":
        last = (mask.sum(1) - 1).clamp(min=0)
        return tokens.gather(1, last[:, None, None].expand(-1, 1, tokens.size(2))).squeeze(1)
    present = mask.unsqueeze(-1)
    if kind == "max":
        return tokens.masked_fill(~present, float("-inf")).amax(1)
    # masked_fill takes twice as long on CPUs.
    return torch.where(present, tokens, 0.0).sum(1) / mask.sum(1, keepdim=True, dtype=tokens.dtype).clamp(min=1)
