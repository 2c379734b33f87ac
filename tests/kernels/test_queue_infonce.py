"""queue_infonce against equation 2 in float64, with everything materialised."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels import formulas
from tests.kernels.formulas import TOLERANCES, Results, assert_as_exact, differentiate, error, in_type
from xrep.kernels import chunked_steps, precision
from xrep.kernels.paths import use_path
from xrep.kernels.queue_infonce import queue_infonce

module = importlib.import_module("xrep.kernels.queue_infonce")  # the package has the function by this name

BLOCK = chunked_steps.QUEUE_ROWS
DTYPES = st.sampled_from(list(TOLERANCES))


def unit_rows(generator: torch.Generator, rows: int, size: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(rows, size, generator=generator), dim=1)


def make(batch: int, size: int, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, positive and queue of length 1."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(unit_rows(generator, n, size) for n in (batch, batch, rows))


@dataclass(frozen=True)
class Case:
    """A test case: ``logit`` is the largest logit, ``columns`` and ``sentences`` describe the ids (0: none)."""

    batch: int = 20
    size: int = 24
    rows: int = 500
    block: int = BLOCK
    dtype: torch.dtype = torch.float32
    queue_dtype: torch.dtype = torch.float32
    temperature: float = 0.07
    logit: float = 10.0
    margin: float = 0.0
    filled: float = 1.0
    filled_is_tensor: bool = False
    columns: int = 0
    sentences: int = 30
    near: bool = False
    copies: int = 0
    seed: int = 0


class Problem:
    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case.seed)
        scale = math.sqrt(case.logit * case.temperature)
        query, positive, queue = (
            unit_rows(generator, n, case.size) * scale for n in (case.batch, case.batch, case.rows)
        )
        if case.near:
            positive = query + 0.2 * positive
        copied = torch.randint(case.rows + 1, (case.copies,), generator=generator).clamp(max=case.rows - 1)
        if case.rows:
            queue[copied] = positive[torch.arange(case.copies) % case.batch]
        self.case, self.filled = case, round(case.filled * case.rows)
        self.inputs = {**in_type({"query": query, "positive": positive}, case.dtype)}
        self.inputs["tau"] = torch.tensor(case.temperature)
        self.queue = queue.to(case.queue_dtype)
        self.queue[self.filled :] = float("nan")
        self.factor = torch.randn(case.batch, generator=generator)
        ids = [torch.randint(case.sentences, (n, case.columns), generator=generator) for n in (case.batch, case.rows)]
        self.ids = dict(zip(("query_ids", "queue_ids"), ids, strict=True)) if case.columns else {}
        self.same = (ids[0][:, None] == ids[1][None, : self.filled]).any(2)
        self.correct = torch.empty(0)

    def kernel(self, query: Tensor, positive: Tensor, tau: Tensor) -> Tensor:
        valid = torch.tensor(self.filled, dtype=torch.int32) if self.case.filled_is_tensor else self.filled
        result = queue_infonce(query, positive, self.queue, tau, valid=valid, margin=self.case.margin, **self.ids)
        assert not result.correct.requires_grad and result.loss.dtype == torch.float32
        self.correct = result.correct
        return result.loss

    def plain(self, query: Tensor, positive: Tensor, tau: Tensor) -> Tensor:
        queue = self.queue[: self.filled].to(query.dtype)
        return formulas.queue_infonce(query, positive, queue, tau, self.same, self.case.margin)

    def expected(self) -> list[Results]:
        """Return results in the type of the inputs, in float32 and in float64."""
        types = (self.case.dtype, torch.float32, torch.float64)
        return [differentiate(self.plain, in_type(self.inputs, dtype), self.factor) for dtype in types]

    def lead(self) -> Tensor:
        """Return the lead of each query's positive over the negatives, in float64."""
        query, positive = self.inputs["query"].double(), self.inputs["positive"].double()
        negatives = (query @ self.queue[: self.filled].double().T).masked_fill(self.same, -math.inf)
        best = torch.cat([negatives, torch.full((len(query), 1), -math.inf)], 1).amax(1)
        return ((query * positive).sum(1) - self.case.margin - best) / self.case.temperature


def check(case: Case) -> Results:
    problem = Problem(case)
    expected = problem.expected()
    lead = problem.lead()
    decided = lead.abs() > 1e-5 * case.logit
    with patch.object(chunked_steps, "QUEUE_ROWS", case.block):
        found = differentiate(problem.kernel, problem.inputs, problem.factor)
    # Results may be small differences of large logits, or of the gradients of the positive and of the negatives.
    largest_logits = float(problem.factor.abs().sum()) * case.logit
    pull = float(problem.factor.abs().max()) * math.sqrt(case.logit / case.temperature)
    smallest = {"loss": case.logit / 10, "query": pull, "tau": largest_logits / case.temperature}
    assert_as_exact(found, *expected, smallest=smallest)
    assert torch.equal(problem.correct[decided], (lead > 0)[decided])
    assert all(found[name].dtype == tensor.dtype for name, tensor in problem.inputs.items())
    with use_path("reference"):
        slow = differentiate(problem.kernel, problem.inputs, problem.factor)
    for name, exact in expected[-1].items():
        assert error(slow[name], exact, smallest.get(name, 1e-3)) <= torch.finfo(slow[name].dtype).eps
    return found


@settings(max_examples=60)
@given(
    st.builds(
        Case,
        batch=st.integers(1, 40),
        size=st.integers(1, 70),
        rows=st.integers(0, 700),
        block=st.sampled_from([7, 64, 129, BLOCK]),
        dtype=DTYPES,
        queue_dtype=DTYPES,
        temperature=st.sampled_from([0.01, 0.05, 0.2, 1.0]),
        logit=st.sampled_from([1.0, 10.0, 100.0]),
        margin=st.sampled_from([0.0, 0.1, 0.3]),
        filled=st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]) | st.floats(0, 1),
        filled_is_tensor=st.booleans(),
        columns=st.integers(0, 3),
        sentences=st.sampled_from([1, 8, 300]),
        near=st.booleans(),
        copies=st.integers(0, 9),
        seed=st.integers(0, 99),
    )
)
def test_equals_equation_2(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "case",
    [Case(rows=BLOCK), Case(rows=2 * BLOCK + 809), Case(rows=BLOCK + 900, filled=(BLOCK + 1) / (BLOCK + 900)),
     Case(batch=1, rows=1), Case(rows=2 * BLOCK + 9, temperature=0.01, logit=30000.0, near=True),
     Case(rows=BLOCK + 77, columns=2, queue_dtype=torch.bfloat16)],
    ids=["one block", "three blocks", "one row in the second block", "one negative", "huge logits", "ids"],
)  # fmt: skip
def test_equals_equation_2_with_blocks_of_the_usual_size(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    "case", [Case(rows=0), Case(filled=0.0), Case(columns=1, sentences=1)], ids=["no queue", "empty", "all masked"]
)
def test_without_a_negative_loss_and_gradients_are_zero(case: Case) -> None:
    assert all(not tensor.any() for tensor in check(case).values())


def test_a_query_whose_negatives_are_all_masked_is_alone_in_that() -> None:
    query, positive, queue = make(3, 8, 20)
    ids = {"query_ids": torch.tensor([[1], [0], [2]]), "queue_ids": torch.zeros(20, 1, dtype=torch.int64)}
    loss = queue_infonce(query, positive, queue, 0.1, **ids).loss
    whole = queue_infonce(query, positive, queue, 0.1).loss
    assert loss[1] == 0 and torch.equal(loss[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_an_encoder_with_one_vector_for_everything_is_never_correct(path: str, dtype: torch.dtype) -> None:
    for seed in range(5):
        everything = make(1, 768, 1, seed)[0].to(dtype).expand(40, 768)
        with use_path(path):
            assert not queue_infonce(everything, everything, everything, 0.05).correct.any()
            assert queue_infonce(everything, everything, everything, 0.05, margin=-0.01).correct.all()


def test_a_batch_may_be_empty() -> None:
    query, positive, queue = make(0, 8, 20)
    query.requires_grad_()
    loss, correct = queue_infonce(query, positive, queue, 0.1)
    loss.sum().backward()
    assert loss.shape == correct.shape == (0,) and query.grad.shape == (0, 8)


def test_a_loss_beside_huge_logits_is_not_rounded_away() -> None:
    # The positive's logit is 32768 and the negative's 10 less: the loss, 4.5e-5, is below the spacing of the logits.
    query = torch.tensor([[1.0, 1.0]])
    loss = queue_infonce(query, torch.tensor([[32768.0, 0.0]]), torch.tensor([[32758.0, 0.0]]), 1.0).loss
    assert float(loss) == pytest.approx(math.log1p(math.exp(-10)), rel=1e-2)


def test_many_small_negatives_are_not_rounded_away_beside_the_positive() -> None:
    # 500 negatives, each exp(-25) beside 1: below the spacing of float32 there.
    query, queue = torch.ones(1, 1, requires_grad=True), torch.zeros(500, 1)
    with patch.object(chunked_steps, "QUEUE_ROWS", 7):
        loss = queue_infonce(query, torch.full((1, 1), 25.0), queue, 1.0).loss
    loss.sum().backward()
    share = 500 * math.exp(-25)
    assert loss.detach().item() == pytest.approx(share, rel=1e-5) and query.grad.item() == pytest.approx(
        -25 * share, rel=1e-5
    )


def test_the_loss_is_nearer_to_float64_than_that_of_the_whole_array() -> None:
    query, positive, queue = make(16, 16, 2**17)
    tau, same = torch.tensor(0.07), torch.zeros(16, 2**17, dtype=torch.bool)
    tensors = (query, positive, queue, tau)
    exact = formulas.queue_infonce(*(tensor.double() for tensor in tensors), same, 0.0)
    single = formulas.queue_infonce(*tensors, same, 0.0)
    found = queue_infonce(*tensors).loss
    assert (found - exact).abs().mean() < (single - exact).abs().mean() / 3


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize("options", [{}, {"margin": 0.2, "valid": 13}, {"ids": True}], ids=str)
def test_gradients_are_those_of_finite_differences(shape: tuple[int, ...], options: dict) -> None:
    query, positive, queue = (tensor.double() for tensor in make(5, 6, 19))
    generator = torch.Generator().manual_seed(1)
    if options.get("ids"):
        ids = [torch.randint(6, (n, 2), generator=generator) for n in (5, 19)]
        options = {"query_ids": ids[0], "queue_ids": ids[1]}
    leaves = [tensor.requires_grad_() for tensor in (query, positive, torch.full(shape, 0.3, dtype=torch.float64))]
    with patch.object(chunked_steps, "QUEUE_ROWS", 7):
        assert torch.autograd.gradcheck(lambda q, k, t: queue_infonce(q, k, queue, t, **options).loss, leaves)


@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_inputs_of_float64_and_a_queue_of_another_type(path: str) -> None:
    query, positive, queue = make(6, 8, 30)
    same = torch.zeros(6, 30, dtype=torch.bool)
    tau = torch.tensor(0.1, dtype=torch.float64)
    exact = formulas.queue_infonce(query.double(), positive.double(), queue.double(), tau, same, 0.0)
    with use_path(path):
        double = queue_infonce(query.double(), positive.double(), queue, 0.1).loss
        single = queue_infonce(query, positive, queue.double(), 0.1).loss
    assert double.dtype == torch.float64 and error(double, exact) < 1e-12
    assert single.dtype == torch.float32 and error(single, exact) < 1e-6


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize(
    "frozen",
    [("positive", "tau"), ("query", "tau"), ("query", "positive"), ("query",), ("positive",), ("tau",)],
    ids=str,
)
def test_what_is_frozen_gets_no_gradient_and_changes_none(path: str, frozen: tuple[str, ...]) -> None:
    problem = Problem(Case(margin=0.1))
    with use_path(path):
        whole = differentiate(problem.kernel, problem.inputs, problem.factor)
        part = differentiate(problem.kernel, problem.inputs, problem.factor, frozen)
    assert len(part) == 4 - len(frozen) and all(torch.equal(part[name], whole[name]) for name in part)


@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_the_queue_gets_no_gradient_and_may_be_overwritten_before_the_backward_pass(path: str) -> None:
    query, positive, queue = make(4, 8, 50)
    query.requires_grad_()
    if path == "chunked":
        queue_infonce(query, positive, queue, 0.05).loss.sum().backward()
        expected, query.grad = query.grad, None
        loss = queue_infonce(query, positive, queue, 0.05).loss
        queue.copy_(queue.flip(0))
        loss.sum().backward()
        assert torch.equal(query.grad, expected)
    queue.requires_grad_()
    with use_path(path):
        queue_infonce(query, positive, queue, 0.05).loss.sum().backward()
    assert queue.grad is None


def test_the_second_product_is_skipped_where_nothing_is_differentiated() -> None:
    query, positive, queue = make(4, 8, 50)
    with patch.object(module, "multiply_add", wraps=module.multiply_add) as product:
        plain = queue_infonce(query, positive, queue, 0.05)
        query.requires_grad_()
        with torch.no_grad():
            without = queue_infonce(query, positive, queue, 0.05)
        with torch.inference_mode():
            inferred = queue_infonce(query, positive, queue, 0.05)
        assert product.call_count == 0
        usual = queue_infonce(query, positive, queue, 0.05)
        assert product.call_count == 1
    assert usual.loss.requires_grad and not without.loss.requires_grad
    assert all(torch.equal(result.loss, usual.loss) for result in (plain, without, inferred))


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_neither_autocast_nor_the_fast_product_changes_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(Case(batch=33, size=40, rows=BLOCK + 600, temperature=0.05, dtype=dtype))
    usual = differentiate(problem.kernel, problem.inputs, problem.factor)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = differentiate(problem.kernel, problem.inputs, problem.factor)
    assert all(torch.equal(automatic[key], usual[key]) for key in usual)
    if dtype == torch.float32:
        monkeypatch.setattr(precision, "_fast_allowed", False)
        slow = differentiate(problem.kernel, problem.inputs, problem.factor)
        assert all(error(usual[key], slow[key].double()) < 1e-5 for key in usual)


def test_rows_may_lie_apart_in_memory() -> None:
    query, positive, queue = make(9, 16, 100)
    factor = torch.randn(9, generator=torch.Generator().manual_seed(0))
    results = []
    for spread in (lambda tensor: tensor, lambda tensor: tensor.t().contiguous().t()):
        leaves = [spread(tensor).detach().requires_grad_() for tensor in (query, positive)]
        loss = queue_infonce(*leaves, spread(queue), 0.1).loss
        (loss * factor).sum().backward()
        results.append((loss.detach(), *(leaf.grad for leaf in leaves)))
    assert all(error(apart, together.double()) < 1e-6 for together, apart in zip(*results, strict=True))


def test_no_array_of_queries_by_queue_exists() -> None:
    query, positive, queue = make(64, 4, 10 * BLOCK)
    query.requires_grad_()
    largest = formulas.largest_allocation(lambda: queue_infonce(query, positive, queue, 0.05).loss.sum().backward())
    assert largest == 64 * BLOCK * 4


def test_there_is_no_second_derivative() -> None:
    # The softmax is saved without its graph. A second derivative would be wrong.
    query, positive, queue = make(4, 8, 50)
    query.requires_grad_(), positive.requires_grad_()
    (gradient,) = torch.autograd.grad(queue_infonce(query, positive, queue, 0.05).loss.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


BAD = {
    "width of the queue": ({"queue": (50, 7)}, r"queue must be \[K, D\] with D = 8, not \[50, 7\]"),
    "fewer positives": ({"positive": (3, 8)}, r"positive must be \[B, D\] with B = 4, D = 8, not \[3, 8\]"),
    "one vector": ({"query": (8,), "positive": (8,)}, r"query must be \[B, D\], not \[8\]"),
    "flat queue": ({"queue": (50,)}, r"queue must be \[K, D\] with D = 8, not \[50\]"),
    "only ids of queries": ({"query_ids": (4, 2)}, "both or neither"),
    "only ids of the queue": ({"queue_ids": (50, 2)}, "both or neither"),
    "too few ids": ({"query_ids": (4, 2), "queue_ids": (49, 2)}, r"queue_ids must be \[K, C\] with K = 50, C = 2, not"),
    "other columns": ({"query_ids": (4, 1), "queue_ids": (50, 2)}, r"with K = 50, C = 1, not \[50, 2\]"),
    "flat ids": ({"query_ids": (4,), "queue_ids": (50,)}, r"query_ids must be \[B, C\] with B = 4, not \[4\]"),
    "a temperature for each": ({"temperature": (8,)}, r"temperature must be one number, not \[8\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_shapes_that_do_not_fit_are_named(name: str) -> None:
    shapes, message = BAD[name]
    given_shapes = {"query": (4, 8), "positive": (4, 8), "queue": (50, 8), "temperature": (), **shapes}
    arguments = {
        key: torch.ones(shape, dtype=torch.int64 if key.endswith("ids") else torch.float32)
        for key, shape in given_shapes.items()
    }
    with pytest.raises(ValueError, match=message):
        queue_infonce(**arguments)


@pytest.mark.parametrize("path", ["chunked", "reference"])
@pytest.mark.parametrize("valid", [-1, 51, torch.tensor(51)], ids=str)
def test_more_valid_rows_than_there_are_is_an_error(path: str, valid: int | Tensor) -> None:
    query, positive, queue = make(4, 8, 50)
    with use_path(path), pytest.raises(ValueError, match=r"\[0, 50\], not be (-1|51)"):
        queue_infonce(query, positive, queue, 0.1, valid=valid)
