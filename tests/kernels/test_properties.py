"""The table of kernels against what holds for each of them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import profile

from tests.kernels.problems import HALF, Draw, blocks, check, differentiate
from tests.kernels.problems import QUEUE as OF_QUEUE
from tests.kernels.table import KERNELS
from tests.support.closeness import error
from xrep.kernels import pairs, precision, softmax
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.pairs import add_own_negatives
from xrep.kernels.queue_infonce import queue_infonce
from xrep.kernels.triplet_infonce import triplet_infonce

DTYPES = [torch.float64, torch.float32, *HALF]
PAIRS = ("queue", "in-batch", "hard", "triplets")
every_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.mark.slow
@every_kernel
@settings(max_examples=30)
@given(
    draw=st.builds(
        Draw,
        batch=st.integers(1, 14) | st.sampled_from([1, 30]),
        size=st.integers(3, 24),
        many=st.integers(12, 90),
        tau=st.sampled_from([1.0, 0.0625, 0.01]),
        reach=st.sampled_from([1.0, 10.0, 100.0]),
        share=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
        columns=st.integers(0, 3),
        sentences=st.sampled_from([1, 5, 40]),
        near=st.sampled_from([0.0, 0.5, 0.95]),
        flag=st.booleans(),
        judge=st.sampled_from(["", "absolute", "relative", "guide"]),
        dtype=st.sampled_from(DTYPES),
        seed=st.integers(0, 2**20),
    ),
    block=st.sampled_from(["small", "large", "whole"]),
)
def test_equals_the_formula(name: str, draw: Draw, block: str) -> None:
    with blocks(block):
        check(KERNELS[name](draw), draw)


@pytest.mark.parametrize("others", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["in-batch", "hard", "triplets", "own negatives", "queue"])
def test_sides_of_different_types_lose_nothing(name: str, others: torch.dtype) -> None:
    for dtype in DTYPES:
        draw = Draw(batch=17, dtype=dtype, other=others)
        with blocks("large"):
            check(KERNELS[name](draw), draw)


@pytest.mark.parametrize("name", ["queue", "in-batch", "triplets", "own negatives"])
@pytest.mark.parametrize("block", ["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_of_thousands(name: str, block: str, dtype: torch.dtype) -> None:
    draw = Draw(batch=20, size=24, tau=0.01, reach=5000.0, near=0.9, dtype=dtype)
    with blocks(block):
        check(KERNELS[name](draw), draw)


@every_kernel
@pytest.mark.parametrize("block", ["large", "whole"])
def test_what_is_frozen_gets_no_gradient_and_changes_none(name: str, block: str) -> None:
    problem = KERNELS[name](Draw(batch=8, dtype=torch.float32))
    with blocks(block):
        whole = problem.found()
        for one in problem.inputs:
            for frozen in ([one], [other for other in problem.inputs if other != one]):
                part = problem.found(frozen)
                assert part.keys() == whole.keys() - set(frozen)
                for key, result in part.items():
                    assert error(result.double(), whole[key].double()) < 1e-6, key
        with torch.no_grad():
            assert torch.equal(problem.kernel(**problem.inputs)[0], whole["loss"])


@every_kernel
@pytest.mark.parametrize("block", ["small", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_autocast_nor_the_fast_product_changes_it(
    name: str, block: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = KERNELS[name](Draw(batch=30, size=40, many=90, dtype=dtype, tau=0.0625))
    with blocks(block):
        usual = problem.found()
        if name != "vocabulary":  # its products read autocast's type, as those of other linear layers
            automatic = differentiate(torch.autocast("cpu", torch.bfloat16)(problem.kernel), problem.inputs)
            assert all(torch.equal(automatic[key], usual[key]) for key in usual)
        monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: False)
        slow = problem.found()
    assert all(error(usual[key].double(), slow[key].double()) < 1e-5 for key in usual if key != "correct")


@every_kernel
def test_rows_may_lie_apart_in_memory(name: str) -> None:
    problem = KERNELS[name](Draw(batch=9, columns=2, dtype=torch.float32))
    together = problem.found()
    problem.inputs = {key: x.t().contiguous().t() if x.dim() == 2 else x for key, x in problem.inputs.items()}
    for key, apart in problem.found().items():
        assert error(apart.double(), together[key].double()) < 1e-5, key


@every_kernel
def test_an_empty_batch_has_results_and_gradients_of_no_rows(name: str) -> None:
    problem = KERNELS[name](Draw(batch=0, columns=2, dtype=torch.float32))
    found = problem.found()
    assert not found["loss"].any() and not found["correct"].numel()
    assert all(found[key].shape == tensor.shape and not found[key].any() for key, tensor in problem.inputs.items())


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("block", ["small", "whole"])
def test_without_a_negative_loss_and_gradients_are_zero(name: str, block: str) -> None:
    for draw in (Draw(columns=3, sentences=1), Draw(batch=1, many=0)):
        if name == "triplets" and draw.batch == 1:  # it has a negative of its own
            continue
        problem = KERNELS[name](draw)
        with blocks(block):
            found = problem.found()
        assert found["correct"].all()
        assert all(not found[key].any() for key in ("loss", *problem.inputs))
        assert (found.get("result 0", torch.ones(1)) == 1).all(), "no negative was made harder"


def largest_allocation(function: Callable[[], object]) -> int:
    """Return the bytes of the largest tensor that is made."""
    with profile(profile_memory=True) as profiler:
        function()
    return max(event.self_cpu_memory_usage for event in profiler.events())


WHOLE = {"queue": 30 * 3000, "in-batch": 120 * 120, "hard": 160 * 160, "triplets": 120 * 240, "vocabulary": 600 * 600}
"""Numbers in the array of all similarities."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_array_is_never_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"queue": (30, 3000), "vocabulary": (30, 600), "hard": (80, 0)}.get(name, (120, 0))
    problem = KERNELS[name](Draw(batch=sizes[0], many=sizes[1], size=4, dtype=torch.float32))
    monkeypatch.setattr(pairs, "WHOLE", dict.fromkeys(pairs.WHOLE, 0))
    monkeypatch.setattr(pairs, "BLOCK", dict.fromkeys(pairs.BLOCK, 1000))
    monkeypatch.setattr(softmax, "queue_rows", lambda queries: 100)
    monkeypatch.setattr(softmax, "VOCABULARY_LOGITS", 1)
    monkeypatch.setattr(OF_QUEUE, "WHOLE", (0, 0))
    assert largest_allocation(problem.found) < 4 * WHOLE[name] / 4


@pytest.mark.parametrize("name", ["queue", "two queues", "vocabulary"])
def test_the_gradient_can_be_asked_for_twice_but_has_no_derivative(name: str) -> None:
    # What the gradient needs is saved without its graph. A second derivative would be wrong, so there is none.
    problem = KERNELS[name](Draw())
    leaves = {key: tensor.requires_grad_() for key, tensor in problem.inputs.items()}
    with blocks("large"):
        loss, one = problem.kernel(**leaves)[0].sum(), next(iter(leaves.values()))
        first = torch.autograd.grad(loss, one, retain_graph=True)[0]
    with blocks("small"):
        second = torch.autograd.grad(loss, one, create_graph=True)[0]
    assert error(second, first.detach()) < 1e-12 and first.any()
    with pytest.raises(RuntimeError, match="once_differentiable|does not require grad"):
        second.sum().backward()


@pytest.mark.parametrize("block", ["small", "whole"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_encoder_with_one_vector_for_everything_is_never_correct(block: str, dtype: torch.dtype) -> None:
    for seed in range(2):
        vector = torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)).to(dtype)
        x = torch.nn.functional.normalize(vector, dim=1).repeat(40, 1)
        with blocks(block):
            found = [*inbatch_infonce(x, x, 0.07)[2:], *hard_infonce(x, x, 0.07, exponent=0.5)[2:4]]
            found += [queue_infonce(x, x, queue, 0.05).correct for queue in (x, x.bfloat16())]
            found += [triplet_infonce(x, x, x, 0.05).correct]
            assert not torch.stack(found).any()


@pytest.mark.parametrize("shape", [(), (1,), None], ids=str)
@pytest.mark.parametrize("name", ["queue", "in-batch", "hard", "triplets", "own negatives"])
def test_kinds_of_temperature(name: str, shape: tuple[int, ...] | None) -> None:
    problem = KERNELS[name](Draw(dtype=torch.float32))
    expected = problem.found()
    tau = 0.3 if shape is None else torch.full(shape, 0.3, requires_grad=True)
    loss = problem.kernel(**problem.inputs | {"tau": tau})[0]
    assert torch.equal(loss.detach(), expected["loss"])
    if isinstance(tau, Tensor):
        weights = torch.randn(loss.shape, generator=torch.Generator().manual_seed(5))
        (loss * weights).sum().backward()
        assert tau.grad is not None and tau.grad.shape == shape and tau.grad.sum() == expected["tau"] != 0


def test_a_loss_beside_huge_logits_is_not_rounded_away() -> None:
    # The logit of each positive is huge and those of the negatives are 10 less: the loss is below their spacing.
    query, small = torch.tensor([[1.0, 1.0]]), pytest.approx(math.log1p(math.exp(-10)), rel=1e-2)
    assert (
        queue_infonce(query, torch.tensor([[32768.0, 0.0]]), torch.tensor([[32758.0, 0.0]]), 1.0).loss.item() == small
    )
    weight = torch.tensor([[32768.0], [32758.0]])
    assert linear_cross_entropy(torch.ones(1, 1), weight, torch.tensor([0])).loss.item() == small
    x, y = torch.eye(3), torch.full((3, 3), 2.0**20 - 10).fill_diagonal_(2.0**20)
    for side in inbatch_infonce(x, y, 1.0)[:2]:
        assert side.tolist() == pytest.approx(3 * [math.log1p(2 * math.exp(-10))], rel=1e-5)


@pytest.mark.parametrize("gap", [0.0, 19.0, 21.0, 30.0, 60.0])
def test_float64_losses_are_exact_however_large(gap: float) -> None:
    x, y = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, gap], [gap, 0.0]], dtype=torch.float64)
    for side in inbatch_infonce(x, y, 1.0)[:2]:
        assert side.tolist() == pytest.approx(2 * [math.log1p(math.exp(gap))], rel=1e-14)


PLAIN = {"temperature": 0.1}
QUEUE = {"query": (4, 8), "positive": (4, 8), "queue": (50, 8), **PLAIN}
PAIR = {"x": (3, 4), "y": (3, 4), **PLAIN}
TRIPLET = {"anchor": (4, 6), "positive": (4, 6), "negative": (4, 6), **PLAIN}
OWN = {"loss": (5,), "correct": torch.ones(5).bool(), "query": (5, 8), "positive": (5, 8), "negative": (6, 8), **PLAIN}
WORDS = {"hidden": (3, 8), "weight": (5, 8), "target": (3,)}
BAD = [
    (queue_infonce, QUEUE, {"queue": (50, 7)}, "queue must be [K, D] with D = 8, not [50, 7]"),
    (queue_infonce, QUEUE, {"positive": (3, 8)}, "positive must be [B, D] with B = 4, D = 8, not [3, 8]"),
    (queue_infonce, QUEUE, {"temperature": (8,)}, "temperature must be one number, not [8]"),
    (queue_infonce, QUEUE, {"query_ids": (4, 2)}, "give both or neither"),
    (queue_infonce, QUEUE, {"valid": 51}, "[0, 50], not be 51"),
    (hard_infonce, PAIR, {"exponent": 0.5, "ids": (3,)}, "ids must be [B, I] with B = 3, not [3]"),
    (triplet_infonce, TRIPLET, {"ids": (3, 3)}, "ids must be [B, 3] with B = 4, not [3, 3]"),
    (add_own_negatives, OWN, {"rows": (5,)}, "rows must be [N] with N = 6, not [5]"),
    (linear_cross_entropy, WORDS, {"weight": (5, 7)}, "weight must be [V, D] with D = 8, not [5, 7]"),
    (linear_cross_entropy, WORDS, {"groups": (3,)}, "groups choose rows of bias"),
    (linear_cross_entropy, WORDS, {"label_smoothing": 1.1}, "label_smoothing must lie in [0, 1], not 1.1"),
]


@pytest.mark.parametrize("kernel, usual, given, message", BAD)
def test_what_does_not_fit_is_named(kernel: Callable, usual: dict, given: dict, message: str) -> None:
    integers = ("ids", "query_ids", "queue_ids", "rows", "target", "groups")
    arguments = {name: torch.ones(x) if isinstance(x, tuple) else x for name, x in {**usual, **given}.items()}
    arguments = {name: x.long() if name in integers else x for name, x in arguments.items()}
    with pytest.raises(ValueError) as error:
        kernel(**arguments)
    assert message in str(error.value)
