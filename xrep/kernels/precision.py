"""The precision of matrix products: one policy that the encoder and the kernels share.

Products read the type of their operands and add up in float32 at least. On some CPUs torch has a faster float32 product
than its default. It is used if a test finds it as exact, and only around products, because attention is slower with
it. On CPUs without bfloat16 products, layers in bfloat16 compute in float32 and round the result.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

from xrep.kernels.processor import fast_float32_is_exact, float32_precision, multiplies_bfloat16

_LIBRARY_TYPES = torch.float32, torch.bfloat16
_fast_allowed = ContextVar("whether faster products than torch's default ones may be used", default=True)


@contextmanager
def default_float32_products() -> Iterator[None]:
    """Context manager in which float32 products on CPUs are torch's default ones, for comparisons or to debug."""
    before = _fast_allowed.set(False)
    try:
        yield
    finally:
        _fast_allowed.reset(before)


def allows_library(tensor: Tensor) -> bool:
    """Return whether oneDNN may be called directly for products of tensors like this one, in its own type."""
    allowed = _fast_allowed.get() and tensor.device.type == "cpu"
    return allowed and layer_dtype(tensor) == tensor.dtype in _LIBRARY_TYPES


def takes_fast_product(tensor: Tensor) -> bool:
    """Return whether products of tensors like this one use the fast float32 product."""
    allowed = _fast_allowed.get() and tensor.device.type == "cpu"
    return allowed and tensor.dtype == torch.float32 and fast_float32_is_exact()


def fast_products(tensor: Tensor):
    """Return a context manager that makes products of tensors like ``tensor`` fast if they are float32 CPU tensors."""
    return float32_precision("medium") if takes_fast_product(tensor) else nullcontext()


def float32_products(device: torch.device):
    """Return a context manager in which float32 products on a GPU read TF32: float32 with 10 bits of fraction."""
    return float32_precision("high") if device.type == "cuda" else nullcontext()


def layer_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which a layer multiplies such a tensor.

    It is the tensor's own type, except that bfloat16 is multiplied in float32 if the CPU only emulates bfloat16.
    """
    if tensor.device.type != "cpu" or tensor.dtype != torch.bfloat16 or torch.compiler.is_compiling():
        return tensor.dtype
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def accumulation_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the type in which sums over such tensors are kept: float64 if any of them is float64, else float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def operand_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which a product reads such a tensor.

    CUDA multiplies half-precision operands into a float32 result, and under autocast it reads float32 in autocast's
    type. CPUs would round the result as well, so there the operands are converted first.
    """
    if not tensor.is_cuda:
        return accumulation_dtype(tensor)
    halved = tensor.dtype == torch.float32 and torch.is_autocast_enabled("cuda")
    return torch.get_autocast_dtype("cuda") if halved else tensor.dtype


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``a @ b`` [R, C] of operands of one type (``operand_dtype``), in its accumulation type.

    The result is written into ``out`` if given.
    """
    if a.dtype == accumulation_dtype(a):
        with fast_products(a):
            return torch.mm(a, b, out=out)
    return torch.mm(a, b, out_dtype=torch.float32, out=out)


def multiply_add(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Compute ``total += a @ b`` in place; ``total`` must have the accumulation type."""
    if a.dtype == accumulation_dtype(a):
        with fast_products(a):
            total.addmm_(a, b)
    elif _adds_products(a.device, a.dtype):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.add_(torch.mm(a, b, out_dtype=torch.float32))


@functools.cache
def _adds_products(device: torch.device, half: torch.dtype) -> bool:
    """Return whether torch adds products of half-precision operands to float32 in one kernel, which 2.8 does not."""
    total, operand = torch.ones(16, 16, device=device), torch.ones(16, 16, device=device, dtype=half)
    try:
        torch.addmm(total, operand, operand, out_dtype=torch.float32, out=total)
    except RuntimeError:
        return False
    return bool((total == 17).all())
