"""What is particular to the losses between queries, positives and negatives."""

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from tests.kernels.problems import HALF, QUEUE, Draw, blocks, check
from tests.kernels.table import KERNELS, queue
from tests.support.closeness import error
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.judge import Judge
from xrep.kernels.pairs import add_own_negatives
from xrep.kernels.queue_infonce import InfoNCE, against_both, queue_infonce


def vectors(seed: int, *shapes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return unit vectors [N, 8]."""
    generator = torch.Generator().manual_seed(seed)
    return [normalize(torch.randn(rows, 8, generator=generator), dim=1).to(dtype) for rows in shapes]


@pytest.mark.parametrize("rows", [1, 4096, 4098, 9001])
@pytest.mark.parametrize("whole", [(0, 0), QUEUE.WHOLE], ids=["blocks", "whole"])
def test_queues_in_blocks_of_the_usual_size(rows: int, whole: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QUEUE, "WHOLE", whole)
    draw = Draw(many=rows, size=24, columns=2, sentences=300, dtype=torch.float32)
    check(queue(draw), draw)


@pytest.mark.parametrize("block", ["small", "whole"])
def test_a_query_whose_negatives_are_all_masked_is_alone_in_that(block: str) -> None:
    query, positive, keys = vectors(0, 3, 3, 20)
    ids = {"query_ids": torch.tensor([[1], [0], [2]]), "queue_ids": torch.zeros(20, 1, dtype=torch.int64)}
    with blocks(block):
        loss, whole = (queue_infonce(query, positive, keys, 0.1, **given).loss for given in (ids, {}))
    assert loss[1] == 0 and torch.equal(loss[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("block", ["small", "whole"])
def test_many_small_negatives_are_not_rounded_away_beside_the_positive(block: str) -> None:
    # 500 negatives, each exp(-25) beside 1: below the spacing of float32 there.
    query, share = torch.ones(1, 1, requires_grad=True), 500 * math.exp(-25)
    with blocks(block):
        loss = queue_infonce(query, torch.full((1, 1), 25.0), torch.zeros(500, 1), 1.0).loss
    loss.sum().backward()
    assert loss.item() == pytest.approx(share, rel=1e-5)
    assert query.grad is not None and query.grad.item() == pytest.approx(-25 * share, rel=1e-5)


@pytest.mark.parametrize("block", ["small", "whole"])
def test_the_queue_gets_no_gradient_and_may_be_overwritten_before_the_backward_pass(block: str) -> None:
    query, positive, keys = vectors(0, 4, 4, 50)
    query.requires_grad_()
    with blocks(block):
        (expected,) = torch.autograd.grad(queue_infonce(query, positive, keys, 0.05).loss.sum(), query)
        loss = queue_infonce(query, positive, keys, 0.05).loss
        keys.copy_(keys.flip(0))
        assert torch.equal(torch.autograd.grad(loss.sum(), query)[0], expected)
        keys.requires_grad_()
        queue_infonce(query, positive, keys, 0.05).loss.sum().backward()
    assert keys.grad is None


def test_losses_against_two_queues_that_are_large_and_tiny() -> None:
    pairs = torch.tensor([[1e-9, 2e-9], [300.0, 299.0], [300.0, 0.0], [0.0, 0.0], [1e-9, 500.0]])
    one, other = (InfoNCE(loss, torch.ones(5, dtype=torch.bool)) for loss in pairs.T)
    expected = torch.log1p(sum(torch.expm1(loss.double()) for loss in pairs.T)).float()
    torch.testing.assert_close(against_both(one, other).loss, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("block", ["small", "whole"])
def test_a_tie_is_not_correct(block: str) -> None:
    # Whole numbers and a temperature of 1/4 make equal logits exactly equal: x·y is [[5, 5], [0, 5]].
    x, y = torch.tensor([[1.0, 2.0], [2.0, -1.0]]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    with blocks(block):
        result = inbatch_infonce(x, y, 0.25)
    assert result.forward_correct.tolist() == [False, True] and result.backward_correct.tolist() == [True, False]


def test_a_tie_is_found_with_products_that_round_as_those_of_gpus_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(x: Tensor, weight: Tensor) -> Tensor:
        """Read TF32: float32 with 10 bits of fraction."""
        rounded = [
            ((each.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for each in (x, weight)
        ]
        return linear(*rounded)

    monkeypatch.setattr(importlib.import_module("xrep.kernels.hard_infonce"), "linear", product)
    for seed in range(8):
        vector = normalize(torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)), dim=1).repeat(40, 1)
        assert not torch.stack(hard_infonce(vector, vector, 0.05, exponent=0.5)[2:4]).any()


@pytest.mark.parametrize("half", HALF, ids=str)
def test_a_tie_with_the_queue_is_found_in_half_precision_as_on_gpus(half: torch.dtype, monkeypatch) -> None:
    def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.mm(a.float(), b.float(), out=out)

    monkeypatch.setattr(QUEUE, "operand_dtype", lambda tensor: half)
    monkeypatch.setattr(QUEUE, "multiply", multiply)
    monkeypatch.setattr(QUEUE, "multiply_add", lambda total, a, b: total.add_(multiply(a, b)))
    for seed in range(4):
        vector = normalize(torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)), dim=1).repeat(40, 1)
        assert not queue_infonce(vector, vector, vector, 0.05).correct.any()
        found, plain = (queue_infonce(vector, vector, vector, 0.05, judge=one).loss for one in (Judge(0.0), None))
        torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("of_queue", [torch.float32, torch.bfloat16], ids=str)
def test_a_repetition_of_the_positive_is_not_above_it(guided: bool, relative: bool, of_queue: torch.dtype) -> None:
    """Its similarity is the same, but comes from another product, and in a queue it may have been rounded, so rounding
    alone would leave out every second."""
    x, noise = vectors(0, 100, 100)
    y = normalize(x + 0.01 * noise, dim=1)
    x, y = x.repeat(2, 1), y.repeat(2, 1)
    judge = Judge(0.0, relative, torch.stack([x, y], 1) if guided else None)
    queue, queue_guide = y.to(of_queue), y.to(of_queue) if guided else None
    assert torch.equal(inbatch_infonce(x, y, 0.1, judge=judge).forward, inbatch_infonce(x, y, 0.1).forward)
    found = queue_infonce(x, y, queue, 0.1, judge=judge, queue_guide=queue_guide).loss
    torch.testing.assert_close(found, queue_infonce(x, y, queue, 0.1).loss)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["absolute", "relative"])
@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_a_guide_judges_as_the_gist_loss_of_sentence_transformers(strategy: str, margin: float, monkeypatch) -> None:
    gist = pytest.importorskip("sentence_transformers.sentence_transformer.losses.gist_embed")
    x, y, of_x, noise = vectors(0, 20, 20, 20, 20)
    guides = of_x, normalize(0.3 * of_x + noise, dim=1)  # some negatives are nearer than the positives
    theirs = object.__new__(gist.GISTEmbedLoss)
    torch.nn.Module.__init__(theirs)
    monkeypatch.setattr(gist, "embed_columns", lambda vectors, features: vectors)
    settings = {"margin_strategy": strategy, "margin": margin, "temperature": 0.1, "must_retokenize": False}
    off = dict.fromkeys(("contrast_anchors", "contrast_positives", "gather_across_devices"), False)
    parts = {"similarity_fct": torch.nn.CosineSimilarity(-1), "cross_entropy_loss": torch.nn.CrossEntropyLoss()}
    for name, value in {**settings, **off, **parts, "model": (x, y), "guide": guides}.items():
        setattr(theirs, name, value)
    judge = Judge(-margin, strategy == "relative", torch.stack(guides, 1))
    ours, plain = (inbatch_infonce(x, y, 0.1, judge=one).forward.mean() for one in (judge, None))
    torch.testing.assert_close(ours, theirs([{}, {}], torch.zeros(0)), rtol=1e-5, atol=0)
    assert plain > 1.05 * ours


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_duplicates_among_hard_negatives(dtype: torch.dtype, share: float) -> None:
    problem = KERNELS["hard"](draw := Draw(batch=7, size=8, share=share, dtype=dtype))
    x, y = problem.inputs["x"], problem.inputs["y"]
    x[1], y[2], y[3], x[4] = x[0], y[0], x[0], y[0]  # gradients of the query x0 and of its positive y0, on either side
    check(problem, draw)
    assert not problem.kernel(**problem.inputs)[1][0, :2].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_where_query_and_positive_are_one_vector_every_negative_becomes_it(dtype: torch.dtype) -> None:
    (x,) = vectors(0, 6, dtype=dtype)
    result = hard_infonce(x.requires_grad_(), x.detach(), 0.05, exponent=0.9)
    assert error(torch.stack(result[:2]).detach(), torch.full((2, 6), math.log(11)).double()) < 1e-5
    assert not torch.stack(result[4:]).any() and all(result.forward_correct)
    sum(result[:2], torch.zeros(6)).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_queries_without_negatives_of_their_own_do_not_change() -> None:
    x, y, negative = vectors(0, 6, 6, 0)
    before = inbatch_infonce(x, y, 0.2)
    given = before.forward, before.forward_correct, x, y, negative, torch.zeros(0, dtype=torch.int64), 0.2
    assert all(map(torch.equal, add_own_negatives(*given), before[::2]))


def test_a_small_loss_keeps_its_digits() -> None:
    """The loss of a pair that is far ahead is below the precision of 1 in float32."""
    x = torch.eye(2, 5)
    before = inbatch_infonce(x, x, 0.05)
    given = before.forward, before.forward_correct, x, x, torch.zeros(1, 5), torch.tensor([0]), 0.05
    loss, _ = add_own_negatives(*given)
    assert loss[0].item() == pytest.approx(2 * loss[1].item(), rel=1e-5) and 0 < loss[1].item() < 1e-8
