"""Abilities of this machine's CPU, found by small test products once per process. Code that needs them asks here."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

SLOW_BFLOAT16 = (
    "bfloat16 products are not accelerated on this processor, so they are computed in float32; "
    "the precision float32 itself is as fast or faster, and more exact"
)
"""Text that a command shows if bfloat16 was asked for and ``multiplies_bfloat16`` returns False."""
_SIZE = 256
"""Rows and columns of the test products. Products of fewer than 16 x 16 x 16 numbers may not reach oneDNN."""
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2.0**-6}
"""Largest error of a product of 256 x 256 numbers, relative to its largest number: about 15 times what rounding
explains in float32, and a hundredth of the error of inputs rounded to bfloat16."""


@contextmanager
def float32_precision(name: str) -> Iterator[None]:
    """Context manager that applies ``torch.set_float32_matmul_precision`` to everything that runs in it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16 products and torch uses them.

    Otherwise such products are emulated: with AVX-512 alone they take 4 times as long as float32 products, and without
    it 5 to 100 times as long. No function of torch detects the first case. But the bfloat16 instructions of x86
    (AVX512-BF16, AMX) treat subnormal numbers as zero, and an emulation does not, so a product of subnormal numbers
    shows which one runs. A product also respects ``ONEDNN_MAX_CPU_ISA``.
    """
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
    except (AttributeError, RuntimeError):  # torch was built without oneDNN
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    with _plain():
        tiny = torch.full((_SIZE, _SIZE), 2.0**-130, dtype=torch.bfloat16, device="cpu")
        large = torch.full((_SIZE, _SIZE), 2.0**100, dtype=torch.bfloat16, device="cpu")
        return not bool((tiny @ large).any())


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
    with _plain():
        x = torch.randint(0, 256, (_SIZE, _SIZE), generator=_generator(0), dtype=torch.uint8, device="cpu")
        weight = torch.randint(-64, 65, (_SIZE, _SIZE), generator=_generator(1), dtype=torch.int8, device="cpu")
        x[0], weight[:2], weight[0, ::2], weight[1, ::2] = 255, 1, 127, -127
        weight[1, 1::2] = -1
        ones, zeros = torch.ones(_SIZE, device="cpu"), torch.zeros(_SIZE, dtype=torch.int64, device="cpu")
        try:
            packed = torch.ops.onednn.qlinear_prepack(weight, None)
            settings = (1.0, 0, torch.float32, "none", [], "")
            found = torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, ones, zeros, None, *settings)
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
