"""Low-rank adaptation (LoRA): the linear layers of encoders change by products of two small matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from xrep.errors import UserError
from xrep.models.model import Model

_ENCODERS = ("encoders.", "encoder.", "decoder.")
"""Beginnings of the names of parameters of encoders and decoders; the others are projections and heads."""


class LowRank(nn.Module):
    """The factors of the changes of linear layers: W = W₀ + alpha / rank · B A (Hu et al. 2022).

    W itself, with its change, stays in the model, which is therefore the same as without LoRA for everything else:
    checkpoints, momentum encoders and exports. The gradients of A and B follow from that of W: with s = alpha / rank
    they are s Bᵀ ∂W and s ∂W Aᵀ. After the optimizer has changed A and B, W gets the difference of their products.

    Args:
        model: its linear layers in encoders and decoders are adapted.
        trained: names of the parameters of the model that train at some step; others are left as they are.
        rank: rows of A and columns of B.

    Attributes:
        targets: names of the adapted parameters.
        others: names of the other parameters of the encoders that would train, which stay as they are. Embeddings of a
            vocabulary that the encoder did not have train in whole.

    Raises:
        UserError: no linear layer of an encoder trains, or one is not larger than the rank.
    """

    def __init__(self, model: Model, trained: set[str], rank: int, alpha: float) -> None:
        super().__init__()
        inside = {name: p for name, p in model.named_parameters() if name.startswith(_ENCODERS) and name in trained}
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self.targets = [name for name in inside if name in linear]
        self.others = [name for name in inside if name not in linear and name not in model.new_embeddings]
        self.rank, self.scale, self._weights = rank, alpha / rank, [inside[name] for name in self.targets]
        if not self.targets:
            raise UserError("`lora_rank`: no linear layer of an encoder trains", cure="set `lora_rank` to 0")
        if (smallest := min(min(weight.shape) for weight in self._weights)) <= rank:
            problem = f"`lora_rank` is {rank}, and the encoder has a linear layer of width {smallest}"
            raise UserError(problem, cure="choose a smaller rank")
        self.a = nn.ParameterList([weight.new_empty(rank, weight.size(1)) for weight in self._weights])
        self.b = nn.ParameterList([weight.new_zeros(weight.size(0), rank) for weight in self._weights])
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

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Context manager in which the factors change; the weights follow at its end."""
        old_a, old_b = ([factor.detach().clone() for factor in factors] for factors in (self.a, self.b))
        yield
        with torch.no_grad():
            for weight, a, b, was_a, was_b in zip(self._weights, self.a, self.b, old_a, old_b, strict=True):
                weight.add_(b @ a - was_b @ was_a, alpha=self.scale)
