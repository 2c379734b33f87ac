"""A check of the fused kernels against the reference, once in each process that uses them on a GPU."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.random import fork_rng

from xrep.kernels import paths, reference
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.paths import use_path
from xrep.kernels.queue_infonce import queue_infonce
from xrep.kernels.residual_norm import residual_norm

TOLERANCE = 0.02
"""Largest difference, as a share of the largest number, that rounding to bfloat16 or TF32 may cause."""


@functools.cache
def kernel_problem(device: torch.device) -> str | None:
    """Return how Triton's kernels fail on a device or differ from the reference there, or None; warn if they do."""
    try:
        # Random numbers that are drawn here must not be missing in the run that uses the kernels.
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False), fork_rng([]):
            compare: Any = torch.compiler.disable(_difference)
            problem = compare(device)
    except Exception as error:  # a compiler for a GPU that it does not know can fail in any way
        problem = f"Triton's kernels fail here: {str(error).strip().partition(chr(10))[0] or type(error).__name__}"
    if problem is not None:
        warnings.warn(f"{problem}; the chunked kernels are used, which are slower", stacklevel=2)
    return problem


def _difference(device: torch.device) -> str | None:
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        sizes = ((19, 16), (19, 16), (45, 16), (70, 16))
        inputs = [torch.randn(size, generator=generator).to(device, dtype) / 2 for size in sizes]
        numbers = torch.randint(9, (64, 2), generator=generator).to(device)
        found, exact = (_losses(path, inputs, numbers) for path in ("triton", "reference"))
        for name, expected in exact.items():
            for ours, theirs in zip(found[name], expected, strict=True):
                apart = float((ours.double() - theirs.double()).abs().max())
                if not apart <= TOLERANCE * max(1.0, float(theirs.abs().max())):
                    return f"Triton's kernels differ from the reference here ({name}, {dtype}, by {apart:.2g})"
    return None


def _losses(path: str, inputs: list[Tensor], numbers: Tensor) -> dict[str, list[Tensor]]:
    """Return the loss of each function, and the gradients of its sum."""
    x, y, queue, words = leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    ids, queue_ids, target = numbers[:19], numbers[19:], numbers[:19, 0]
    with use_path(path):
        losses = {
            "queue_infonce": queue_infonce(x, y, queue, 0.3, valid=41, query_ids=ids, queue_ids=queue_ids).loss,
            "linear_cross_entropy": linear_cross_entropy(x, words, target, label_smoothing=0.1).loss,
            "residual_norm": _normalised(path, x, y, words),
        }
        gradients = {name: torch.autograd.grad(loss.sum(), leaves, allow_unused=True) for name, loss in losses.items()}
    return {name: [loss.detach(), *(g for g in gradients[name] if g is not None)] for name, loss in losses.items()}


def _normalised(path: str, x: Tensor, y: Tensor, words: Tensor) -> Tensor:
    """Return numbers that depend on all results of ``residual_norm``, with dropout that keeps the same in each path."""
    change, given = y.sign().detach() + y, (words[0], words[1], 1e-5, 0.3)
    torch.default_generator.manual_seed(0)  # torch.manual_seed would change those of GPUs, too
    normed, total = residual_norm(x, change, *given, summed=True)
    if path == "reference":
        normed, total = reference.residual_norm(x, change, *given, (total - x).detach() != 0)
    return normed.square() + total * words[2]


paths.kernel_check = kernel_problem
