"""``linear_cross_entropy`` with a weight for each token."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.formulas import differentiate, in_type
from tests.kernels.test_linear_cross_entropy import Case, Problem
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.paths import use_path


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_multiply_the_loss_of_each_token(path: str, dtype: torch.dtype) -> None:
    problem = Problem(Case(tokens=300, words=9000, size=16, groups=3, dtype=dtype, weight_dtype=dtype, ignored=0.0))
    weights = torch.rand(300)

    def kernel(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        options = {"groups": problem.groups, "label_smoothing": 0.1, "weights": weights}
        with use_path(path):
            return linear_cross_entropy(hidden, weight, problem.target, bias=bias, **options).loss

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = hidden @ weight.t() + bias[problem.groups]
        return F.cross_entropy(logits, problem.target, reduction="none", label_smoothing=0.1) @ weights.double()

    found = differentiate(kernel, problem.inputs, problem.factor)
    expected = differentiate(plain, in_type(problem.inputs, torch.float64), problem.factor)
    for mine, theirs in zip(found.values(), expected.values(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=3e-5 * float(theirs.abs().max()))
