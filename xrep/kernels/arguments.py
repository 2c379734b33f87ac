"""Checks of the arguments of the public kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KINDS = {
    "float": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "int64": (torch.int64,),
    "bool": (torch.bool,),
}


def check_tensors(**arguments: tuple[Tensor | None, str]) -> None:
    """Check the types, shapes and devices of tensors.

    Args:
        arguments: By the name of each argument: the tensor (None is not checked), and its kind and dimensions, such as
            ``float B D``. A dimension that is a word has the same size in all tensors, one in digits has that size.

    Raises:
        ValueError: A tensor does not fit; the message names the argument.
    """
    sizes: dict[str, int] = {}
    device = None
    for name, (tensor, form) in arguments.items():
        if tensor is None:
            continue
        kind, *dimensions = form.split()
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if tensor.dtype not in KINDS[kind]:
            raise ValueError(f"{name} must be of type {kind}, not {str(tensor.dtype).removeprefix('torch.')}")
        expected = [int(d) if d.isdigit() else sizes.get(d, d) for d in dimensions]
        fits = [a == b or isinstance(a, str) for a, b in zip(expected, tensor.shape, strict=False)]
        if tensor.dim() != len(dimensions) or not all(fits):
            known = ", ".join(f"{d} = {sizes[d]}" for d in dict.fromkeys(dimensions) if d in sizes)
            rule = f"[{', '.join(dimensions)}]" + (f" with {known}" if known else "")
            raise ValueError(f"{name} must be {rule}, not {list(tensor.shape)}")
        sizes |= dict(zip(dimensions, tensor.shape, strict=True))
        device = device or tensor.device
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device}, like the tensors before it, not on {tensor.device}")


def check_number(name: str, value: float, least: float | None = None) -> None:
    """Raise ValueError unless a number is finite and above 0, or at least ``least`` if given."""
    if not (value > 0 if least is None else value >= least) or not math.isfinite(value):
        bound = "above 0" if least is None else f"at least {least}"
        raise ValueError(f"{name} must be finite and {bound}, not {value}")


def scalar(
    name: str, value: float | Tensor, dtype: torch.dtype, device: torch.device, least: float | None = None
) -> Tensor:
    """Return a number as a 0-d tensor, after ``check_number``, or a tensor of one number, whose value is not checked.

    Checking it, or copying the number to a GPU instead of filling it in there, would wait for the GPU.

    Raises:
        ValueError: It is not one number, or out of range.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number, not {list(value.shape)}")
        return value.to(device=device, dtype=dtype).reshape(())
    check_number(name, value, least)
    return torch.full((), value, dtype=dtype, device=device)
