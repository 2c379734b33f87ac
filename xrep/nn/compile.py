"""torch.compile for the layers of encoders."""

from __future__ import annotations

import torch
import torch._dynamo.config as dynamo
from torch import nn

from xrep.errors import UserError
from xrep.nn.layers import EncoderLayer

BACKEND = "inductor"

VARIANTS = 64
"""Compilations of a layer after which torch would run it uncompiled. There are three layouts, each with and without
gradient and dropout, for each shape of encoder; and a few for batches of one sentence or of none."""


def compile_layers(module: nn.Module) -> None:
    """Compile every encoder layer within a module, in place; names of tensors stay as they are.

    Layers of one shape share one compilation, so it takes no longer for many of them than for one. The sizes of a batch
    are symbolic: another length or number of sentences compiles nothing. All else (embeddings, pooling, losses, which
    are kernels of their own) runs as before.

    Raises:
        UserError: the compiler does not work on the module's device.
    """
    _try_compiler(next(module.parameters()).device)
    dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
    # Within DDP torch would cut what it compiles at the borders of gradient buckets. A layer is a small enough piece.
    dynamo.optimize_ddp = False
    for part in module.modules():
        if isinstance(part, EncoderLayer):
            part.compile(dynamic=True, backend=BACKEND)


def _try_compiler(device: torch.device) -> None:
    try:
        torch.compile(lambda x: x.sin() + 1, backend=BACKEND)(torch.ones(8, device=device))
    except RuntimeError as error:
        cause = getattr(error, "inner_exception", error)
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        wanted = "a C++ compiler such as g++" if device.type == "cpu" else "Triton and a C compiler such as gcc"
        cure = f"install {wanted} (with the header files of Python), or train without --compile"
        raise UserError(f"torch.compile does not work on {device.type} here ({reason})", cure=cure) from None
