"""Features of the CPU, and layers on one without bfloat16 products, or with a torch without oneDNN."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.errors import UserError
from xrep.kernels import linear as linear_module
from xrep.kernels import precision, processor
from xrep.kernels.attention import SHORT, attention, cached_attention
from xrep.kernels.linear import fused_linear, linear
from xrep.nn.layers import Linear, feedforward
from xrep.precision import Precision, type_of
from xrep.training.step import type_on
from xrep.training.trainer import Trainer

BFLOAT16 = 2.0**-8
"""The largest relative error of a number that is rounded to bfloat16."""
QUESTIONS = (processor.fast_float32_is_exact, processor.multiplies_bfloat16, processor.has_fused_linear)


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Clear the cached answers before and after a test."""
    for question in QUESTIONS:
        question.cache_clear()
    yield
    for question in QUESTIONS:
        question.cache_clear()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the processor has no bfloat16 products."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: False)


def answers() -> list[bool]:
    types = (torch.float32, torch.bfloat16)
    found = [processor.fast_float32_is_exact(), processor.multiplies_bfloat16()]
    return found + [processor.has_fused_linear(dtype) for dtype in types]


def test_answers_do_not_depend_on_what_surrounds_the_first_question(asked_anew: None) -> None:
    expected = answers()
    for question in QUESTIONS:
        question.cache_clear()
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert answers() == expected
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_torch_without_onednn(asked_anew: None, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for available in (True, False):
        for question in QUESTIONS:
            question.cache_clear()
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda available=available: available)
        assert answers()[1:] == [False, False, False]
        for dtype in (torch.float32, torch.bfloat16):
            check_linear(dtype)


@pytest.mark.parametrize("supported", [True, False])
def test_elsewhere_than_on_x86_torchs_word_is_taken(
    asked_anew: None, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    def refuses(*arguments: Any) -> Tensor:
        raise RuntimeError("could not create a primitive descriptor")

    asked = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: supported, _linear_pointwise=refuses)
    monkeypatch.setattr(torch.ops, "mkldnn", asked)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert answers()[1:] == [supported, False, False]
    check_linear(torch.bfloat16)


def test_a_fused_product_that_is_wrong_is_not_taken(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor, *attributes: Any) -> Tensor:
        return F.gelu(F.linear(x, weight, bias), approximate="tanh") + 0.1

    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(_linear_pointwise=wrong))
    assert not processor.has_fused_linear(torch.float32)


def check_linear(dtype: torch.dtype) -> None:
    """Check layers in inference against float64."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(size, generator=generator).to(dtype) for size in ((3, 17, 40), (30, 40), (30,)))
    inner, outer = Linear(40, 30).to(dtype), Linear(30, 8).to(dtype)
    slack = 1e-5 if dtype == torch.float32 else BFLOAT16
    with torch.no_grad():
        inner.weight.copy_(weight)
        inner.bias.copy_(bias)
        for parameter in outer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        exact = F.linear(x.double(), weight.double(), bias.double())
        bare = linear(x, weight)
        for found, truth in ((inner(x), exact), (bare, x.double() @ weight.double().t())):
            # In float32 the sum has the errors of its terms, in bfloat16 that of the result is larger.
            least = slack * (float(truth.abs().max()) if dtype == torch.float32 else 1.0)
            torch.testing.assert_close(found.double(), truth, rtol=slack, atol=least)
        both = feedforward(x, inner, outer, "gelu")
        hidden, weights = F.gelu(exact), outer.weight.double()
        # Each hidden number and the result are rounded a few times; the errors of the terms add up.
        largest = float((hidden.abs() @ weights.abs().t()).max())
        torch.testing.assert_close(
            both.double(), F.linear(hidden, weights, outer.bias.double()), rtol=2 * slack, atol=2 * slack * largest
        )
        assert inner(x).dtype == bare.dtype == both.dtype == dtype


@pytest.mark.parametrize("fast", [True, False])
def test_layers_where_bfloat16_is_emulated(emulated: None, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: fast)
    seen = set()
    product = F.linear

    def noted(x: Tensor, *rest: Any) -> Tensor:
        seen.add(x.dtype)
        return product(x, *rest)

    monkeypatch.setattr(linear_module.F, "linear", noted)
    with precision.default_float32_products():  # this happens on processors whose fast products round
        check_linear(torch.bfloat16)
    assert torch.bfloat16 not in seen
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        fused = fused_linear(x, x, x[:, 0], gelu=True)
        assert (fused is not None) == (fast and processor.has_fused_linear(torch.float32))


@pytest.mark.parametrize("pieces", [1, 3])
def test_gradients_where_bfloat16_is_emulated(emulated: None, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setattr(linear_module, "_WIDENED", -(-30 // pieces) * 40)
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(size, generator=generator).bfloat16() for size in ((5, 7, 40), (30, 40), (30,))]
    gradient = torch.randn(5, 7, 30, generator=generator).bfloat16()

    def run(function: Any, dtype: torch.dtype) -> list[Tensor]:
        own = [leaf.clone().to(dtype).requires_grad_() for leaf in leaves]
        result = function(*own)
        result.backward(gradient.to(dtype))
        assert all(leaf.grad.dtype == dtype for leaf in own) and result.dtype == dtype
        return [result.detach(), *(leaf.grad for leaf in own)]

    for found, exact in zip(run(linear, torch.bfloat16), run(F.linear, torch.float64), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=BFLOAT16, atol=BFLOAT16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [5, SHORT + 1])
def test_attention_where_bfloat16_is_emulated(emulated: None, length: int, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 8, generator=generator).bfloat16() for _ in range(3))
    mask = None if causal else (torch.arange(length) < torch.tensor([[length], [3]]))[:, None, None, :]
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask, is_causal=causal)
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            found = attention(q, k, v, mask, 0.0, causal=causal)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=BFLOAT16, atol=1e-5)


def test_attention_to_cached_keys_where_bfloat16_is_emulated(emulated: None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, rows, 8, generator=generator).bfloat16() for rows in (4, 9, 9))
    own = torch.zeros(2, 4, 9).masked_fill(torch.rand(2, 4, 9, generator=generator) < 0.3, -torch.inf)
    mask = own.double().unsqueeze(1)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)
    found = cached_attention(q, k, v, own.bfloat16().repeat_interleave(3, 0))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=BFLOAT16, atol=1e-5)


def test_training_where_bfloat16_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for has, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr("xrep.training.step.multiplies_bfloat16", lambda has=has: has)
        for name in ("bf16", "bfloat16"):
            assert type_on(cpu, name) == expected and type_on(gpu, name) == torch.bfloat16
        assert type_on(gpu, "fp16") == type_on(gpu, "float16") == torch.float16
        assert type_on(cpu, "float32") == torch.float32


def test_the_default_precision_is_bfloat16_on_gpus_that_multiply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has: has)
        assert type_on(torch.device("cuda"), Trainer.Config().precision) == expected
        assert type_on(torch.device("cpu"), Trainer.Config().precision) == torch.float32


def test_tf32_is_for_a_while() -> None:
    before = torch.get_float32_matmul_precision()
    with precision.float32_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    with pytest.raises(RuntimeError, match="inside"), precision.float32_products(torch.device("cuda")):
        assert torch.backends.cuda.matmul.allow_tf32
        raise RuntimeError("inside")
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("name", ["fp16", "float16"])
def test_float16_is_for_gpus(name: Precision) -> None:
    with pytest.raises(UserError, match="the precision float16 is for GPUs; choose bfloat16 or float32 on a CPU"):
        type_of(name, "cpu")
