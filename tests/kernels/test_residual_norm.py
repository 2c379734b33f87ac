"""Dropout, residual connection and layer normalisation in one kernel, against the formula in float64."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.kernels.problems import triton
from tests.support.closeness import error
from xrep.kernels import residual_norm
from xrep.kernels.fused import fuses_residuals
from xrep.nn.decoder import DecoderLayer
from xrep.nn.layers import EncoderLayer, Masking
from xrep.nn.shape import DecoderShape, EncoderShape, Norm

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'test' on x86-64 Linux")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON = 1e-5
TYPES = {
    "float32": (torch.float32, torch.float32, 2e-5),
    "bf16": (torch.bfloat16, torch.bfloat16, 0.03),
    "mixed": (torch.float32, torch.float16, 2e-3),
}
"""The types of x and of the change, and how far numbers may be from the exact ones, as a share of the largest one."""


def inputs(kinds: str, *shape: int) -> list[Tensor]:
    """Return x, change, weight and bias; no element of the change is near 0."""
    generator = torch.Generator().manual_seed(0)
    x, change, weight, bias = (torch.randn(s, generator=generator) for s in (shape, shape, shape[-1:], shape[-1:]))
    of_x, of_change, _ = TYPES[kinds]
    tensors = x.to(of_x), (change + change.sign()).to(of_change), weight.to(of_x), bias.to(of_x)
    return [tensor.to(DEVICE).requires_grad_() for tensor in tensors]


def formula(x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, dropout: float, kept: Tensor):
    """Return the layer normalisation of x + dropout(change), and that sum, in float64, if dropout keeps ``kept``."""
    x, change, weight, bias = (tensor.double() for tensor in (x, change, weight, bias))
    total = x + change * kept / (1 - dropout)
    return F.layer_norm(total, x.shape[-1:], weight, bias, EPSILON), total


def gradients(normed: Tensor, total: Tensor | None, leaves: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a sum in which each number has another weight."""
    ways = torch.linspace(-1, 2, normed.numel(), device=DEVICE, dtype=torch.float64).view(normed.shape)
    objective = (normed * ways).sum() + (0.0 if total is None else (total * ways.flip(0)).sum())
    return [gradient.double() for gradient in torch.autograd.grad(objective, leaves)]


@pytest.mark.slow
@pytest.mark.parametrize("shape, kinds, dropout, summed", [
    ((2, 3, 24), "float32", 0.3, False), ((41, 5), "float32", 0.0, False), ((41, 5), "float32", 0.3, True),
    ((3, 1030), "bf16", 0.3, False), ((19, 40), "bf16", 0.0, True), ((19, 40), "mixed", 0.3, True),
    ((19, 40), "mixed", 0.0, False), ((1, 1), "float32", 0.0, False), ((0, 8), "float32", 0.3, True),
], ids=str)  # fmt: skip
def test_equals_the_formula(shape: tuple[int, ...], kinds: str, dropout: float, summed: bool, monkeypatch) -> None:
    monkeypatch.setattr(residual_norm, "PARTS", 3)
    monkeypatch.setattr(residual_norm, "TILE", 32)
    leaves, share = inputs(kinds, *shape), TYPES[kinds][2]
    torch.manual_seed(1)
    normed, total = residual_norm.residual_norm(*leaves, EPSILON, dropout, summed=summed)
    torch.manual_seed(1)
    with torch.no_grad():
        plain, drawn = residual_norm.residual_norm(*leaves, EPSILON, dropout, summed=True)
    exact, exact_total = formula(*leaves, dropout, drawn != leaves[0])
    assert normed.dtype == drawn.dtype == TYPES[kinds][0] and normed.shape == shape
    found = gradients(normed, total if summed else None, leaves)
    expected = gradients(exact, exact_total if summed else None, leaves)
    pairs = zip((normed, plain, drawn, *found), (exact, exact, exact_total, *expected), strict=True)
    assert all(error(mine, truth.detach(), 1.0) <= share for mine, truth in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("width", [4, 96, 700])
def test_dropout_keeps_its_share_of_independent_elements(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_norm, "TILE", 1 << 20)  # all rows in one program, which the interpreter is quick with
    x, change, weight, bias = inputs("float32", 300, width)
    torch.manual_seed(2)
    first, second = (
        (residual_norm.residual_norm(x, change, weight, bias, EPSILON, 0.25, summed=True)[1] != x).double()
        for _ in range(2)
    )
    several = 5 * (0.75 * 0.25 / first.numel()) ** 0.5
    assert abs(first.mean() - 0.75) < several and abs(second.mean() - 0.75) < several
    # Two of them are both kept as often as if they did not know each other: calls, neighbours, rows.
    for other in (second, first.roll(1, 1), first.roll(1, 0), first.roll(width // 4, 1), first.roll((1, 1), (0, 1))):
        assert abs((first * other).mean() - 0.75**2) < 2 * several


SIZES = {"hidden_size": 24, "layers": 1, "heads": 2, "feedforward_size": 40, "max_positions": 9}
SHAPE = EncoderShape(vocabulary_size=9, pad_id=0, **SIZES)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("decodes", [False, True], ids=["encoder", "decoder"])
def test_layers_are_those_of_torch(norm: Norm, decodes: bool) -> None:
    torch.manual_seed(0)
    if decodes:
        layer = DecoderLayer(DecoderShape(**SIZES, norm=norm, source_size=24), 0.0, 0.0).to(DEVICE)
        memory = (torch.randn(2, 2, 5, 12, device=DEVICE), torch.randn(2, 2, 5, 12, device=DEVICE), None)
        others: tuple[Any, ...] = (Masking(), memory)
    else:
        layer, others = EncoderLayer(replace(SHAPE, norm=norm), 0.0, 0.0).to(DEVICE), (Masking(),)
    x = torch.randn(2, 7, 24, device=DEVICE, requires_grad=True)
    found = {}
    for name, context in (("plain", nullcontext), ("fused", triton)):
        with context():
            out = layer(x, *others)
            ways = torch.linspace(-1, 2, out.numel(), device=DEVICE).view(out.shape)
            leaves = [x, *layer.parameters()]
            found[name] = [out.detach(), *torch.autograd.grad((out * ways).sum(), leaves, allow_unused=True)]
    for plain, fused in zip(*found.values(), strict=True):
        assert (plain is None) == (fused is None)
        assert plain is None or error(fused, plain.double(), 1.0) <= 2e-5


@pytest.mark.slow
def test_activation_checkpointing_draws_the_same() -> None:
    layer, x = EncoderLayer(SHAPE, 0.4, 0.0).to(DEVICE), torch.randn(2, 7, 24, device=DEVICE)
    found = []
    with triton():
        for again in (False, True):
            torch.manual_seed(3)
            out = checkpoint(layer, x, Masking(), use_reentrant=False) if again else layer(x, Masking())
            torch.randn(5)
            found.append([out.detach(), *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
    assert all(torch.equal(plain, other) for plain, other in zip(*found, strict=True))


def test_autocast_normalises_in_float32() -> None:
    x, change, weight, bias = inputs("mixed", 3, 8)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        normed, _ = residual_norm.residual_norm(x.bfloat16(), change.bfloat16(), weight, bias, EPSILON, 0.0)
    assert normed.dtype == torch.float32


def test_which_tensors_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 8, device=DEVICE)
    with triton():
        assert fuses_residuals(x, x.bfloat16()) and not fuses_residuals(x.double(), x)
        monkeypatch.setattr("xrep.kernels.fused.WIDEST", 7)
        assert not fuses_residuals(x, x)
    assert fuses_residuals(x[:, :4], x[:, :4]) == x.is_cuda
