"""The products of layers against torch's in float64, and their switch of precision."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.closeness import assert_near
from xrep.kernels import precision
from xrep.kernels.linear import PackedWeight, fused_linear, linear, linear_and_input
from xrep.kernels.precision import fast_float32_is_exact, fast_products

TYPES = [torch.float32, torch.bfloat16]


def draw(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def derive(function: Callable[..., Tensor], values: list[Tensor], frozen: tuple[int, ...], way: Tensor) -> list:
    """Return the result and the gradients of its product with ``way``; None for what is frozen."""
    leaves = [value.detach().requires_grad_(number not in frozen) for number, value in enumerate(values)]
    result = function(*leaves)
    result.backward(way.to(result.dtype))
    return [result.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("shape", [(31, 70), (5, 9, 70), (70,), (0, 70)], ids=str)
@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (1, 2)], ids=str)
def test_equals_torch_in_float64(shape: tuple[int, ...], frozen: tuple[int, ...]) -> None:
    values = draw(shape, (45, 70), (45,))
    apart = [side.mT for side in draw((70, 31), (70, 45))]
    for given in (values, values[:2], apart):
        (way,) = draw((*given[0].shape[:-1], 45))
        found = derive(linear, given, frozen, way)
        exact = derive(F.linear, [value.double() for value in given], frozen, way)
        for mine, theirs in zip(found, exact, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert_near(mine, theirs)
    leaf = values[0].requires_grad_()
    assert ("FastLinear" in linear(leaf, values[1]).grad_fn.name()) == fast_float32_is_exact()


@pytest.mark.skipif(not fast_float32_is_exact(), reason="torch's own linear is taken here")
def test_there_is_a_second_derivative() -> None:
    found = []
    for function, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        leaves = [tensor.requires_grad_() for tensor in draw((9, 6), (4, 6), dtype=dtype)]
        gradients = torch.autograd.grad(function(*leaves).tanh().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), leaves))
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)


def test_other_types_and_autocast_are_torchs() -> None:
    x, weight = draw((4, 8), (3, 8))
    assert torch.equal(linear(x.double(), weight.double()), F.linear(x.double(), weight.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(x, weight), F.linear(x, weight)) and linear(x, weight).dtype == torch.bfloat16


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_fused_form_is_the_same_and_for_inference_alone(dtype: torch.dtype, gelu: bool) -> None:
    x, weight, bias = draw((3, 17, 40), (30, 40), (30,), dtype=dtype)
    assert fused_linear(x, weight, bias, gelu) is None  # gradients are enabled
    with torch.no_grad():
        found = fused_linear(x, weight, bias, gelu)
        if found is None:
            pytest.skip("this CPU has no faster product")
        exact = F.linear(x.double(), weight.double(), bias.double())
        assert_near(found, F.gelu(exact) if gelu else exact, 1e-5 if dtype == torch.float32 else 5e-3)
        assert fused_linear(x.double(), weight.double(), bias.double(), gelu) is None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_packed_weight_is_the_weight_until_it_changes(dtype: torch.dtype, with_bias: bool) -> None:
    table, bias = draw((70, 40), (64,), dtype=dtype)
    packed = PackedWeight.of(table[:64])
    assert PackedWeight.of(table.double()) is None
    if packed is None:
        pytest.skip("this CPU has no faster product")
    given = bias if with_bias else None
    for rows in (1, 33):
        (x,) = draw((rows, 3, 40), dtype=dtype)
        with torch.no_grad():
            found = fused_linear(x, table[:64], given, packed=packed)
        exact = F.linear(x.double(), table[:64].double(), None if given is None else given.double())
        assert_near(found, exact, 1e-5 if dtype == torch.float32 else 5e-3)
    assert packed.tensor(table) is packed.tensor(table[6:]) is None
    again, packed_again = copy.deepcopy((table[:64], packed))
    assert packed_again.tensor(again) is not None
    table[0] = 0
    assert packed.tensor(table[:64]) is None


@pytest.mark.parametrize("read", ["both", "result", "input"])
@pytest.mark.parametrize("frozen", [(), (0,), (1, 2)], ids=str)
def test_a_linear_map_adds_the_gradient_of_its_input(read: str, frozen: tuple[int, ...]) -> None:
    values, found = draw((2, 3, 7), (5, 7), (5,), dtype=torch.float64), []
    for function in (linear_and_input, lambda x, weight, bias: (F.linear(x, weight, bias), x)):
        leaves = [value.clone().requires_grad_(number not in frozen) for number, value in enumerate(values)]
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
    with pytest.raises(RuntimeError, match="inside"), precision.allow_tf32(torch.device("cuda")):
        assert torch.backends.cuda.matmul.allow_tf32
        raise RuntimeError("inside")
    with precision.allow_tf32(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
