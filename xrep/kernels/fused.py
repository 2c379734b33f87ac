"""The choice between fused kernels in Triton, for GPUs, and plain torch, for every device."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.random import fork_rng

from xrep.kernels import softmax
from xrep.kernels.precision import takes_fast_product
from xrep.kernels.residual_norm import WIDEST, residual_norm
from xrep.kernels.softmax import QueueSoftmax

TOLERANCE = 0.02
"""Largest difference, as a share of the largest number, that rounding to bfloat16 may cause."""
_TYPES = torch.float32, torch.bfloat16, torch.float16


def uses_triton(device: torch.device) -> bool:
    """Return whether Triton's kernels compute tensors on this device."""
    return device.type == "cuda" and triton_problem(device) is None


def steps_for(device: torch.device) -> ModuleType:
    """Return the module that does the work on one block of logits on this device: ``softmax`` or ``triton_kernels``."""
    if not uses_triton(device):
        return softmax
    from xrep.kernels import triton_kernels

    return triton_kernels


def fuses_residuals(x: Tensor, change: Tensor) -> bool:
    """Return whether ``residual_norm`` computes such tensors: with Triton's kernels, outside of compiled code."""
    if torch.compiler.is_compiling() or x.dtype not in _TYPES or change.dtype not in _TYPES or x.size(-1) > WIDEST:
        return False
    return uses_triton(x.device)


def describe(device: torch.device) -> str:
    """Return one line for logs: what computes on a device and, if it is not the fastest, the reason."""
    if device.type == "cuda":
        problem = triton_problem(device)
        return "triton" if problem is None else f"plain torch ({problem})"
    return f"plain torch, {'fast' if takes_fast_product(torch.empty(0)) else 'default'} float32 products"


@functools.cache
def triton_problem(device: torch.device) -> str | None:
    """Return why Triton's kernels are not used on a GPU, or None if they are. Warn if they fail.

    They are used if they do the same on the GPU as plain torch does on the CPU in float64, once in each process.
    """
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    try:
        # Random numbers that are drawn here must not be missing in the run that uses the kernels.
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False), fork_rng([]):
            compare: Any = torch.compiler.disable(_difference)
            problem = compare(device)
    except Exception as error:  # a compiler for a GPU that it does not know can fail in any way
        problem = f"Triton's kernels fail here: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    if problem is not None:
        warnings.warn(f"{problem}; plain torch is used, which is slower", stacklevel=2)
    return problem


def _difference(device: torch.device) -> str | None:
    """Return which kernel differs from plain torch, or None."""
    from xrep.kernels import triton_kernels

    for dtype in (torch.float32, torch.bfloat16):
        found, exact = (
            _softmaxes(triton_kernels, device, dtype),
            _softmaxes(softmax, torch.device("cpu"), torch.float64),
        )
        found["residual_norm"], exact["residual_norm"] = _normalised(device, dtype)
        for name, expected in exact.items():
            for ours, theirs in zip(found[name], expected, strict=True):
                differs = float((ours.double().cpu() - theirs.double()).abs().max())
                if not differs <= TOLERANCE * max(1.0, float(theirs.abs().max())):
                    return f"Triton's kernels differ from plain torch here ({name}, {dtype}, by {differs:.2g})"
    return None


def _softmaxes(steps: ModuleType, device: torch.device, operand: torch.dtype) -> dict[str, Sequence[Tensor]]:
    """Return what functions of ``softmax`` find for the same numbers, with weights of the type ``operand``."""
    generator, wide = torch.Generator().manual_seed(0), torch.promote_types(operand, torch.float32)
    sizes = (19, 9000), (19, 70), (19,), (19, 33)  # scores of two pieces, as in training
    scores, logits, maximum, mixture = (torch.randn(n, generator=generator).to(device, wide) for n in sizes)
    ids = torch.randint(9, (9019, 2), generator=generator).to(device)
    scale, nothing = scores.new_full((), 1.5), torch.full_like(maximum, -torch.inf)
    state = QueueSoftmax(scale, maximum, torch.ones_like(maximum), nothing, mixture, operand, nothing.new_ones(19))
    weights = steps.absorb(scores, state, (ids[:19], ids[19:]))
    of_queue = [weights, state.maximum, state.total, state.hardest, state.mixture]
    of_vocabulary = steps.vocabulary_softmax(logits, ids[:19, 0], 0.1, ids[:19, 1] == 0, operand)
    return {"queue_infonce": of_queue, "linear_cross_entropy": [each.to(wide) for each in of_vocabulary]}


def _normalised(device: torch.device, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Return what ``residual_norm`` finds, with gradients, and the same by the formula in float64, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    x, change, weight, bias = (torch.randn(n, generator=generator) for n in ((19, 16), (19, 16), (16,), (16,)))
    rounded = [each.to(dtype) for each in (x, change.sign() + change, weight, bias)]
    given = x, change, weight, bias = [each.to(device).requires_grad_() for each in rounded]
    torch.default_generator.manual_seed(0)  # torch.manual_seed would change those of GPUs, too
    normed, total = residual_norm(x, change, weight, bias, 1e-5, 0.3, summed=True)
    kept = (total != x).cpu()
    exact = x, change, weight, bias = [each.double().requires_grad_() for each in rounded]
    exact_total = x + change * kept / 0.7
    exact_normed = F.layer_norm(exact_total, (16,), weight, bias, 1e-5)
    pairs = (normed, total, given), (exact_normed, exact_total, exact)
    of = [torch.autograd.grad((a.square() + b * 3).sum(), leaves) for a, b, leaves in pairs]
    return [normed.detach(), total.detach(), *of[0]], [exact_normed.detach(), exact_total.detach(), *of[1]]
