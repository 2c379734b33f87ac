"""What is particular to linear_cross_entropy; that it equals torch's is in the table of kernels."""

import importlib
import math
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.kernels.problems import Draw, blocks, check, differentiate
from tests.kernels.table import vocabulary
from tests.support.closeness import error
from xrep.kernels import precision, softmax
from xrep.kernels.linear_cross_entropy import linear_cross_entropy

module = importlib.import_module("xrep.kernels.linear_cross_entropy")  # the package has the function by this name


def test_one_word_and_large_vocabularies() -> None:
    for draw in (Draw(many=1), Draw(many=9000, batch=15, dtype=torch.float32, flag=True)):
        check(vocabulary(draw), draw)


def test_all_tokens_ignored_give_zeros() -> None:
    hidden, weight = torch.ones(5, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    found = linear_cross_entropy(hidden, weight, torch.full((5,), 2), label_smoothing=0.3, ignore_index=2)
    found.loss.backward()
    assert not found.loss and not found.nll.any() and not found.correct.any()
    assert not hidden.grad.any() and not weight.grad.any()


def test_correct_is_that_no_word_has_a_higher_logit() -> None:
    hidden, weight = torch.tensor([[1.0, 2.0]]).repeat(4, 1), torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    # By hand: the logits are 2, 2 and 0 for every token; word 2 is also the ignored one.
    target = torch.tensor([0, 1, 2, 2])
    correct = linear_cross_entropy(hidden, weight, target).correct
    bias = torch.tensor([0.0, 0.0, 5.0])
    ignored = linear_cross_entropy(hidden, weight, target, bias=bias, ignore_index=2).correct
    assert correct.tolist() == [True, True, False, False] and not ignored.any()


def test_a_bias_of_minus_infinity_leaves_words_out() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 6, generator=generator) for rows in (40, 30))
    target = torch.randint(20, (40,), generator=generator)
    bias = torch.zeros(30).masked_fill(torch.arange(30) >= 20, -math.inf)

    def kernel(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return linear_cross_entropy(hidden, weight, target, bias=bias)[:2]

    found = differentiate(kernel, {"hidden": hidden, "weight": weight, "bias": bias})
    few = differentiate(kernel, {"hidden": hidden, "weight": weight[:20], "bias": bias[:20]})
    assert not found["weight"][20:].any() and not found["bias"][20:].any()
    assert error(found["weight"][:20], few["weight"].double()) < 1e-6
    assert error(found["hidden"], few["hidden"].double()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_rounds_what_the_products_read_and_nothing_else(dtype: torch.dtype) -> None:
    problem = vocabulary(Draw(batch=15, dtype=torch.float32))
    exact = problem.exact()
    with torch.autocast("cpu", dtype=dtype), blocks("small"):
        found = problem.found()
        plain = differentiate(problem.formula, problem.inputs)
    problem.inputs |= {name: problem.inputs[name].to(dtype) for name in ("hidden", "weight")}
    of_rounded = problem.exact()
    assert all(found[name].dtype == torch.float32 for name in ("loss", "hidden", "weight", "bias"))
    assert error(found["loss"], of_rounded["loss"]) < 1e-6 and error(found["bias"], of_rounded["bias"]) < 1e-6
    for name in ("hidden", "weight"):
        assert error(found[name], exact[name]) <= error(plain[name], exact[name]) + torch.finfo(dtype).eps


def test_blocks_have_few_sizes() -> None:
    """The CPU library keeps a copy of the weight for each."""
    sizes: set[tuple[int, ...]] = set()
    multiply, weight = module.multiply, torch.ones(300, 4)

    def noted(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        sizes.add(tuple(a.shape))
        return multiply(a, b, out=out)

    with patch.object(module, "multiply", noted), patch.object(precision, "fast_float32_is_exact", lambda: True):
        for block in (1, 2**20):
            with patch.object(softmax, "VOCABULARY_LOGITS", block):
                for tokens in range(800, 1000, 9):
                    target = torch.zeros(tokens, dtype=torch.int64)
                    assert len(linear_cross_entropy(torch.ones(tokens, 4), weight, target).nll) == tokens
    assert len(sizes) <= 8 + 4, sizes
