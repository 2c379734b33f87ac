"""A linear map that uses the fast float32 product of CPUs in both passes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.kernels.precision import allows_library, fast_products, has_fused_linear, takes_fast_product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x @ weight.T + bias`` like ``F.linear``, with a faster float32 product on CPUs where it is as exact.

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


def linear_and_input(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``linear``, and return ``x``, too, for the residual connection that also reads it.

    The product that computes the gradient of the linear map then adds that of the residual connection, which autograd
    would do in a kernel of its own. This is for GPUs; it uses torch's default product.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type) or not torch.is_grad_enabled():
        return linear(x, weight, bias), x
    return _LinearAndInput.apply(x, weight, bias)


class PackedWeight:
    """A copy of a weight [D_out, D_in] in the order in which the CPU library multiplies it.

    The library otherwise puts the weight into this order at every product, which with few rows takes as long as the
    product itself. The copy is not used any more once the weight has changed.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._version = weight, weight._version
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[Tensor]]:
        return PackedWeight, (self._weight,)  # torch cannot copy what the library has ordered

    @staticmethod
    def of(weight: Tensor) -> PackedWeight | None:
        """Return the packed weight, or None if the library is not used for its type on its device."""
        return PackedWeight(weight) if allows_library(weight) and has_fused_linear(weight.dtype) else None

    def tensor(self, weight: Tensor) -> Tensor | None:
        """Return the packed copy if it is one of ``weight`` as it is now."""
        same = weight.data_ptr() == self._weight.data_ptr() and weight.shape == self._weight.shape
        return self._packed if same and weight._version == self._version else None


def fused_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, gelu: bool = False, packed: PackedWeight | None = None
) -> Tensor | None:
    """Compute ``linear``, followed by (exact) GELU if ``gelu``, in one pass of the CPU library.

    Float32 stays float32, because the library is called directly and not through the global precision setting.

    Args:
        packed: of ``weight``; the library then computes float32 on all processors.

    Returns:
        The result, or None if the library cannot compute it; it never does if gradients are enabled.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    attributes = ("gelu", [], "none") if gelu else ("none", [], "")
    ordered = None if packed is None or not allows_library(x) else packed.tensor(weight)
    if ordered is not None and x.dtype == weight.dtype:
        return torch.ops.mkldnn._linear_pointwise(x, ordered, bias, *attributes)
    faster = takes_fast_product(x) or (x.device.type == "cpu" and x.dtype == torch.bfloat16)
    if not faster or x.dtype != weight.dtype or bias is None or not has_fused_linear(x.dtype):
        return None
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *attributes)


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
        rows = gradient.reshape(x.shape[:-1].numel(), gradient.size(-1))  # neither size is known if both may be 0
        with fast_products(x):
            of_x = (rows @ weight).view_as(x) if ctx.needs_input_grad[0] else None
            of_weight = rows.t() @ x.reshape(-1, x.size(-1)) if ctx.needs_input_grad[1] else None
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias


class _LinearAndInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        return F.linear(x, weight, bias), x.view_as(x)

    @staticmethod
    def backward(ctx, *gradients):
        of_result, of_x = gradients
        x, weight = ctx.saved_tensors
        if of_result is None:
            return of_x, None, None
        rows, wanted = of_result.reshape(-1, of_result.size(-1)), ctx.needs_input_grad
        if wanted[0]:
            added = None if of_x is None else of_x.reshape(-1, x.size(-1))
            of_x = (rows @ weight if added is None else torch.addmm(added, rows, weight)).view_as(x)
        of_weight = rows.t() @ x.reshape(-1, x.size(-1)) if wanted[1] else None
        return of_x, of_weight, rows.sum(0) if wanted[2] else None
