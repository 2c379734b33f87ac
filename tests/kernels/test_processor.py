"""Features of the CPU, and layers on one without bfloat16 products, or with a torch without oneDNN."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.test_linear import derive, draw
from xrep.kernels import linear as linear_module
from xrep.kernels import precision, processor
from xrep.kernels.attention import SHORT, attention, cached_attention
from xrep.kernels.linear import fused_linear, linear
from xrep.nn.layers import Linear, feedforward
from xrep.training.device import type_on
from xrep.training.trainer import Trainer

BFLOAT16 = 2.0**-8
"""The largest relative error of a number that is rounded to bfloat16."""
QUESTIONS = (processor.fast_float32_is_exact, processor.multiplies_bfloat16, processor.has_fused_linear)


@pytest.fixture
def asked_anew() -> Iterator[Callable[[], None]]:
    """Clear the cached answers before and after a test, and when they are asked to be."""

    def clear() -> None:
        for question in QUESTIONS:
            question.cache_clear()

    clear()
    yield clear
    clear()


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the processor has no bfloat16 products."""
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: False)


def answers() -> list[bool]:
    fused = [processor.has_fused_linear(dtype) for dtype in (torch.float32, torch.bfloat16)]
    return [processor.fast_float32_is_exact(), processor.multiplies_bfloat16(), *fused]


def test_answers_do_not_depend_on_what_surrounds_the_first_question(asked_anew: Callable[[], None]) -> None:
    expected = answers()
    asked_anew()
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert answers() == expected
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_product_that_rounds_its_inputs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = precision.fast_float32_is_exact.__wrapped__
    assert probe() == precision.fast_float32_is_exact()
    product = Tensor.__matmul__

    def rounding(a: Tensor, b: Tensor) -> Tensor:
        return product(a.bfloat16().float() if torch.get_float32_matmul_precision() == "medium" else a, b)

    monkeypatch.setattr(Tensor, "__matmul__", rounding)
    assert not probe()


def refuses(*arguments: Any) -> Tensor:
    raise RuntimeError("could not create a primitive descriptor")


def wrong(x: Tensor, weight: Tensor, bias: Tensor, *attributes: Any) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh") * 1.1


@pytest.mark.parametrize(
    "machine, library, available, expected",
    [
        ("aarch64", {}, True, [False, False, False]),
        ("x86_64", {}, False, [False, False, False]),
        (
            "aarch64",
            {"_is_mkldnn_bf16_supported": lambda: True, "_linear_pointwise": refuses},
            True,
            [True, False, False],
        ),
        ("aarch64", {"_is_mkldnn_bf16_supported": lambda: False, "_linear_pointwise": refuses}, True, 3 * [False]),
        ("x86_64", {"_is_mkldnn_bf16_supported": lambda: False, "_linear_pointwise": wrong}, True, 3 * [False]),
    ],
)
def test_other_machines_and_other_builds_of_torch(
    machine: str, library: dict, available: bool, expected: list[bool], asked_anew: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere than on x86, torch's word on bfloat16 is taken. A fused product that is wrong is not taken."""
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace(**library))
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: available)
    assert answers()[1:] == expected
    for dtype in (torch.float32, torch.bfloat16):
        check_linear(dtype)


def check_linear(dtype: torch.dtype) -> None:
    """Check layers in inference against float64."""
    x, *weights = draw((3, 17, 40), (30, 40), (30,), (8, 30), (8,), dtype=dtype)
    inner, outer = Linear(40, 30).to(dtype), Linear(30, 8).to(dtype)
    slack = 1e-5 if dtype == torch.float32 else BFLOAT16
    with torch.no_grad():
        for parameter, value in zip((*inner.parameters(), *outer.parameters()), weights, strict=True):
            parameter.copy_(value)
        weight, bias, second, last = (value.double() for value in weights)
        exact = F.linear(x.double(), weight, bias)
        bare = linear(x, weights[0])
        for found, truth in ((inner(x), exact), (bare, x.double() @ weight.T)):
            # In float32 the sum has the errors of its terms, in bfloat16 that of the result is larger.
            least = slack * (float(truth.abs().max()) if dtype == torch.float32 else 1.0)
            torch.testing.assert_close(found.double(), truth, rtol=slack, atol=least)
        both, hidden = feedforward(x, inner, outer, "gelu"), F.gelu(exact)
        # Each hidden number and the result are rounded a few times; the errors of the terms add up.
        least = 2 * slack * float((hidden.abs() @ second.abs().T).max())
        torch.testing.assert_close(both.double(), F.linear(hidden, second, last), rtol=2 * slack, atol=least)
        assert inner(x).dtype == bare.dtype == both.dtype == dtype


@pytest.mark.parametrize("fast", [True, False])
def test_layers_where_bfloat16_is_emulated(emulated: None, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: fast)
    seen, product = set(), F.linear
    monkeypatch.setattr(linear_module.F, "linear", lambda x, *rest: seen.add(x.dtype) or product(x, *rest))
    with precision.exact_products():  # this happens on processors whose fast products round
        check_linear(torch.bfloat16)
    assert seen and torch.bfloat16 not in seen
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        fused = fused_linear(x, x, x[:, 0], gelu=True)
        assert (fused is not None) == (fast and processor.has_fused_linear(torch.float32))


@pytest.mark.parametrize("pieces", [1, 3])
def test_gradients_where_bfloat16_is_emulated(emulated: None, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setattr(linear_module, "_WIDENED", -(-30 // pieces) * 40)
    *values, way = draw((5, 7, 40), (30, 40), (30,), (5, 7, 30), dtype=torch.bfloat16)
    exact = derive(F.linear, [value.double() for value in values], (), way)
    for found, truth in zip(derive(linear, values, (), way), exact, strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), truth, rtol=BFLOAT16, atol=BFLOAT16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [5, SHORT + 1])
def test_attention_where_bfloat16_is_emulated(emulated: None, length: int, causal: bool) -> None:
    q, k, v = draw(*3 * [(2, 3, length, 8)], dtype=torch.bfloat16)
    mask = None if causal else (torch.arange(length) < torch.tensor([[length], [3]]))[:, None, None, :]
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask, is_causal=causal)
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            found = attention(q, k, v, mask, 0.0, causal=causal)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=BFLOAT16, atol=1e-5)


def test_attention_to_cached_keys_where_bfloat16_is_emulated(emulated: None) -> None:
    q, k, v, chance = draw((2, 3, 4, 8), (2, 3, 9, 8), (2, 3, 9, 8), (2, 4, 9), dtype=torch.bfloat16)
    own = torch.zeros(2, 4, 9).masked_fill(chance < -0.5, -torch.inf)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=own.double().unsqueeze(1))
    found = cached_attention(q, k, v, own.bfloat16().repeat_interleave(3, 0))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=BFLOAT16, atol=1e-5)


@pytest.mark.parametrize("has", [True, False])
def test_the_type_of_training_on_each_device(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.training.device.multiplies_bfloat16", lambda: has)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    cpu, gpu, expected = torch.device("cpu"), torch.device("cuda"), torch.bfloat16 if has else torch.float32
    for name in ("bf16", "bfloat16"):
        assert type_on(cpu, name) == expected and type_on(gpu, name) == torch.bfloat16
    assert type_on(gpu, "fp16") == type_on(gpu, "float16") == torch.float16
    assert type_on(gpu, Trainer.Config().precision) == expected
    assert type_on(cpu, "float32") == type_on(cpu, Trainer.Config().precision) == torch.float32
