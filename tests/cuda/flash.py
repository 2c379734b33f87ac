"""torch's flash kernel for packed sentences, written out, with the checks that CUDA makes of its arguments."""

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, starts: list[int]) -> Tensor:
    """Return the attention of packed tokens [N, heads, d] to those of their own sentence, in float32."""
    parts = []
    for start, stop in zip(starts, starts[1:], strict=False):
        one, keys, values = (side[start:stop].float().transpose(0, 1) for side in (q, k, v))
        weights = (one @ keys.transpose(1, 2) * q.size(2) ** -0.5).softmax(-1)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


def flash(q, k, v, starts, key_starts, longest, longest_key, dropout, causal, debug, **options) -> tuple[Tensor, ...]:
    """aten::_flash_attention_forward without dropout, with the checks that CUDA makes."""
    assert q.dtype == k.dtype == v.dtype and q.dtype in (torch.bfloat16, torch.float16)
    assert all(side.dim() == 3 and side.stride(-1) == 1 and side.shape == q.shape for side in (q, k, v))
    assert starts.dtype == key_starts.dtype == torch.int32 and torch.equal(starts, key_starts)
    assert starts[0] == 0 and starts[-1] == len(q) and longest == longest_key >= starts.diff().max()
    assert not dropout and not causal and not debug and options.get("scale") is None
    nothing = torch.empty(0)
    return attend(q, k, v, starts.tolist()).to(q.dtype), torch.empty(q.size(1), len(q)), nothing, nothing, nothing


def flash_backward(gradient, q, k, v, out, sums, starts, *rest, **options) -> tuple[Tensor, ...]:
    parts, bounds, scale = [], starts.tolist(), q.size(2) ** -0.5
    for start, stop in zip(bounds, bounds[1:], strict=False):
        one, keys, values, of_out = (side[start:stop].float().transpose(0, 1) for side in (q, k, v, gradient))
        weights = (one @ keys.transpose(1, 2) * scale).softmax(-1)
        of_weights = of_out @ values.transpose(1, 2)
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        found = of_scores @ keys, of_scores.transpose(1, 2) @ one, weights.transpose(1, 2) @ of_out
        parts.append([side.transpose(0, 1).to(q.dtype) for side in found])
    return tuple(torch.cat(sides) for sides in zip(*parts, strict=True))
