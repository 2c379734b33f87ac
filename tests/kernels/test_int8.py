"""The int8 product against a float64 reference of the same quantisation."""

import pytest
import torch

from tests.support.closeness import error
from xrep.kernels import int8
from xrep.kernels.int8 import Int8Product, quantise, quantise_rows, rows_in_cache
from xrep.kernels.precision import multiplies_int8

pytestmark = pytest.mark.skipif(not multiplies_int8(), reason="torch has no exact int8 product for this processor")


def rounded(x):
    """Return rows in float64, each rounded to 255 steps between its smallest and its largest number."""
    smallest, largest = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    width = largest - smallest
    return ((x - smallest) * (255 / (width + 1e-8))).round().double() * (width / 255).double() + smallest.double()


@pytest.mark.parametrize("rows, inputs, outputs", [(0, 8, 5), (1, 8, 3), (5, 31, 7), (257, 64, 33), (1000, 48, 1536)])
def test_results_are_those_of_the_reference(rows, inputs, outputs, monkeypatch):
    torch.manual_seed(rows)
    weight, bias, x = torch.randn(outputs, inputs), torch.randn(outputs), 3 * torch.randn(rows, inputs)
    x[:1], weight[0] = x[:1].abs(), 2.0  # the sums with the largest integers
    integers, scale = quantise(weight)
    product = Int8Product(integers, scale, bias)
    expected = rounded(x) @ integers.double().t() * scale.double() + bias.double() if rows else torch.zeros(0, outputs)
    assert rows > rows_in_cache(outputs) or outputs < 1536  # several blocks in the last case
    for found, truth in ((product(x), expected), (product(x, gelu=True), torch.nn.functional.gelu(expected))):
        assert error(found, truth, float(expected.abs().max()) if rows else 1.0) < 3e-6
    whole = product(x, gelu=True)
    monkeypatch.setattr(int8, "_OUTPUTS", 16)
    assert torch.equal(Int8Product(integers, scale, bias)(x, gelu=True), whole), "computed in parts"


def test_weights_are_rounded_to_steps_of_their_row():
    weight = torch.tensor([[0.63, -0.314, 0.0], [-126.0, 63.0, 1.0], [0.0, 0.0, 0.0]])
    integers, scale = quantise(weight)
    assert integers.tolist() == [[85, -42, 0], [-85, 42, 1], [0, 0, 0]]
    assert scale[:2].tolist() == pytest.approx([0.944 / 127, 189 / 127])
    draws = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0))
    assert quantise(draws)[0].int().abs().unflatten(1, (-1, 2)).sum(2).max() <= 128


def test_inputs_are_rounded_between_their_smallest_and_largest_number():
    x = torch.tensor([[0.0, 1.0, 254.6, 255.0], [-3.0, -3.0, -3.0, -3.0], [-0.17, 0.1, 0.2, 0.34]])
    integers, scale, smallest = quantise_rows(x)
    assert integers[:2, :4].tolist() == [[0, 1, 255, 255], [0, 0, 0, 0]]
    assert integers.shape == (3, 12) and scale.flatten().tolist() == pytest.approx([1.0, 0.0, 0.002])
    assert smallest.flatten().tolist() == pytest.approx([0.0, -3.0, -0.17])
    assert (integers[:, :4] * scale + smallest - rounded(x)).abs().max() < 1e-6


def test_a_row_does_not_depend_on_the_others():
    torch.manual_seed(0)
    product, x = Int8Product(*quantise(torch.randn(20, 40)), torch.randn(20)), torch.randn(50, 40)
    others = torch.cat([x[:1], 1000 * x[1:]])
    assert torch.equal(product(x)[0], product(others)[0]) and torch.equal(product(x[:1])[0], product(x)[0])
    many = torch.cat([x, others])  # for which another product of torch is used
    assert len(x) <= int8._FEW < len(many) and torch.equal(product(many)[:50], product(x))


def test_zeros_give_the_bias_and_what_is_not_finite_stays_so():
    weight, bias, x = torch.randn(5, 8), torch.randn(5), torch.zeros(3, 8)
    x[1], x[2, 3] = float("nan"), float("inf")
    found = Int8Product(*quantise(weight), bias)(x)
    assert torch.equal(found[0], bias) and not found[1:].isfinite().any()
    weight[3], broken = float("nan"), bias.clone()
    broken[3] = float("nan")
    assert Int8Product(*quantise(weight), bias)(torch.ones(3, 8)).isnan().all()
    assert Int8Product(*quantise(torch.ones(5, 8)), broken)(torch.ones(3, 8)).isnan().all()
