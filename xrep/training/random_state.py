"""Saving and restoring the state of the random generators from which dropout draws."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor


class RandomState(TypedDict):
    """States of the random generators of the CPU and of the GPU that a process trains on."""

    cpu: Tensor
    cuda: Tensor | None


def random_state(device: torch.device) -> RandomState:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def restore_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
