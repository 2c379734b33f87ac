"""Transformer layers in bfloat16 on GPUs: weights are cast once a step, all of a stack together.

torch's autocast casts every weight and every input of a linear layer by itself, and normalises in float32. That takes
more kernel launches than the layers themselves have, and twice the memory traffic. Here a stack of layers computes
wholly in bfloat16 (products, normalisation and attention still add up in float32); the weights stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Call = Callable[..., Tensor]
Casts = dict[tuple[Any, ...], list[list[Tensor]]]
"""Weights that were cast, of each layer of some stacks."""


class Stack(nn.Module):
    """A module with layers that compute ``in_half``.

    Attributes:
        casts: their weights once they are cast, while they do not change (``weights_cast_once``); None: none are kept.
    """

    casts: Casts | None = None


def half_type(device: torch.device) -> torch.dtype | None:
    """Return the type in which stacks of layers compute on a device; None: as autocast does it.

    It is bfloat16 on a GPU under autocast to bfloat16. The range of float16 is too narrow for the gradients between
    layers.
    """
    halved = device.type == "cuda" and torch.is_autocast_enabled("cuda")
    return torch.bfloat16 if halved and torch.get_autocast_dtype("cuda") == torch.bfloat16 else None


@contextmanager
def weights_cast_once(stacks: Sequence[Stack]) -> Iterator[None]:
    """Context manager in which stacks keep their weights once they are cast; these must not change."""
    for stack in stacks:
        stack.casts = {}
    try:
        yield
    finally:
        for stack in stacks:
            stack.casts = None


@contextmanager
def in_half(layers: Iterable[nn.Module], x: Tensor, casts: Casts | None = None) -> Iterator[tuple[list[Call], Tensor]]:
    """Context manager that gives a function for each layer of a stack, and ``x``, which is the input of the first one.

    Without autocast to bfloat16 on a GPU, they are the layers and ``x`` themselves. Otherwise the functions compute the
    layers in bfloat16; they may also be called later, by activation checkpointing.

    Args:
        casts: where weights are kept once they are cast; None: nowhere.
    """
    stack, half = list(layers), half_type(x.device)
    if half is None or not stack:
        yield list[Call](stack), x
        return
    with torch.autocast(x.device.type, enabled=False):
        weights = _weights(stack, half, casts)
        calls = [partial(_call_with, layer, own) for layer, own in zip(stack, weights, strict=True)]
        yield list[Call](calls), x.to(half)


def _weights(stack: list[nn.Module], half: torch.dtype, casts: Casts | None) -> list[list[Tensor]]:
    """Return the weights of each layer in the type ``half``, in the order of ``_places``."""
    key = (*stack, half, torch.is_grad_enabled())
    if casts is not None and key in casts:
        return casts[key]
    owned = [[parameters[name] for parameters, name in _places(layer)] for layer in stack]
    every = [weight for weights in owned for weight in weights]
    with torch.no_grad():
        halves = [torch.empty_like(weight, dtype=half) for weight in every]
        torch._foreach_copy_(halves, every)
    rest, cast = iter(halves), []
    for weights in owned:
        own = [next(rest) for _ in weights]
        trained = [n for n, weight in enumerate(weights) if weight.requires_grad] if torch.is_grad_enabled() else []
        if trained:
            given = _Cast.apply([own[n] for n in trained], *(weights[n] for n in trained))
            for n, weight in zip(trained, given, strict=True):
                own[n] = weight
        cast.append(own)
    if casts is not None:
        casts[key] = cast
    return cast


class _Cast(torch.autograd.Function):
    """Weights of a layer, given with their casts; the gradients of all of them are cast back together."""

    @staticmethod
    def forward(ctx: Any, halves: list[Tensor], *weights: Tensor) -> tuple[Tensor, ...]:
        return tuple(halves)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wide = [torch.empty_like(gradient, dtype=torch.float32) for gradient in gradients]
        torch._foreach_copy_(wide, list(gradients))
        return None, *wide


def _places(layer: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return where a layer keeps its parameters: the dictionary of a module, and the name in it."""
    return [(m._parameters, name) for m in layer.modules() for name, p in m._parameters.items() if p is not None]


def _call_with(layer: nn.Module, weights: list[Tensor], *inputs: Any) -> Tensor:
    """Return ``layer(*inputs)`` with other weights. (``torch.func.functional_call`` takes ten times as long.)"""
    places = _places(layer)
    before = [parameters[name] for parameters, name in places]
    try:
        for (parameters, name), weight in zip(places, weights, strict=True):
            parameters[name] = weight
        return layer(*inputs)
    finally:
        for (parameters, name), weight in zip(places, before, strict=True):
            parameters[name] = weight
