"""The linear map, with the fast float32 product of CPUs in both passes."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import fast_products, takes_fast_product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: ``torch.nn.functional.linear`` in a faster float32 product on CPUs where it is as exact.

    Args:
        x: [..., D_in].
        weight: [D_out, D_in].
        bias: [D_out].

    Returns:
        [..., D_out]; gradients flow to all three.
    """
    traced = torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    if traced or weight.dtype != torch.float32 or not takes_fast_product(x):
        return F.linear(x, weight, bias)
    return _FastLinear.apply(x, weight, bias)


def fused_linear(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool) -> Tensor | None:
    """``linear``, followed by (exact) GELU if asked, in one pass of the CPU library; None where that cannot be done.

    Without gradient alone. Float32 stays float32: the library is called directly, not through the global precision.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    faster = takes_fast_product(x) or (x.device.type == "cpu" and x.dtype == torch.bfloat16)
    if not faster or x.dtype != weight.dtype or not _has_fused_linear():
        return None
    attributes = ("gelu", [], "none") if gelu else ("none", [], "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *attributes)


@functools.cache
def _has_fused_linear() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


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
