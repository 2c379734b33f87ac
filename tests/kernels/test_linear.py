"""The fast linear map against torch's in float64, and its switch of precision."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.support.closeness import assert_near
from xrep.kernels import precision
from xrep.kernels.linear import PackedWeight, fused_linear, linear, linear_and_input
from xrep.kernels.precision import default_float32_products, fast_float32_is_exact, fast_products


@pytest.mark.parametrize("shape", [(31, 70), (5, 9, 70), (70,), (0, 70)], ids=str)
@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",), ("x",), ("weight", "bias"), ("no bias",)], ids=str)
def test_equals_torch_in_float64(shape: tuple[int, ...], frozen: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": shape, "weight": (45, 70), "bias": (45,)}
    given = {name: size for name, size in shapes.items() if f"no {name}" not in frozen}
    values = {name: torch.randn(size, generator=generator) for name, size in given.items()}
    gradient = torch.randn(*shape[:-1], 45, generator=generator)

    def run(function, dtype: torch.dtype) -> list[torch.Tensor | None]:
        leaves = {name: value.clone().to(dtype).requires_grad_(name not in frozen) for name, value in values.items()}
        result = function(leaves["x"], leaves["weight"], leaves.get("bias"))
        taken.append("FastLinear" in result.grad_fn.name())
        result.backward(gradient.to(dtype))
        return [result.detach(), *(leaf.grad for leaf in leaves.values())]

    taken: list[bool] = []
    found, exact = run(linear, torch.float32), run(F.linear, torch.float64)
    assert taken == [fast_float32_is_exact(), False]
    assert [x is None for x in found] == [x is None for x in exact]
    for mine, theirs in zip(found, exact, strict=True):
        if mine is not None:
            assert_near(mine, theirs)


@pytest.mark.skipif(not fast_float32_is_exact(), reason="torch's own linear is taken here")
def test_rows_may_lie_apart_and_there_is_a_second_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(6, 9, generator=generator).t(), torch.randn(6, 4, generator=generator).t()

    def run(function, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [tensor.to(dtype).detach().requires_grad_() for tensor in (x, weight)]
        gradients = torch.autograd.grad(function(*leaves).tanh().sum(), leaves, create_graph=True)
        return gradients + torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), leaves)

    for found, exact in zip(run(linear, torch.float32), run(F.linear, torch.float64), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-4)


def test_other_types_and_autocast_are_torchs() -> None:
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    assert torch.equal(linear(x.double(), weight.double()), F.linear(x.double(), weight.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(x, weight), F.linear(x, weight)) and linear(x, weight).dtype == torch.bfloat16


def test_precision_is_switched_for_float32_cpu_products_alone_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = "highest"
    assert torch.get_float32_matmul_precision() == before  # torch's default; every test before this one restored it
    seen = []
    for exact in (True, False):
        monkeypatch.setattr(precision, "fast_float32_is_exact", lambda exact=exact: exact)
        for tensor in (torch.zeros(1), torch.zeros(1).double(), torch.zeros(1, device="meta")):
            with pytest.raises(RuntimeError, match="inside"), fast_products(tensor):
                seen.append(torch.get_float32_matmul_precision())
                raise RuntimeError("inside")
            assert torch.get_float32_matmul_precision() == before
    assert seen == ["medium"] + 5 * [before]


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_fused_form_is_the_same_and_for_inference_alone(dtype: torch.dtype, gelu: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((3, 17, 40), (30, 40), (30,)))
    assert fused_linear(x, weight, bias, gelu) is None  # gradients are enabled
    with torch.no_grad():
        found = fused_linear(x, weight, bias, gelu)
        if found is None:
            pytest.skip("this CPU has no faster product")
        exact = F.linear(x.double(), weight.double(), bias.double())
        exact = F.gelu(exact) if gelu else exact
        assert_near(found, exact, 1e-5 if dtype == torch.float32 else 5e-3)
        assert fused_linear(x.double(), weight.double(), bias.double(), gelu) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_packed_weight_is_the_weight_until_it_changes(dtype: torch.dtype, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    table, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((70, 40), (64,)))
    packed, slack = PackedWeight.of(table[:64]), 1e-5 if dtype == torch.float32 else 5e-3
    assert PackedWeight.of(table.double()) is None
    if packed is None:
        pytest.skip("this CPU has no faster product")
    for rows in (1, 5, 33):
        x = torch.randn((rows, 3, 40), generator=generator).to(dtype)
        with torch.no_grad():
            found = fused_linear(x, table[:64], bias if with_bias else None, packed=packed)
        exact = F.linear(x.double(), table[:64].double(), bias.double() if with_bias else None)
        assert_near(found, exact, slack)
    assert packed.tensor(table) is packed.tensor(table[6:]) is None
    again, packed_again = copy.deepcopy((table[:64], packed))
    assert packed_again.tensor(again) is not None
    with default_float32_products(), torch.no_grad():
        assert fused_linear(x, table[:64], None, packed=packed) is None
    table[0] = 0
    assert packed.tensor(table[:64]) is None


@pytest.mark.parametrize("read", ["both", "result", "input"])
@pytest.mark.parametrize("frozen", [(), ("x",), ("weight", "bias")], ids=str)
def test_a_linear_map_adds_the_gradient_of_its_input(read: str, frozen: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator).double() for shape in ((2, 3, 7), (5, 7), (5,))]
    found, names = [], ("x", "weight", "bias")
    for function in (linear_and_input, lambda x, weight, bias: (F.linear(x, weight, bias), x)):
        leaves = [value.clone().requires_grad_(n not in frozen) for n, value in zip(names, values, strict=True)]
        result, again = function(*leaves)
        assert torch.equal(again, leaves[0])
        parts = {"result": result.square().sum(), "input": again.pow(3).sum()}
        objective = sum(part for name, part in parts.items() if read in (name, "both"))
        if objective.requires_grad:
            objective.backward()
        found.append([result.detach(), *(leaf.grad for leaf in leaves)])
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)
