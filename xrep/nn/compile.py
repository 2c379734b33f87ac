"""torch.compile for the layers of encoders."""

from __future__ import annotations

import torch
import torch._dynamo.config as dynamo
from torch import nn

from xrep.errors import UserError
from xrep.nn.encoder import Encoder, TransformerEncoder
from xrep.nn.layers import EncoderLayer

BACKEND = "inductor"

VARIANTS = 64
"""Number of compiled variants of one layer after which torch would run it uncompiled. There are three layouts, each
with and without gradient and dropout, for each encoder shape, and a few variants for batches of one or no sentence."""


def compile_layers(module: nn.Module) -> None:
    """Compile every encoder layer within a module in place; the tensors keep their names.

    Layers of the same shape share one compilation, so many layers take no longer to compile than one. The sizes of a
    batch are symbolic: another length or number of sentences needs no new compilation. Everything else (embeddings,
    pooling and losses) runs as before.

    Raises:
        UserError: An encoder is not xrep's own, or the compiler does not work on the module's device.
    """
    for part in module.modules():
        # torch's CPU compiler corrupted the memory with the layers of T5 and DeBERTa (torch 2.13, transformers 5.20).
        if isinstance(part, Encoder) and not isinstance(part, TransformerEncoder):
            problem = f"layers of encoders of type {part.shape.type} cannot be compiled"
            raise UserError(problem, cure="train without `compile`")
    _try_compiler(next(module.parameters()).device)
    dynamo.recompile_limit = max(dynamo.recompile_limit, VARIANTS)
    # Within DDP, torch would split compiled code at the borders of gradient buckets. A layer is already small enough.
    dynamo.optimize_ddp = False
    for part in module.modules():
        if isinstance(part, TransformerEncoder):
            part.compiled = True
        if isinstance(part, EncoderLayer):
            part.compile(dynamic=True, backend=BACKEND)


def _try_compiler(device: torch.device) -> None:
    try:
        torch.compile(lambda x: x.sin() + 1, backend=BACKEND)(torch.ones(8, device=device))
    except RuntimeError as error:
        cause = getattr(error, "inner_exception", error)
        reason = f"{type(cause).__name__}: {cause}".splitlines()[0]
        wanted = "a C++ compiler such as g++" if device.type == "cpu" else "Triton and a C compiler such as gcc"
        cure = f"install {wanted} (with the header files of Python), or train without `compile`"
        raise UserError(f"torch.compile does not work on {device.type} here ({reason})", cure=cure) from None
