"""Low-rank adaptation (LoRA): the linear layers of encoders change by products of two small matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from xrep.errors import UserError
from xrep.models.model import Model

ENCODERS = ("encoders.", "encoder.", "decoder.")
"""Beginnings of the names of parameters of encoders and decoders; the others are projections and heads."""


class LowRank(nn.Module):
    """The factors of the changes of linear layers: W = W₀ + alpha / rank · B A (Hu et al. 2022).

    W itself, with its change, stays in the model, which is therefore the same as without LoRA for everything else:
    checkpoints, momentum encoders and exports. The gradients of A and B follow from that of W: with s = alpha / rank
    they are s Bᵀ ∂W and s ∂W Aᵀ. After the optimizer has changed A and B, W gets the difference of their products.

    Args:
        model: Its linear layers in encoders and decoders are adapted.
        trained: Names of the parameters of the model that train at some step; others are left as they are.
        rank: Rows of A and columns of B.

    Attributes:
        rank: As above.
        targets: Names of the adapted parameters.
        others: Names of the other parameters of the encoders that would train, which stay as they are.

    Raises:
        UserError: No linear layer of an encoder trains, or one is not larger than the rank.
    """

    def __init__(self, model: Model, trained: set[str], rank: int, alpha: float) -> None:
        super().__init__()
        inside = {name: p for name, p in model.named_parameters() if name.startswith(ENCODERS) and name in trained}
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self.targets = [name for name in inside if name in linear]
        self.others = [name for name in inside if name not in linear]
        self._weights: list[nn.Parameter] = [inside[name] for name in self.targets]
        self.rank, self.scale = rank, alpha / rank
        if not self.targets:
            raise UserError("`lora_rank`: no linear layer of an encoder trains", cure="set `lora_rank` to 0")
        if (smallest := min(min(weight.shape) for weight in self._weights)) <= rank:
            problem = f"`lora_rank` is {rank}, and the encoder has a linear layer of width {smallest}"
            raise UserError(problem, cure="choose a smaller rank")
        device = self._weights[0].device
        self.a = nn.ParameterList([torch.empty(rank, weight.size(1), device=device) for weight in self._weights])
        self.b = nn.ParameterList([torch.zeros(weight.size(0), rank, device=device) for weight in self._weights])
        for factor in self.a:
            nn.init.kaiming_uniform_(factor, a=math.sqrt(5))

    @torch.no_grad()
    def collect(self) -> None:
        """Turn the gradients of the weights into those of the factors. Call it after the last backward pass."""
        for weight, a, b in zip(self._weights, self.a, self.b, strict=True):
            if weight.grad is not None:
                a.grad = self.scale * b.t() @ weight.grad
                b.grad = self.scale * weight.grad @ a.t()
                weight.grad = None

    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """Return copies of the factors, for ``change``."""
        return [(a.detach().clone(), b.detach().clone()) for a, b in zip(self.a, self.b, strict=True)]

    @torch.no_grad()
    def change(self, before: list[tuple[Tensor, Tensor]]) -> None:
        """Change the weights as the factors have changed since ``before``."""
        for weight, a, b, (old_a, old_b) in zip(self._weights, self.a, self.b, before, strict=True):
            weight.add_(b @ a - old_b @ old_a, alpha=self.scale)
