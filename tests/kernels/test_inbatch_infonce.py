"""inbatch_infonce against the materialised formula of each direction, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tests.kernels.pairs import (
    SLACK,
    TILES,
    Results,
    check,
    check_equal,
    differentiate,
    error,
    make_ids,
    same_sentences,
    tiles,
    units_of,
)
from xrep.kernels import precision
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.paths import use_path

HALF = (torch.float16, torch.bfloat16)


def formula(x: Tensor, y: Tensor, tau: Tensor, same: Tensor, margin: float) -> Tensor:
    """Return losses [2, B] of both directions in the type of the inputs; ``same[i, j]`` pairs are not negatives."""
    logits = x @ y.T / tau
    positive = ((x * y).sum(1, keepdim=True) - margin) / tau
    sides = (logits.masked_fill(same, -math.inf), logits.T.masked_fill(same.T, -math.inf))
    return torch.stack([-torch.cat([positive, side], 1).log_softmax(1)[:, 0] for side in sides])


def kernel(x: Tensor, y: Tensor, tau: float | Tensor, **options) -> Tensor:
    return torch.stack(inbatch_infonce(x, y, tau, **options)[:2])


def make(
    batch: int, size: int = 12, *, tau: float = 0.0625, reach: float = 10.0, closeness: float = 0.5, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Return x and a near y [B, D] whose logits are at most ``reach``, and weights [2, B] of the losses."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, size, generator=generator)
    y = closeness * x + (1 - closeness) * torch.randn(batch, size, generator=generator)
    scale = (reach * tau / (x @ y.T).abs().max()).sqrt() if batch else 1.0
    return x * scale, y * scale, torch.randn(2, batch, generator=generator), generator


def compare(x: Tensor, y: Tensor, tau: Tensor, weights: Tensor, margin: float, ids: Tensor | None) -> None:
    """Compare the kernel with plain torch on the same numbers, which torch widens from half precision."""
    same = same_sentences(ids, len(x))
    wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)

    def run(function, dtype: torch.dtype) -> Results:
        return differentiate(
            lambda x, y, t: function(x.to(dtype), y.to(dtype), t), x.to(dtype), y.to(dtype), tau.to(dtype), weights
        )

    def plain(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return formula(x, y, t, same, margin)

    exact, single = run(plain, torch.float64), run(plain, wide)
    found = differentiate(lambda x, y, t: kernel(x, y, t, margin=margin, ids=ids), x, y, tau.to(wide), weights)
    assert found["loss"].dtype == wide and found["x"].dtype == x.dtype and found["y"].dtype == y.dtype
    slack = {"loss": SLACK[wide], "tau": SLACK[wide], "x": SLACK[x.dtype], "y": SLACK[y.dtype]}
    largest = float((x.double() @ y.double().T).abs().max())
    slopes = (float(y.abs().max()), float(x.abs().max()))
    check(found, single, exact, slack, units_of(exact, weights, tau, largest, slopes))
    beaten = inbatch_infonce(x, y, tau, margin=margin, ids=ids)[2:]
    logits = (x.double() @ y.double().T / tau.double()).masked_fill(same, -math.inf)
    positive = ((x.double() * y.double()).sum(1) - margin) / tau.double()
    for mine, side in zip(beaten, (logits, logits.T), strict=True):
        lead = positive - side.amax(1)
        clear = lead.abs() > 1e-4 * (1 + positive.abs())  # rounding decides between nearer ones
        assert torch.equal(mine[clear], lead[clear] > 0)


@settings(max_examples=60)
@given(
    batch=st.integers(1, 60),
    size=st.integers(1, 40),
    dtype=st.sampled_from([torch.float64, torch.float32, *HALF]),
    tau=st.sampled_from([1.0, 0.0625, 0.01]),
    margin=st.sampled_from([0.0, 0.25]),
    reach=st.sampled_from([1.0, 10.0, 100.0]),
    closeness=st.sampled_from([0.0, 0.5, 0.95]),
    columns=st.integers(0, 3),
    sentences=st.sampled_from([1, 3, 40]),
    tile=st.sampled_from(TILES),
    kept=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_equals_the_formula(
    batch, size, dtype, tau, margin, reach, closeness, columns, sentences, tile, kept, seed
) -> None:
    x, y, weights, generator = make(batch, size, tau=tau, reach=reach, closeness=closeness, seed=seed)
    ids = make_ids(batch, columns, sentences, generator) if columns else None
    with tiles(tile, kept):
        compare(x.to(dtype), y.to(dtype), torch.tensor(tau), weights, margin, ids)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_of_thousands(dtype: torch.dtype, kept: bool) -> None:
    x, y, weights, _ = make(45, 24, tau=0.01, reach=5000.0, closeness=0.9)
    with tiles((16, 7), kept):
        compare(x.to(dtype), y.to(dtype), torch.tensor(0.01), weights, 0.0, None)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tau", [1 / 59.9, 1 / 60.1], ids=["small", "large"])
def test_logits_on_both_sides_of_the_limit(tau: float, kept: bool) -> None:
    """Vectors of length 1 and their opposites have the largest and the smallest logits that can be."""
    x, _, weights, _ = make(40, 24, seed=3)
    x = torch.nn.functional.normalize(torch.cat([x[:10], -x[:10], x[20:]]), dim=1).double()
    y = torch.cat([x[10:20], x[:10], -x[20:]])
    with tiles((16, 9), kept):
        compare(x.float(), y.float(), torch.tensor(tau), weights, 0.0, None)


def test_a_loss_beside_huge_logits_is_not_rounded_away() -> None:
    # Each positive's logit is 2^20 and its negatives' 10 less: losses of 9.1e-5, where logits are 1/8 apart.
    x, y = torch.eye(3), torch.full((3, 3), 2.0**20 - 10).fill_diagonal_(2.0**20)
    assert kernel(x, y, 1.0).flatten().tolist() == pytest.approx(6 * [math.log1p(2 * math.exp(-10))], rel=1e-5)


@pytest.mark.parametrize("gap", [0.0, 19.0, 21.0, 30.0, 60.0])
def test_float64_losses_are_exact_however_large(gap: float) -> None:
    x, y = torch.eye(2, dtype=torch.float64), torch.tensor([[0.0, gap], [gap, 0.0]], dtype=torch.float64)
    assert kernel(x, y, 1.0).flatten().tolist() == pytest.approx(4 * [math.log1p(math.exp(gap))], rel=1e-14)


@pytest.mark.parametrize("dtypes", list(itertools.permutations([torch.float64, torch.float32, *HALF], 2)), ids=str)
def test_sides_of_different_types_lose_nothing(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    x, y, weights, _ = make(21, 9)
    with tiles((16, 5)):
        compare(x.to(dtypes[0]), y.to(dtypes[1]), torch.tensor(0.0625), weights, 0.0, None)


@settings(max_examples=25)
@given(
    batch=st.integers(0, 30),
    size=st.integers(1, 20),
    columns=st.integers(0, 2),
    sentences=st.sampled_from([1, 5, 40]),
    margin=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**20),
)
def test_the_reference_path_is_the_formula(batch, size, columns, sentences, margin, seed) -> None:
    x, y, weights, generator = make(batch, size, seed=seed)
    x, y, tau = x.double(), y.double(), torch.tensor(0.0625, dtype=torch.float64)
    ids = make_ids(batch, columns, sentences, generator) if columns else None
    same = same_sentences(ids, batch)
    exact = differentiate(lambda x, y, t: formula(x, y, t, same, margin), x, y, tau, weights)
    with use_path("reference"):
        found = differentiate(lambda x, y, t: kernel(x, y, t, margin=margin, ids=ids), x, y, tau, weights)
        correct = inbatch_infonce(x, y, tau, margin=margin, ids=ids)[2:]
    check_equal(found, exact)
    chunked = inbatch_infonce(x, y, tau, margin=margin, ids=ids)[2:]
    assert torch.equal(torch.stack(correct), torch.stack(chunked))


@pytest.mark.parametrize("forward_tile, backward_tile", [(TILES[0], TILES[1]), (TILES[3], TILES[0])], ids=str)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
@pytest.mark.parametrize("backward_path", ["chunked", "reference"])
def test_no_tile_or_path_changes_the_result(forward_tile, backward_tile, kept: bool, backward_path: str) -> None:
    x, y, weights, generator = make(37, 12)
    ids = make_ids(37, 2, 20, generator)
    x, y, tau = x.double(), y.double(), torch.tensor(0.0625, dtype=torch.float64)

    def run(forward, backward, path: str) -> Results:
        leaves = [tensor.clone().requires_grad_() for tensor in (x, y, tau)]
        with tiles(forward, kept):
            loss = kernel(*leaves, ids=ids)
        with tiles(backward, not kept), use_path(path):
            (loss * weights).sum().backward()
        return dict(zip(("loss", "x", "y", "tau"), (loss.detach(), *(leaf.grad for leaf in leaves)), strict=True))

    whole = run(TILES[-1], TILES[-1], "chunked")
    check_equal(run(forward_tile, backward_tile, backward_path), whole)


def test_correct_in_each_direction() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    y = torch.tensor([[2.0, 0.0], [0.6, 0.9], [0.0, 0.8]])
    # By hand: x·y is [[2, .6, 0], [0, .9, .8], [1.2, 1.08, .64]].
    result = inbatch_infonce(x, y, 0.05)
    assert result.forward_correct.tolist() == [True, True, False]
    assert result.backward_correct.tolist() == [True, False, False]
    closer = inbatch_infonce(x, y, 0.05, ids=torch.tensor([[0, 0], [1, 1], [2, 1]]))
    assert closer.forward_correct.tolist() == [True, True, False]
    assert closer.backward_correct.tolist() == [True, True, True]
    # With a margin of 1 only x0 finds its partner, and y0 does not: 2 - 1 against .6 and 1.2.
    strict = inbatch_infonce(x, y, 0.05, margin=1.0)
    assert strict.forward_correct.tolist() == [True, False, False] and not strict.backward_correct.any()


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_a_tie_is_not_correct(tile: tuple[int, int], path: str) -> None:
    # Whole numbers and a temperature of 1/4 make equal logits exactly equal: x·y is [[5, 5], [0, 5]].
    x, y = torch.tensor([[1.0, 2.0], [2.0, -1.0]]), torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    with tiles(tile), use_path(path):
        result = inbatch_infonce(x, y, 0.25)
    assert result.forward_correct.tolist() == [False, True] and result.backward_correct.tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_an_encoder_that_maps_all_to_one_vector_is_never_correct(dtype: torch.dtype) -> None:
    for seed in range(8):
        x, *_ = make(1, 300, seed=seed)
        result = inbatch_infonce(x.to(dtype).repeat(40, 1), x.to(dtype).repeat(40, 1), 0.07)
        assert not result.forward_correct.any() and not result.backward_correct.any()


@pytest.mark.parametrize("shape", [(), (1,), None], ids=["0-d", "one element", "a float"])
def test_kinds_of_temperature(shape: tuple[int, ...] | None) -> None:
    x, y, _, _ = make(9, 6)
    tau = 0.0625 if shape is None else torch.full(shape, 0.0625, requires_grad=True)
    x.requires_grad_()
    kernel(x, y, tau).sum().backward()
    exact = differentiate(lambda x, y, t: kernel(x, y, t), x, y, torch.tensor(0.0625), torch.ones(2, 9))
    assert torch.equal(x.grad, exact["x"])
    if shape is not None:
        assert tau.grad.shape == shape and tau.grad.sum() == exact["tau"] != 0


@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
@pytest.mark.parametrize("learning", [(True, True), (True, False), (False, True)], ids=["both", "x", "y"])
def test_one_direction_and_one_side_alone(direction: int, learning: tuple[bool, bool]) -> None:
    x, y, weights, _ = make(23, 8)
    same, x, y = same_sentences(None, 23), x.double(), y.double()
    weights = weights[direction].double()

    def run(function) -> list[Tensor | None]:
        leaves = [side.clone().requires_grad_(wanted) for side, wanted in zip((x, y), learning, strict=True)]
        (function(*leaves)[direction] * weights).sum().backward()
        return [leaf.grad for leaf in leaves]

    with tiles(TILES[0]):
        found = run(lambda x, y: inbatch_infonce(x, y, 0.0625))
    exact = run(lambda x, y: formula(x, y, torch.tensor(0.0625), same, 0.0))
    for mine, theirs in zip(found, exact, strict=True):
        assert mine is theirs is None or error(mine, theirs) < 1e-13
    assert [gradient is not None for gradient in found] == list(learning)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
def test_numerical_derivatives(kept: bool) -> None:
    x, y, _, generator = make(6, 4, tau=0.5, reach=4.0)
    ids = make_ids(6, 2, 5, generator)
    inputs = [tensor.double().requires_grad_() for tensor in (x, y, torch.tensor(0.5))]
    with tiles((4, 3), kept):
        assert torch.autograd.gradcheck(lambda x, y, t: kernel(x, y, t, margin=0.2, ids=ids), inputs)


def test_the_same_gradient_twice_but_no_gradient_of_it() -> None:
    x, y, weights, _ = make(11, 7)
    x.requires_grad_()
    loss = (kernel(x, y, 0.0625) * weights).sum()
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and first.any()
    # The sums are saved without their graph. A second derivative would be wrong, so there is none.
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
def test_neither_autocast_nor_the_fast_product_changes_it(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    x, y, weights, _ = make(60, 40)

    def run() -> Results:
        with tiles((64, 64), kept):
            return differentiate(lambda x, y, t: kernel(x, y, t), x, y, torch.tensor(0.0625), weights)

    usual = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = run()
    assert all(torch.equal(automatic[key], usual[key]) for key in usual)
    monkeypatch.setattr(precision, "_fast_allowed", False)
    slow = run()
    assert all(error(usual[key], slow[key].double()) < 1e-5 for key in usual)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
def test_similarities_are_whole_only_where_they_are_kept(kept: bool) -> None:
    x, y, _, _ = make(160, 4)
    x.requires_grad_()
    with tiles((32, 64), kept), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kernel(x, y, 0.0625).sum().backward()
    largest = max(event.self_cpu_memory_usage for event in profiled.events())
    assert largest == 4 * 160 * 160 if kept else 4 * 32 * 64 <= largest < 4 * 160 * 32


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    x, y, _, _ = make(160, 4)
    with tiles((32, 64)), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kernel(x, y, 0.0625)
        with torch.no_grad():
            kernel(x.requires_grad_(), y, 0.0625)
    assert max(event.self_cpu_memory_usage for event in profiled.events()) < 4 * 160 * 160


def test_no_pairs_at_all() -> None:
    x, y = torch.ones(0, 5, requires_grad=True), torch.ones(0, 5)
    result = inbatch_infonce(x, y, 0.05, ids=torch.zeros(0, 2, dtype=torch.int64))
    assert [len(field) for field in result] == 4 * [0]
    torch.cat(result[:2]).sum().backward()
    assert x.grad.shape == (0, 5)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 5)), ((3, 4), (2, 4)), ((4,), (4,))], ids=str)
def test_sides_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match=r"^[xy] must be \[B, D\]( with B = 3, D = 4)?, not \["):
        inbatch_infonce(torch.ones(shapes[0]), torch.ones(shapes[1]), 0.05)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (4, 1)], ids=str)
def test_ids_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ids"):
        inbatch_infonce(torch.ones(3, 4), torch.ones(3, 4), 0.05, ids=torch.zeros(shape, dtype=torch.int64))
