"""Linear maps in int8: weights are quantised once, for each output, and inputs for each row when they arrive.

Both quantisations are symmetric. The products of a row are added in integers, so they are exact, and a result differs
between processors only by the rounding of its float32 scale.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_PAIR = 127
"""Weights become integers, of which two neighbours, 2i and 2i + 1, have at most this sum of sizes, or 128 where both
are rounded up. Processors without VNNI add the products of such a pair in 16 bits, which overflow above 128 * 255."""
_LEVELS, _ZERO = 127, 128
"""Inputs become integers from -127 to 127, which are stored with 128 added, as unsigned numbers."""
_ROUNDING = 2.0**23
"""A float32 number from 0 to 2^22 is rounded, halves to even, by adding this, and its integer is then in the lowest
bits."""
_TINY = 1e-30
_IN_CACHE = 1 << 19
"""Number of float32 results that are computed at a time (2 MB), so that they stay in the cache until they are read."""

_OUTPUTS = 4096
"""Number of outputs that are computed at a time: the weights of a vocabulary would not stay in the cache."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise the weights of a linear map.

    Args:
        weight: float [D_out, D_in].

    Returns:
        int8 [D_out, D_in], and the scale of each row, float32 [D_out]; their product is about ``weight``.
    """
    wide = weight.detach().float()
    pairs = F.pad(wide.abs(), (0, wide.size(1) % 2)).unflatten(1, (-1, 2)).sum(2)
    scale = pairs.amax(1).clamp_min_(_TINY).div_(_PAIR)
    return wide.div(scale.unsqueeze(1)).round_().to(torch.int8), scale


def rows_in_cache(outputs: int) -> int:
    """Return how many rows of a linear map with this many outputs are best computed at a time."""
    return max(32, _IN_CACHE // outputs // 32 * 32)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows [N, D] as unsigned integers, uint8 [N, D], and the scale of each, float32 [N, 1].

    Rows with NaN or infinity have such a scale, so their results are not finite, either.
    """
    scale = x.abs().amax(1, keepdim=True).clamp_min_(_TINY).div_(_LEVELS)
    shifted = x.div(scale).add_(_ROUNDING + _ZERO)
    return shifted.view(torch.int32).to(torch.uint8), scale


class Int8Product:
    """A quantised linear map, prepared for this processor's product. It has no gradient.

    Args:
        weight, scale: As ``quantise`` returns them.
        bias: float32 [D_out]; None: zero.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self._given, self.outputs, self._bias = (weight, scale, bias), weight.size(0), bias
        some = zip(weight.split(_OUTPUTS), scale.split(_OUTPUTS), strict=True)
        self._parts = [_Part(*each) for each in some]

    def __reduce__(self) -> tuple[type[Int8Product], tuple[Tensor, Tensor, Tensor | None]]:
        return Int8Product, self._given  # torch cannot copy what the library has ordered

    @torch.no_grad()
    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        """Return ``x @ weight.T + bias`` of float32 rows [N, D_in], [N, D_out], and (exact) GELU of it if ``gelu``."""
        step = rows_in_cache(min(self.outputs, _OUTPUTS))
        if len(x) <= step and len(self._parts) == 1:
            integers, scale = quantise_rows(x)
            return self._finish(self._parts[0].multiply(integers).mul_(scale), gelu)
        found = x.new_empty(len(x), self.outputs)
        for rows, results in zip(x.split(step), found.split(step), strict=True):
            integers, scale = quantise_rows(rows)
            for part, some in zip(self._parts, results.split(_OUTPUTS, dim=1), strict=True):
                torch.mul(part.multiply(integers), scale, out=some)  # torch.addcmul takes four times as long
            self._finish(results, gelu)
        return found

    def _finish(self, results: Tensor, gelu: bool) -> Tensor:
        if self._bias is not None:
            results.add_(self._bias)
        return torch.ops.aten.gelu_(results) if gelu else results


class _Part:
    """Some outputs of a quantised linear map, whose weights stay in the cache while all rows are multiplied."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.scale = scale
        self._shift = weight.sum(1).mul(scale).mul_(-_ZERO)
        """What removes the 128 that is added to every input."""
        self._packed = torch.ops.onednn.qlinear_prepack(weight, None)
        self._no_zeros = torch.zeros(len(weight), dtype=torch.int64)

    def multiply(self, x: Tensor) -> Tensor:
        """Return the products of rows, uint8 [N, D_in], times the scales of the weights, float32 [N, D_out]."""
        return torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self._packed, self.scale, self._no_zeros, self._shift, 1.0, 0, torch.float32, "none", [], ""
        )
