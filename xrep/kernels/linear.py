"""A linear map that uses the fast float32 product of CPUs in both passes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import fast_products, layer_dtype, takes_fast_product
from xrep.kernels.processor import has_fused_linear

_WIDENED = 1 << 20
"""Number of weights that are converted to another type at a time (4 MB in float32). To allocate and convert the whole
matrix of a vocabulary would take longer than to multiply it."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias`` like ``F.linear``, with a faster float32 product on CPUs where it is as exact.

    On CPUs that have no bfloat16 products, bfloat16 is multiplied in float32 and the result is rounded.

    Args:
        x: [..., D_in].
        weight: [D_out, D_in].
        bias: [D_out].

    Returns:
        [..., D_out]; gradients flow to all three.
    """
    traced = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    dtype = layer_dtype(x)
    if not traced and x.dtype == weight.dtype != dtype:
        return _converted_linear(x, weight, bias, dtype)
    if traced or weight.dtype != torch.float32 or not takes_fast_product(x):
        return F.linear(x, weight, bias)
    return _FastLinear.apply(x, weight, bias)


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor | None:
    """Compute ``linear``, followed by (exact) GELU if ``gelu``, in one pass of the CPU library.

    Float32 stays float32, because the library is called directly and not through the global precision setting.

    Returns:
        The result, or None if the library cannot compute it; it never does if gradients are enabled.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    rows = x.to(layer_dtype(x))
    faster = takes_fast_product(rows) or (rows.device.type == "cpu" and rows.dtype == torch.bfloat16)
    if not faster or x.dtype != weight.dtype or not has_fused_linear(rows.dtype):
        return None
    attributes = ("gelu", [], "none") if gelu else ("none", [], "")
    result = torch.ops.mkldnn._linear_pointwise(rows, weight.to(rows.dtype), bias.to(rows.dtype), *attributes)
    return result.to(x.dtype)


def _converted_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Compute ``linear`` in ``dtype``, and return the result in the type of ``x``."""
    rows = max(1, _WIDENED // max(1, weight.size(1)))
    weights = weight.split(rows)
    biases = [None] * len(weights) if bias is None else bias.to(dtype).split(rows)
    wide = x.to(dtype)
    parts = [linear(wide, part.to(dtype), own).to(x.dtype) for part, own in zip(weights, biases, strict=True)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class _FastLinear(torch.autograd.Function):
    """Linear map that switches the precision only around its products, because attention is slower under it."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        with fast_products(x):
            return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.size(-1))
        with fast_products(x):
            of_x = (rows @ weight).view_as(x) if ctx.needs_input_grad[0] else None
            of_weight = rows.t() @ x.reshape(-1, x.size(-1)) if ctx.needs_input_grad[1] else None
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias
