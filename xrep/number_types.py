"""The names of the types that models compute in, the same in every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from xrep.errors import UserError

if TYPE_CHECKING:
    import torch

FloatPrecision = Literal["float32", "bf16", "bfloat16", "fp16", "float16"]
"""bf16 is short for bfloat16, fp16 for float16."""
Precision = Literal[FloatPrecision, "int8"]
"""int8: the products of transformer layers are in int8, everything else in float32; on CPUs, not in training."""
TrainingPrecision = Literal["auto", FloatPrecision]
"""auto: bfloat16 on GPUs that multiply it, else float32."""
_LONG = {"bf16": "bfloat16", "fp16": "float16"}


def type_of(precision: Precision, device: str) -> torch.dtype:
    """Return the type of numbers that a precision names; for int8, that of everything but products.

    Raises:
        UserError: It is float16, which is for GPUs, and the device is a CPU, or int8 and the device is not one.
    """
    import torch  # not with this module, whose names are choices of commands: their help does not wait for torch

    name, is_cpu = _LONG.get(precision, precision), torch.device(device).type == "cpu"
    if name == "float16" and is_cpu:
        raise UserError("the precision float16 is for GPUs", cure="choose bfloat16 or float32 on a CPU")
    if name == "int8" and not is_cpu:
        raise UserError("the precision int8 is for CPUs", cure="set `device` to cpu, or choose bfloat16 on a GPU")
    return torch.float32 if name == "int8" else getattr(torch, name)
