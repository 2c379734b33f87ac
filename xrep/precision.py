"""The names of the types that models compute in, the same in every command."""

from __future__ import annotations

from typing import Literal

import torch

from xrep.errors import UserError

Precision = Literal["float32", "bf16", "bfloat16", "fp16", "float16"]
"""bf16 is short for bfloat16, fp16 for float16."""
TrainingPrecision = Literal["auto", Precision]
"""auto: bfloat16 on GPUs that multiply it, else float32."""
_LONG = {"bf16": "bfloat16", "fp16": "float16"}


def type_of(precision: Precision, device: str) -> torch.dtype:
    """Return the type of numbers that a precision names.

    Raises:
        UserError: It is float16, which is for GPUs, and the device is a CPU.
    """
    name = _LONG.get(precision, precision)
    if name == "float16" and torch.device(device).type == "cpu":
        raise UserError("the precision float16 is for GPUs", cure="choose bfloat16 or float32 on a CPU")
    return getattr(torch, name)
