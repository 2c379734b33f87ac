"""The linear map, with the fast float32 product of CPUs in both passes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import fast_products, layer_dtype, takes_fast_product
from xrep.kernels.processor import has_fused_linear

_WIDENED = 1 << 20
"""Weights that are converted to another type at a time (4 MB in float32): the whole matrix of a vocabulary would take
longer to allocate and convert than to multiply."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: ``torch.nn.functional.linear`` in a faster float32 product on CPUs where it is as exact.

    Bfloat16 is multiplied in float32, and the result rounded, on CPUs that have no bfloat16 products.

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
    """``linear``, followed by (exact) GELU if asked, in one pass of the CPU library; None where that cannot be done.

    Without gradient alone. Float32 stays float32: the library is called directly, not through the global precision.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    rows = x.to(layer_dtype(x))
    faster = takes_fast_product(rows) or (rows.device.type == "cpu" and rows.dtype == torch.bfloat16)
    if not faster or x.dtype != weight.dtype or not has_fused_linear(rows.dtype):
        return None
    attributes = ("gelu", [], "none") if gelu else ("none", [], "")
    found = torch.ops.mkldnn._linear_pointwise(rows, weight.to(rows.dtype), bias.to(rows.dtype), *attributes)
    return found.to(x.dtype)


def _converted_linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``linear`` computed in ``dtype``, the result in the type of ``x``."""
    rows = max(1, _WIDENED // max(1, weight.size(1)))
    weights = weight.split(rows)
    biases = [None] * len(weights) if bias is None else bias.to(dtype).split(rows)
    wide = x.to(dtype)
    found = [linear(wide, part.to(dtype), own).to(x.dtype) for part, own in zip(weights, biases, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=-1)


class _FastLinear(torch.autograd.Function):
    """The precision is switched around the products alone: attention is slower under it."""

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
