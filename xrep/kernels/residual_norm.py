"""Dropout, residual connection and layer normalisation after a sublayer of a transformer, in one kernel on GPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PARTS = 512
"""Largest number of programs of the backward pass; each adds up the gradients of weight and bias over some rows."""

TILE = 2048
"""Numbers in a tile, unless a row is longer."""

WIDEST = 8192
"""Longest row that a program holds in its registers."""


def residual_norm(
    x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, epsilon: float, dropout: float, *, summed: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the layer normalisation of x + dropout(change), in float32, with fused kernels (``xrep.kernels.fused``).

    What dropout keeps depends on a number from torch's generator of the CPU. It is drawn again in the backward pass,
    not stored.

    Args:
        x, change: [..., D], of one shape.
        weight, bias: [D], of the normalisation.
        epsilon: added to the variance.
        dropout: probability of dropout, in training; 0: none.
        summed: whether the sum is wanted, too. It takes another write to memory without gradients.

    Returns:
        The normalised sum, in float32 under autocast, as torch normalises, else in the type of the sum; and the sum,
        which is undefined unless ``summed``. Gradients flow from both to the first four arguments.
    """
    seed = int(torch.randint(2**32, 2**62, (), device="cpu")) if dropout else 0
    kept = summed or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, change, weight, bias)))
    return _ResidualNorm.apply(x, change, weight, bias, (epsilon, dropout, seed, kept, summed))


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, settings: Any) -> Any:
        from xrep.kernels import triton_norm

        epsilon, dropout, seed, kept, summed = settings
        x, change, columns = x.contiguous(), change.contiguous(), x.size(-1)
        rows = x.numel() // columns
        total = torch.empty_like(x, dtype=torch.promote_types(x.dtype, change.dtype))
        wide = torch.is_autocast_enabled(x.device.type)
        normed = torch.empty_like(x, dtype=torch.float32 if wide else total.dtype)
        mean, scale = x.new_empty(2, rows, dtype=torch.float32)
        tile, options = tile_of(columns)
        kernel: Any = triton_norm.normalise_rows
        kernel[(-(-rows // tile["BLOCK_R"]),)](
            *(x, change, weight, bias, total, normed, mean, scale, seed, dropout, epsilon, rows, columns),
            **{"DROPPED": dropout > 0, "KEPT": kept, **tile, **options},
        )
        ctx.save_for_backward(total, weight, mean, scale)
        ctx.settings = dropout, seed, x.dtype, change.dtype
        ctx.set_materialize_grads(False)
        if not summed:
            ctx.mark_non_differentiable(total)
        return normed, total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        from xrep.kernels import triton_norm

        of_normed, of_total = gradients
        total, weight, mean, scale = ctx.saved_tensors
        dropout, seed, kind, kind_of_change = ctx.settings
        rows, columns = len(mean), total.size(-1)
        of_x = torch.empty_like(total, dtype=kind)
        separate = dropout > 0 or kind != kind_of_change
        of_change = torch.empty_like(total, dtype=kind_of_change) if separate else of_x
        tile, options = tile_of(columns)
        each = -(-rows // (PARTS * tile["BLOCK_R"])) * tile["BLOCK_R"]
        count = -(-rows // max(each, 1))
        parts = total.new_empty(count, 2, columns, dtype=torch.float32)
        of_normed = torch.zeros_like(total) if of_normed is None else of_normed.contiguous()
        of_total = None if of_total is None else of_total.contiguous()
        kernels: Any = triton_norm
        kernels.differentiate_rows[(count,)](
            *(of_normed, of_total, total, weight, mean, scale, of_x, of_change, parts),
            *(seed, dropout, rows, columns, each),
            **{"DROPPED": dropout > 0, "SUMMED": of_total is not None, "SEPARATE": separate, **tile, **options},
        )
        of_weights = torch.empty(2, columns, dtype=weight.dtype, device=weight.device)
        if any(ctx.needs_input_grad[2:4]):
            kernels.add_parts[(-(-2 * columns // 32),)](parts, of_weights, count, 2 * columns, BLOCK_P=128, BLOCK_C=32)
        return of_x, of_change, of_weights[0], of_weights[1], None


def tile_of(columns: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of a tile of whole rows, and the warps that compute it."""
    wide = max(4, 1 << (columns - 1).bit_length())
    rows = max(1, TILE // wide)
    return {"BLOCK_R": rows, "BLOCK_D": wide}, {"num_warps": min(16, max(4, rows * wide // 512))}
