"""Features of the CPU, layers with a torch without oneDNN, and the type in which each device computes."""

import platform
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.test_linear import draw
from xrep.kernels import precision
from xrep.kernels.linear import linear
from xrep.models.device import to_device
from xrep.nn.layers import Linear, feedforward
from xrep.training.numbers import type_on
from xrep.training.trainer import Trainer

BFLOAT16 = 2.0**-8
"""The largest relative error of a number that is rounded to bfloat16."""
QUESTIONS = (precision.fast_float32_is_exact, precision.has_fused_linear)


@pytest.fixture
def asked_anew() -> Iterator[Callable[[], None]]:
    """Clear the cached answers before and after a test, and when they are asked to be."""

    def clear() -> None:
        for question in QUESTIONS:
            question.cache_clear()

    clear()
    yield clear
    clear()


def answers() -> list[bool]:
    fused = [precision.has_fused_linear(dtype) for dtype in (torch.float32, torch.bfloat16)]
    return [precision.fast_float32_is_exact(), precision.multiplies_bfloat16(), *fused]


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


@pytest.mark.parametrize("machine, library, available, native, expected", [
    ("aarch64", {}, True, False, [False, False, False]),
    ("x86_64", {}, False, False, [False, False, False]),
    ("aarch64", {"_is_mkldnn_bf16_supported": lambda: True, "_linear_pointwise": refuses}, True, False,
     [True, False, False]),
    ("x86_64", {"_is_mkldnn_bf16_supported": lambda: True, "_linear_pointwise": refuses}, True, True,
     [True, False, False]),
    ("x86_64", {"_is_mkldnn_bf16_supported": lambda: True, "_linear_pointwise": refuses}, True, False, 3 * [False]),
    ("aarch64", {"_is_mkldnn_bf16_supported": lambda: False, "_linear_pointwise": refuses}, True, False, 3 * [False]),
    ("x86_64", {"_is_mkldnn_bf16_supported": lambda: False, "_linear_pointwise": wrong}, True, True, 3 * [False]),
])  # fmt: skip
def test_other_machines_and_other_builds_of_torch(
    machine, library, available, native, expected, asked_anew, monkeypatch
):
    """Elsewhere than on x86, oneDNN's word on bfloat16 is taken. A fused product that is wrong is not taken."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
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


@pytest.mark.parametrize("has", [True, False])
def test_the_type_on_each_device(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xrep.kernels.precision.multiplies_bfloat16", lambda: has)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    cpu, gpu, expected = torch.device("cpu"), torch.device("cuda"), torch.bfloat16 if has else torch.float32
    for name in ("bf16", "bfloat16"):
        assert type_on(cpu, name) == expected and type_on(gpu, name) == torch.bfloat16
    assert type_on(gpu, "fp16") == type_on(gpu, "float16") == torch.float16
    assert type_on(gpu, Trainer.Config().precision) == expected
    assert type_on(cpu, "float32") == type_on(cpu, Trainer.Config().precision) == torch.float32
    model = to_device(torch.nn.Linear(3, 2), "cpu", "bfloat16")
    assert model.weight.dtype == expected, "a loaded model"
