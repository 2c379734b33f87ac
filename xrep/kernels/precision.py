"""The precision of matrix products: one policy that the encoder and the kernels share, and what the processor can do.

Products read the type of their operands and add up in float32 at least. On some CPUs torch has a faster float32 product
than its default. It is used if a test finds it as exact, and only around products, because attention is slower with
it. CPUs that only emulate bfloat16 products compute in float32 where bfloat16 was asked for (``multiplied_type``).
"""

from __future__ import annotations

import functools
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SLOW_BFLOAT16 = (
    "bfloat16 products are not accelerated on this processor, so everything is computed in float32, "
    "which is faster here and more exact"
)
"""Text that a command shows if bfloat16 was asked for and ``multiplies_bfloat16`` returns False."""
_LIBRARY_TYPES = torch.float32, torch.bfloat16
_SIZE = 256
"""Rows and columns of the test products. Products of fewer than 16 x 16 x 16 numbers may not reach oneDNN."""
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
"""Largest error of a product of 256 x 256 numbers, relative to its largest number: about 15 times what rounding
explains in float32, and a hundredth of the error of inputs rounded to bfloat16."""


# -- the policy ---------------------------------------------------------------------------------------------------


@contextmanager
def float32_precision(name: str) -> Iterator[None]:
    """Context manager that applies ``torch.set_float32_matmul_precision`` to everything that runs in it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def allows_library(tensor: Tensor) -> bool:
    """Return whether oneDNN may be called directly for products of tensors like this one, in its own type."""
    return tensor.device.type == "cpu" and tensor.dtype in _LIBRARY_TYPES


def takes_fast_product(tensor: Tensor) -> bool:
    """Return whether products of tensors like this one use the fast float32 product."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and fast_float32_is_exact()


def fast_products(tensor: Tensor):
    """Return a context manager that makes products of tensors like ``tensor`` fast if they are float32 CPU tensors."""
    return float32_precision("medium") if takes_fast_product(tensor) else nullcontext()


def allow_tf32(device: torch.device):
    """Return a context manager in which float32 products on a GPU read TF32: float32 with 10 bits of fraction."""
    return float32_precision("high") if device.type == "cuda" else nullcontext()


def multiplied_type(asked: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the type in which a model computes on a device if ``asked`` was asked for.

    It is float32 instead of bfloat16 on CPUs that only emulate bfloat16 products, where float32 is many times faster,
    and more exact.
    """
    emulated = asked == torch.bfloat16 and device.type == "cpu" and not multiplies_bfloat16()
    return torch.float32 if emulated else asked


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
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)


# -- abilities of this machine's CPU; those that test products find are found once per process --------------------


@functools.cache
def fast_float32_is_exact() -> bool:
    """Return whether ``set_float32_matmul_precision('medium')`` keeps float32 accuracy on this CPU.

    This setting sends float32 products through oneDNN, which is about twice as fast as the default on some processors
    and about as fast on others. If the CPU has matrix units for bfloat16 (AMX), it also rounds the inputs, so the
    errors of the products of a linear layer are measured, in both passes.
    """
    with _plain():
        x, weight = _random(0, torch.float32), _random(1, torch.float32)
        for a, b in ((x, weight.t()), (x, weight), (x.t(), weight)):  # the output, gradients of inputs and of weights
            exact = a.double() @ b.double()
            with float32_precision("medium"):
                found = a @ b
            if not _is_near(found, exact):
                return False
    return True


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products and torch uses them.

    Otherwise such products are emulated: with AVX-512 alone they take 4 times as long as float32 products, and without
    it 5 to 100 times as long. oneDNN, whose answer respects ``ONEDNN_MAX_CPU_ISA``, counts the first case as support.
    """
    try:
        supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except (AttributeError, RuntimeError):  # torch was built without oneDNN
        return False
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return supported and (not is_x86 or torch.cpu._is_avx512_bf16_supported())


@functools.cache
def has_fused_linear(dtype: torch.dtype) -> bool:
    """Return whether oneDNN correctly computes a linear layer with GELU in one pass, in float32 or bfloat16."""
    if not torch.backends.mkldnn.is_available():
        return False
    with _plain():
        x, weight, bias = _random(0, dtype), _random(1, dtype), _random(2, dtype)[0]
        exact = F.gelu(F.linear(x.double(), weight.double(), bias.double()))
        try:
            found = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], "none")
        except (AttributeError, RuntimeError):  # torch lacks this operation, or the processor lacks it in this type
            return False
        return _is_near(found, exact)


@functools.cache
def multiplies_int8() -> bool:
    """Return whether torch has oneDNN's int8 product here, and it is exact for the weights of ``xrep.kernels.int8``.

    They are the largest for which a processor without VNNI is exact: two neighbours have at most 128 as their sum.
    """

    def multiply(x: Tensor, weight: Tensor, ones: Tensor, zeros: Tensor) -> Tensor:
        packed, settings = torch.ops.onednn.qlinear_prepack(weight, None), (1.0, 0, torch.float32, "none", [], "")
        return torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, ones, zeros, None, *settings)

    return _is_exact(multiply)


@functools.cache
def multiplies_few_int8() -> bool:
    """Return whether torch has the int8 product of its quantised modules here, and it is exact for the same weights."""

    def multiply(x: Tensor, weight: Tensor, ones: Tensor, zeros: Tensor) -> Tensor:
        packed = packed_int8(weight, ones)
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x.float(), 1.0, 0, packed)

    return torch.backends.quantized.engine in ("x86", "fbgemm") and _is_exact(multiply)


def packed_int8(weight: Tensor, scale: Tensor) -> Any:
    """Return weights int8 [D_out, D_in] and the scales of their rows as torch's quantised modules prepare them."""
    zeros = torch.zeros(len(weight), dtype=torch.int64, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the modules are deprecated; the product is what we need
        whole = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
        return torch.ops.quantized.linear_prepack(whole, None)


def _is_exact(multiply: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Return whether a product of uint8 and int8 is there and exact, given the numbers, and scales and zero points."""
    with _plain():
        x = torch.randint(0, 256, (_SIZE, _SIZE), generator=_generator(0), dtype=torch.uint8, device="cpu")
        weight = torch.randint(-64, 65, (_SIZE, _SIZE), generator=_generator(1), dtype=torch.int8, device="cpu")
        x[0], weight[:2], weight[0, ::2], weight[1, ::2] = 255, 1, 127, -127
        weight[1, 1::2] = -1
        ones, zeros = torch.ones(_SIZE, device="cpu"), torch.zeros(_SIZE, dtype=torch.int64, device="cpu")
        try:
            found = multiply(x, weight, ones, zeros)
        except (AttributeError, RuntimeError):  # torch lacks this operation, or the processor does
            return False
        return torch.equal(found.double(), x.double() @ weight.double().t())


@contextmanager
def _plain() -> Iterator[None]:
    """Context manager that turns off gradients and autocast, because the first caller may have turned them on."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(seed)


def _random(seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(_SIZE, _SIZE, generator=_generator(seed), dtype=torch.float32, device="cpu").to(dtype)


def _is_near(found: Tensor, exact: Tensor) -> bool:
    return bool((found - exact).abs().max() < _TOLERANCES[found.dtype] * exact.abs().max())
