"""The choice of the implementation of the losses of pairs."""

from __future__ import annotations

from types import ModuleType

import torch

from xrep.kernels.fused import uses_triton


def path_for(device: torch.device) -> str:
    return "triton" if uses_triton(device) else "chunked"


def steps_for(device: torch.device) -> ModuleType:
    if path_for(device) == "triton":
        from xrep.kernels import triton_steps

        return triton_steps
    from xrep.kernels import chunked_steps

    return chunked_steps
