"""linear_cross_entropy against torch's linear and cross_entropy, in float64 with all logits at once."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels import formulas
from tests.kernels.formulas import TOLERANCES, Results, assert_as_exact, differentiate, error, in_type
from xrep.kernels import chunked_steps, precision
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.kernels.paths import use_path

module = importlib.import_module("xrep.kernels.linear_cross_entropy")  # the package has the function by this name

DTYPES = st.sampled_from(list(TOLERANCES))
SUBSETS = [names for n in range(3) for names in itertools.combinations(("hidden", "weight", "bias"), n)]


@dataclass(frozen=True)
class Case:
    """A test case: ``logit`` is the largest possible logit (without the bias), ``block`` is VOCABULARY_LOGITS;
    with ``groups`` a bias has this number of rows."""

    tokens: int = 300
    size: int = 16
    words: int = 50
    block: int = 1
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype = torch.float32
    logit: float = 10.0
    bias: bool = True
    groups: int = 0
    smoothing: float = 0.0
    ignored: float = 0.2
    ignore_index: int = -100
    good: bool = False
    seed: int = 0


class Problem:
    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        hidden, weight = (
            F.normalize(torch.randn(n, case.size, generator=generator), dim=1) * math.sqrt(case.logit)
            for n in (case.tokens, case.words)
        )
        self.inputs = {"hidden": hidden.to(case.dtype), "weight": weight.to(case.weight_dtype)}
        if case.bias:
            shape = (case.groups, case.words) if case.groups else (case.words,)
            self.inputs["bias"] = torch.randn(shape, generator=generator).to(case.weight_dtype)
        self.groups = None
        if case.bias and case.groups:
            self.groups = torch.randint(case.groups, (case.tokens,), generator=generator)
        self.factor = 0.5 + torch.rand((), generator=generator)
        self.case = case
        self.target = torch.randint(case.words, (case.tokens,), generator=generator)
        if case.good:
            self.target = self.logits().argmax(1)
        self.ignore_index = case.ignore_index if case.ignore_index < 0 else case.ignore_index % case.words
        self.target[torch.rand(case.tokens, generator=generator) < case.ignored] = self.ignore_index
        self.result: CrossEntropy | None = None

    def logits(self) -> Tensor:
        hidden, weight = (self.inputs[name].double() for name in ("hidden", "weight"))
        bias = self.bias(self.inputs.get("bias"))
        return hidden @ weight.t() + (0 if bias is None else bias.double())

    def bias(self, given: Tensor | None) -> Tensor | None:
        """Return the bias of each token: the given one, or the one of its group."""
        return given if self.groups is None or given is None else given[self.groups]

    def kernel(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        options = {"label_smoothing": self.case.smoothing, "ignore_index": self.ignore_index}
        self.result = linear_cross_entropy(hidden, weight, self.target, bias=bias, groups=self.groups, **options)
        assert not self.result.nll.requires_grad and not self.result.correct.requires_grad
        return self.result.loss

    def plain(self, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return formulas.linear_cross_entropy(
            hidden, weight, self.bias(bias), self.target, self.case.smoothing, self.ignore_index
        )  # fmt: skip

    def expected(self) -> list[Results]:
        """Return results in the type of the hidden vectors, in float32 and in float64."""
        types = (self.case.dtype, torch.float32, torch.float64)
        return [differentiate(self.plain, in_type(self.inputs, dtype), self.factor) for dtype in types]

    def check_tokens(self) -> None:
        """Check the negative log-likelihood and the correctness of each token."""
        logits, ignored = self.logits(), self.target == self.ignore_index
        nll = F.cross_entropy(logits, self.target, reduction="none", ignore_index=self.ignore_index)
        assert error(self.result.nll, nll, self.case.logit) < 2e-6
        others = logits.scatter(1, self.target.masked_fill(ignored, 0)[:, None], -math.inf).amax(1)
        lead = logits.gather(1, self.target.masked_fill(ignored, 0)[:, None])[:, 0] - others
        decided = (lead.abs() > 1e-5 * self.case.logit) | ignored
        assert torch.equal(self.result.correct[decided], ((lead > 0) & ~ignored)[decided])


def check(case: Case) -> None:
    problem = Problem(case)
    expected = problem.expected()
    # The size of results after large logits, or the gradients of the target and of the other words, cancel.
    pull = math.sqrt(case.logit)
    smallest = {"loss": (1 + case.tokens) * case.logit / 10, "hidden": pull, "weight": pull, "bias": 1.0}
    with patch.object(chunked_steps, "VOCABULARY_LOGITS", case.block):
        found = differentiate(problem.kernel, problem.inputs, problem.factor)
    assert found["loss"].dtype == torch.float32
    assert all(found[name].dtype == tensor.dtype for name, tensor in problem.inputs.items())
    assert_as_exact(found, *expected, smallest=smallest)
    problem.check_tokens()
    with use_path("reference"):
        slow = differentiate(problem.kernel, problem.inputs, problem.factor)
    problem.check_tokens()
    for name, exact in expected[-1].items():
        assert error(slow[name], exact, smallest[name]) <= torch.finfo(slow[name].dtype).eps


@settings(max_examples=60)
@given(
    st.builds(
        Case,
        tokens=st.integers(0, 90) | st.sampled_from([128, 129, 256, 300]),
        size=st.integers(1, 40),
        words=st.integers(2, 300),
        block=st.sampled_from([1, 150 * 50, chunked_steps.VOCABULARY_LOGITS]),
        dtype=DTYPES,
        weight_dtype=DTYPES,
        logit=st.sampled_from([1.0, 10.0, 100.0]),
        bias=st.booleans(),
        groups=st.sampled_from([0, 0, 1, 7]),
        smoothing=st.sampled_from([0.0, 0.1, 1.0]) | st.floats(0, 1),
        ignored=st.sampled_from([0.0, 0.3, 1.0]),
        ignore_index=st.sampled_from([-100, -1, 0, 1, 299]),
        good=st.booleans(),
        seed=st.integers(0, 99),
    )
)
def test_equals_torch(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(smoothing=0.1),
        Case(tokens=0),
        Case(ignored=1.0),
        Case(ignore_index=0, ignored=0.5),
        Case(words=1),
        Case(groups=5),
        Case(tokens=128, size=1, words=2, ignored=0.0, groups=1),
    ],
    ids=[
        "several blocks",
        "no token",
        "all ignored",
        "padding is a word",
        "one word",
        "a bias for each sentence",
        "one bias of many",
    ],
)
def test_equals_torch_at_the_edges(case: Case) -> None:
    check(case)


def test_all_tokens_ignored_give_zeros() -> None:
    problem = Problem(Case(ignored=1.0, smoothing=0.3))
    found = differentiate(problem.kernel, problem.inputs, problem.factor)
    assert len(found) == 4 and all(not tensor.any() for tensor in found.values())
    assert not problem.result.nll.any() and not problem.result.correct.any()


@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_correct_is_that_no_word_has_a_higher_logit(path: str) -> None:
    hidden, weight = torch.tensor([[1.0, 2.0]]).repeat(4, 1), torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    # By hand: the logits are 2, 2 and 0 for every token; word 2 is also the ignored one.
    with use_path(path):
        correct = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2, 2])).correct
        bias = torch.tensor([0.0, 0.0, 5.0])
        ignored = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 2, 2]), bias=bias, ignore_index=2).correct
    assert correct.tolist() == [True, True, False, False] and not ignored.any()


def test_a_loss_beside_huge_logits_is_not_rounded_away() -> None:
    # The target's logit is 32768 and the other's 10 less: the loss, 4.5e-5, is below the spacing of the logits.
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[32768.0], [32758.0]])
    loss = linear_cross_entropy(hidden, weight, torch.tensor([0])).loss
    assert float(loss) == pytest.approx(math.log1p(math.exp(-10)), rel=1e-2)


def test_a_bias_of_minus_infinity_leaves_words_out() -> None:
    problem = Problem(Case(bias=False, ignored=0.0, words=30))
    problem.target %= 20
    few = {"hidden": problem.inputs["hidden"], "weight": problem.inputs["weight"][:20]}
    expected = differentiate(problem.kernel, few, problem.factor)
    bias = torch.zeros(30).masked_fill(torch.arange(30) >= 20, -math.inf)
    found = differentiate(problem.kernel, {**problem.inputs, "bias": bias}, problem.factor)
    assert not found["weight"][20:].any() and not found["bias"][20:].any()
    assert error(found["weight"][:20], expected["weight"].double()) < 1e-6
    assert error(found["hidden"], expected["hidden"].double()) < 1e-6


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("frozen", SUBSETS, ids=str)
def test_what_is_frozen_gets_no_gradient_and_changes_none(path: str, frozen: tuple[str, ...]) -> None:
    problem = Problem(Case(smoothing=0.1))
    with use_path(path):
        whole = differentiate(problem.kernel, problem.inputs, problem.factor)
        part = differentiate(problem.kernel, problem.inputs, problem.factor, frozen)
    assert len(part) == 4 - len(frozen) and all(torch.equal(part[name], whole[name]) for name in part)


@pytest.mark.parametrize(
    "wanted, products, sums",
    [((), 3, 0), (("hidden",), 6, 0), (("weight",), 4, 2), (("bias",), 3, 0), (("hidden", "weight", "bias"), 7, 2)],
    ids=str,
)
def test_no_product_is_made_that_no_gradient_needs(wanted: tuple[str, ...], products: int, sums: int) -> None:
    problem = Problem(Case(tokens=300, block=1))  # three blocks
    leaves = {name: tensor.requires_grad_(name in wanted) for name, tensor in problem.inputs.items()}
    with (
        patch.object(chunked_steps, "VOCABULARY_LOGITS", 1),
        patch.object(module, "multiply", wraps=module.multiply) as product,
        patch.object(module, "multiply_add", wraps=module.multiply_add) as product_sum,
    ):
        loss = problem.kernel(**leaves)
        assert loss.requires_grad == bool(wanted)
        assert (product.call_count, product_sum.call_count) == (products, sums)
        for context in (torch.no_grad(), torch.inference_mode()):
            product.reset_mock(), product_sum.reset_mock()
            with context:
                assert torch.equal(problem.kernel(**leaves), loss)
            assert (product.call_count, product_sum.call_count) == (3, 0)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.3}, {"ignore_index": 2}], ids=str)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_gradients_are_those_of_finite_differences(options: dict, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 4), (5, 4), (5,)][: 2 + with_bias]
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    target = torch.randint(5, (7,), generator=generator)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear_cross_entropy(hidden, weight, target, bias=bias, **options).loss

    assert torch.autograd.gradcheck(loss, leaves)


def test_a_weight_that_is_also_the_embedding_gets_both_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    embedding, mix = torch.randn(30, 8, generator=generator), torch.randn(8, 8, generator=generator)
    tokens, target = torch.randint(30, (2, 40), generator=generator)

    def run(function, dtype: torch.dtype) -> Tensor:
        weight = embedding.clone().to(dtype).requires_grad_()
        function(torch.tanh(F.embedding(tokens, weight) @ mix.to(dtype)), weight).backward()
        return weight.grad

    found = run(lambda hidden, weight: linear_cross_entropy(hidden, weight, target).loss, torch.float32)
    exact = run(
        lambda hidden, weight: formulas.linear_cross_entropy(hidden, weight, None, target, 0.0, -100), torch.float64
    )
    assert error(found, exact) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_rounds_what_the_products_read_and_nothing_else(dtype: torch.dtype) -> None:
    problem = Problem(Case(smoothing=0.1, block=1))
    rounded = {**problem.inputs, **in_type({name: problem.inputs[name] for name in ("hidden", "weight")}, dtype)}
    exact = differentiate(problem.plain, in_type(problem.inputs, torch.float64), problem.factor)
    exact_of_rounded = differentiate(problem.plain, in_type(rounded, torch.float64), problem.factor)
    with torch.autocast("cpu", dtype=dtype):
        found = differentiate(problem.kernel, problem.inputs, problem.factor)
        plain = differentiate(problem.plain, problem.inputs, problem.factor)
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    assert error(found["loss"], exact_of_rounded["loss"]) < 1e-6
    assert error(found["bias"], exact_of_rounded["bias"]) < 1e-6
    for name, truth in exact.items():
        assert 0 < error(found[name], truth) <= error(plain[name], truth) + TOLERANCES[dtype]


def test_neither_autocast_in_float64_nor_the_fast_product_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(Case(smoothing=0.1))
    double = in_type(problem.inputs, torch.float64)
    usual = differentiate(problem.kernel, double, problem.factor)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = differentiate(problem.kernel, double, problem.factor)
    assert all(torch.equal(automatic[name], usual[name]) for name in usual)
    fast = differentiate(problem.kernel, problem.inputs, problem.factor)
    monkeypatch.setattr(precision, "_fast_allowed", False)
    slow = differentiate(problem.kernel, problem.inputs, problem.factor)
    assert all(error(fast[name], slow[name].double()) < 1e-5 for name in fast)


def test_rows_may_lie_apart_in_memory() -> None:
    problem = Problem(Case(smoothing=0.1))
    apart = {"hidden": problem.inputs["hidden"].t().contiguous().t(), "weight": problem.inputs["weight"].flip(1)}
    apart["weight"], apart["bias"] = apart["weight"].t().contiguous().t().flip(1), problem.inputs["bias"]
    found, expected = (differentiate(problem.kernel, inputs, problem.factor) for inputs in (apart, problem.inputs))
    assert all(error(found[name], expected[name].double()) < 1e-6 for name in expected)


def test_no_array_of_tokens_by_words_exists() -> None:
    problem = Problem(Case(tokens=600, size=4, words=300, smoothing=0.1))
    leaves = {name: tensor.requires_grad_() for name, tensor in problem.inputs.items()}
    with patch.object(chunked_steps, "VOCABULARY_LOGITS", 1):
        largest = formulas.largest_allocation(lambda: problem.kernel(**leaves).backward())
    assert largest == 128 * 300 * 4


def test_blocks_have_few_sizes() -> None:
    """The CPU library keeps a copy of the weight for each."""
    sizes: set[tuple[int, ...]] = set()
    multiply = module.multiply

    def noted(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        sizes.add(tuple(a.shape))
        return multiply(a, b, out=out)

    with patch.object(module, "multiply", noted), patch.object(precision, "fast_float32_is_exact", lambda: True):
        for block in (1, 2**20):
            with patch.object(chunked_steps, "VOCABULARY_LOGITS", block):
                for tokens in range(800, 1000, 3):
                    problem = Problem(Case(tokens=tokens, size=4, words=300))
                    hidden, weight, bias = problem.inputs.values()
                    assert len(linear_cross_entropy(hidden, weight, problem.target, bias=bias).nll) == tokens
    assert len(sizes) <= 8 + 4, sizes


def test_there_is_no_second_derivative() -> None:
    # The gradient is saved without its graph. A second derivative would be wrong.
    problem = Problem(Case(tokens=9))
    leaves = {name: tensor.requires_grad_() for name, tensor in problem.inputs.items()}
    (gradient,) = torch.autograd.grad(problem.kernel(**leaves), leaves["hidden"], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


BAD = {
    "width": ({"weight": (5, 7)}, r"weight must be \[V, D\] with D = 8, not \[5, 7\]"),
    "batch of sentences": ({"hidden": (2, 3, 8), "target": (2, 3)}, r"hidden must be \[N, D\], not \[2, 3, 8\]"),
    "fewer targets": ({"target": (2,)}, r"target must be \[N\] with N = 3, not \[2\]"),
    "bias": ({"bias": (4,)}, r"bias must be \[V\] with V = 5, not \[4\]"),
    "groups alone": ({"groups": (3,)}, "groups choose rows of bias"),
    "one bias for groups": ({"bias": (5,), "groups": (3,)}, r"bias must be \[G, V\] with V = 5, not \[5\]"),
    "fewer groups": ({"bias": (2, 5), "groups": (2,)}, r"groups must be \[N\] with N = 3, not \[2\]"),
    "no groups": ({"bias": (2, 5)}, r"bias must be \[V\] with V = 5, not \[2, 5\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_shapes_that_do_not_fit_are_named(name: str) -> None:
    shapes, message = BAD[name]
    shapes = {"hidden": (3, 8), "weight": (5, 8), "target": (3,), **shapes}
    arguments = {
        key: torch.zeros(shape).long() if key in ("target", "groups") else torch.ones(shape)
        for key, shape in shapes.items()
    }
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**arguments)


@pytest.mark.parametrize("smoothing", [-0.1, 1.1, math.nan])
def test_smoothing_is_a_share(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\], not"):
        linear_cross_entropy(torch.ones(1, 2), torch.ones(3, 2), torch.tensor([0]), label_smoothing=smoothing)


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("target", [-1, 3], ids=str)
def test_a_target_that_is_no_word_is_an_error(path: str, target: int) -> None:
    hidden, weight, targets = torch.ones(4, 2), torch.ones(3, 2), torch.tensor([0, target, -100, 2])
    with use_path(path):
        with pytest.raises(ValueError, match=rf"target {target} is neither in \[0, 3\) nor the ignore_index -100"):
            linear_cross_entropy(hidden, weight, targets)
        linear_cross_entropy(hidden, weight, targets.where(targets != -100, target), ignore_index=target)
