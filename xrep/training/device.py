"""What depends on the device that a run trains on: the type of its numbers, and the state of the random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from xrep.kernels.precision import multiplied_type
from xrep.precision import TrainingPrecision, type_of

RandomState = dict[str, Tensor]
"""States of the random generators of the CPU (``cpu``) and of the GPU that a process trains on (``cuda``)."""


def type_on(device: torch.device, precision: TrainingPrecision) -> torch.dtype:
    """Return the type in which a device trains if ``precision`` was asked for.

    Devices that would have to emulate bfloat16 products do not train in it by themselves, and CPUs not even if asked
    to (``multiplied_type``).
    """
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if fast else "float32"
    return multiplied_type(type_of(precision, device.type), device)


def random_state(device: torch.device) -> RandomState:
    """Return the state of the generators from which dropout draws."""
    own = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **own}


def restore_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
