"""Linear maps in int8: weights are quantised once, for each output, and inputs for each row when they arrive.

Weights are quantised symmetrically, inputs from their smallest to their largest number. The products of a row are added
in integers, so they are exact, and a result differs between processors only by the rounding of its float32 scale.
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import multiplies_few_int8, packed_int8

_PAIR = 127
"""Weights become integers, of which two neighbours, 2i and 2i + 1, have at most this sum of sizes, or 128 where both
are rounded up. Processors without VNNI add the products of such a pair in 16 bits, which overflow above 128 * 255."""
_SCALE_AND_SMALLEST = 8
"""torch stores the scale and the smallest number of a row in its last 8 bytes. We multiply them by weights of zero,
which is cheaper than removing them."""
_TINY = 1e-30
_IN_CACHE = 1 << 19
"""Number of float32 results that are computed at a time (2 MB), so that they stay in the cache until they are read."""

_FEW = 64
"""Number of rows up to which calls cost more than products, so that as few operations as possible are used."""
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


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise float32 rows [N, D], whose smallest number becomes 0 and whose largest 255, with one operation of torch.

    Numbers of rows whose range is below 1e-5 lose up to 0.1% beside their rounding, because the operation adds 1e-8 to
    the range. NaN is ignored, unless the whole row is NaN.

    Returns:
        uint8 [N, D + 8], whose last bytes are not integers of the row; and of each row the scale and the smallest
        number, float32 [N, 1] each, which are not finite if there is infinity in the row, or nothing but NaN.
    """
    integers = torch.ops.quantized.embedding_bag_byte_prepack(x)
    tail = integers[:, -_SCALE_AND_SMALLEST:]
    tail = tail if x.size(1) % 4 == 0 else tail.contiguous()  # float32 numbers lie at multiples of four bytes
    scale, smallest = tail.view(torch.float32).split(1, dim=1)
    return integers, scale, smallest


class Int8Product:
    """A quantised linear map, prepared for this processor's product. It has no gradient.

    Args:
        weight, scale: As ``quantise`` returns them.
        bias: float32 [D_out]. If there is NaN in it or in ``scale``, all results are NaN, which the quantisation of
            inputs would otherwise hide.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor) -> None:
        self._given, self.outputs = (weight, scale, bias), weight.size(0)
        checked = bias + 0 * (bias.sum() + scale.sum())
        some = zip(*(each.split(_OUTPUTS) for each in (weight, scale, checked)), strict=True)
        self._parts = [_Part(*each) for each in some]
        self._checked = checked

    def __reduce__(self) -> tuple[type[Int8Product], tuple[Tensor, Tensor, Tensor]]:
        return Int8Product, self._given  # torch cannot copy what the library has ordered

    @cached_property
    def _few(self) -> _FewRows | None:
        """The product for few rows, which has a copy of the weights, and so is made when it is first needed."""
        weight, scale, _ = self._given
        return _FewRows(weight, scale, self._checked) if multiplies_few_int8() else None

    @torch.no_grad()
    def __call__(self, x: Tensor, gelu: bool = False) -> Tensor:
        """Return ``x @ weight.T + bias`` of float32 rows [N, D_in], [N, D_out], and (exact) GELU of it if ``gelu``."""
        if len(x) <= _FEW and self._few:
            found = self._few(x)
            return torch.ops.aten.gelu_(found) if gelu else found
        found = x.new_empty(len(x), self.outputs)
        step = rows_in_cache(min(self.outputs, _OUTPUTS))
        for rows, results in zip(x.split(step), found.split(step), strict=True):
            integers, scale, smallest = quantise_rows(rows)
            for part, some in zip(self._parts, results.split(_OUTPUTS, dim=1), strict=True):
                torch.addcmul(part.bias, part.multiply(integers), scale, out=some)
                some.addcmul_(part.sums, smallest)
            if gelu:
                torch.ops.aten.gelu_(results)
        return found


class _Part:
    """Some outputs of a quantised linear map, whose weights stay in the cache while all rows are multiplied."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor) -> None:
        self.bias, self.sums = bias, weight.sum(1).mul(scale)
        self._packed = torch.ops.onednn.qlinear_prepack(F.pad(weight, (0, _SCALE_AND_SMALLEST)), None)
        self._scale, self._no_zeros = scale, torch.zeros(len(weight), dtype=torch.int64)

    def multiply(self, x: Tensor) -> Tensor:
        """Return the products of rows of ``quantise_rows``, times the scales of the weights, float32 [N, D_out]."""
        return torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, self._packed, self._scale, self._no_zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )


class _FewRows:
    """A quantised linear map for few rows, by the product of torch's quantised modules, which is FBGEMM on processors
    without VNNI. The results are those of ``_Part``, bit by bit."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor) -> None:
        self._bias, self._sums = bias, weight.sum(1).mul(scale)
        self._packed = packed_int8(F.pad(weight, (0, _SCALE_AND_SMALLEST)), scale)

    def __call__(self, x: Tensor) -> Tensor:
        integers, scale, smallest = quantise_rows(x)
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        products = multiply(integers.float(), 1.0, 0, self._packed)
        return torch.addcmul(self._bias, products, scale).addcmul_(self._sums, smallest)
