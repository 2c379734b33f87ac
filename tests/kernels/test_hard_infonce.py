"""hard_infonce against HiCTL's equations 2, 3, 5 and 6 with every harder negative built, in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

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
from xrep.kernels.hard_infonce import HardInfoNCE, hard_infonce
from xrep.kernels.paths import use_path

HALF = (torch.float16, torch.bfloat16)

HARD_SLACK = SLACK | {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 3e-2}
"""The closed form loses digits if k̂ is much shorter than q, which happens in few dimensions; and the gradient of a
cosine has more terms than that of a dot product, each rounded to the type of the vectors."""


class Formula(NamedTuple):
    """The results of both directions: losses, mean λ, the positive's lead over the best plain negative [2, B]; the
    numbers of negatives that are farther than the positive and that are not."""

    losses: Tensor
    interpolation: Tensor
    lead: Tensor
    farther: int
    nearer: int


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


def unit_vectors(side: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in half precision stay so after normalisation."""
    if dtype in HALF:
        return torch.nn.functional.normalize(side.float(), dim=1).to(dtype).to(side.dtype)
    return side / side.norm(dim=1, keepdim=True)


def formula(x: Tensor, y: Tensor, tau: Tensor, same: Tensor, exponent: float) -> Formula:
    """Compute in the type of the inputs; ``same[i, j]``: pairs i and j (also i and i) are not negatives."""
    losses, means, leads, farther = [], [], [], [0, 0]
    for queries, keys in ((x, y), (y, x)):
        for i, (q, positive) in enumerate(zip(queries, keys, strict=True)):
            k = torch.cat([x[~same[i]], y[~same[i]]])
            near, far = (positive - q).norm().detach(), (k - q).norm(dim=1).detach()
            mixing = torch.where(far > near, (near / far) ** exponent, 1.0)
            harder = torch.where((far > near).unsqueeze(1), q + mixing.unsqueeze(1) * (k - q), k)
            logits = torch.cat([cosine(q, positive).unsqueeze(0), cosine(q, harder)]) / tau
            losses.append(-logits.log_softmax(0)[0])
            means.append(mixing.mean() if len(k) else mixing.new_ones(()))
            plain = cosine(q, k) / tau
            leads.append(logits[0] - plain.max() if len(k) else logits.new_tensor(math.inf))
            farther[0] += int((far > near).sum())
            farther[1] += int((far <= near).sum())
    fields = [torch.stack(values).view(2, -1) for values in (losses, means, leads)]
    return Formula(fields[0], fields[1].detach(), fields[2].detach(), *farther)


def kernel(x: Tensor, y: Tensor, tau: float | Tensor, exponent: float | Tensor, **options) -> Tensor:
    return torch.stack(hard_infonce(x, y, tau, exponent=exponent, **options)[:2])


def make(
    batch: int, size: int = 10, *, spread: float = 0.0, closeness: float = 0.6, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, torch.Generator]:
    """Return x and a near y [B, D] of lengths between 10^-spread and 10^spread, and weights [2, B] of the losses."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, size, generator=generator)
    y = closeness * x + (1 - closeness) * torch.randn(batch, size, generator=generator)
    lengths = 10 ** (spread * (2 * torch.rand(2, batch, 1, generator=generator) - 1))
    x, y = (torch.nn.functional.normalize(side, dim=1) * length for side, length in zip((x, y), lengths, strict=True))
    return x, y, torch.randn(2, batch, generator=generator), generator


def compare(
    x: Tensor,
    y: Tensor,
    tau: Tensor,
    weights: Tensor,
    exponent: float,
    *,
    normalize: bool = False,
    ids: Tensor | None = None,
    least: float = 0.0,
) -> Formula:
    """Compare the kernel with plain torch on the same numbers, which torch widens from half precision.

    Args:
        least: The least slack.
    """
    same, types = same_sentences(ids, len(x)), (x.dtype, y.dtype)
    wide = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)

    def plain(x: Tensor, y: Tensor, t: Tensor) -> Formula:
        sides = (unit_vectors(side, type_) if normalize else side for side, type_ in zip((x, y), types, strict=True))
        return formula(*sides, t, same, exponent)

    def run(dtype: torch.dtype) -> Results:
        return differentiate(lambda *given: plain(*given).losses, x.to(dtype), y.to(dtype), tau.to(dtype), weights)

    options = {"exponent": exponent, "normalize": normalize, "ids": ids}
    exact, single = run(torch.float64), run(wide)
    found = differentiate(lambda x, y, t: kernel(x, y, t, **options), x, y, tau.to(wide), weights)
    assert found["loss"].dtype == wide and found["x"].dtype == x.dtype and found["y"].dtype == y.dtype
    slack = dict(zip(("x", "y", "loss", "tau"), (max(least, HARD_SLACK[d]) for d in (*types, wide, wide)), strict=True))
    slopes = tuple(1 / (1.0 if normalize else side.double().norm(dim=1)) for side in (x, y))
    check(found, single, exact, slack, units_of(exact, weights, tau, 1.0, slopes))
    with torch.no_grad():
        whole = plain(x.double(), y.double(), tau.double())
        result = hard_infonce(x, y, tau, **options)
    assert error(torch.stack(result[4:]), whole.interpolation) <= max(least, HARD_SLACK[wide])
    clear = whole.lead.abs() > 1e-4 * (1 + 1 / float(tau))
    assert torch.equal(torch.stack(result[2:4])[clear], whole.lead[clear] > 0)
    return whole


@settings(max_examples=60)
@given(
    batch=st.integers(1, 12),
    size=st.integers(3, 24),
    dtype=st.sampled_from([torch.float64, torch.float32, *HALF]),
    tau=st.sampled_from([1.0, 0.05]),
    exponent=st.sampled_from([0.0, 0.4, 0.9, 1.0]),
    normalize=st.booleans(),
    spread=st.sampled_from([0.0, 0.5, 2.0]),
    closeness=st.sampled_from([0.0, 0.5, 0.9]),
    columns=st.integers(0, 2),
    sentences=st.sampled_from([1, 4, 40]),
    tile=st.sampled_from(TILES),
    kept=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_equals_the_formula(
    batch, size, dtype, tau, exponent, normalize, spread, closeness, columns, sentences, tile, kept, seed
) -> None:
    x, y, weights, generator = make(batch, size, spread=spread, closeness=closeness, seed=seed)
    ids = make_ids(batch, columns, sentences, generator) if columns else None
    with tiles(tile, kept):
        options = {"normalize": normalize, "ids": ids}
        if not normalize and dtype != torch.float64 and spread > 1:
            options["least"] = 5e-4  # 1 - λ loses digits if the query is thousands of times longer than its negative
        compare(x.to(dtype), y.to(dtype), torch.tensor(tau), weights, exponent, **options)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tau", [1.0, 0.05])
def test_as_sharp_as_plain_torch_at_usual_sizes(exponent: float, tau: float) -> None:
    x, y, weights, _ = make(14, 96)
    with pytest.MonkeyPatch.context() as patch, tiles((16, 5)):
        patch.setitem(HARD_SLACK, torch.float32, 2e-6)
        whole = compare(x, y, torch.tensor(tau), weights, exponent)
    assert whole.farther > 20
    y[::2] = -y[::2]
    with tiles((16, 5)):
        whole = compare(x, y, torch.tensor(tau), weights, exponent)
    # Both cases of equation 5 occur.
    assert whole.farther > 20 and whole.nearer > 20


def test_equation_5_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.5]], dtype=torch.float64)
    y = torch.tensor([[1.0, 1.0], [1.0, -4.0]], dtype=torch.float64)
    # The positive of x0 is at distance 1. x1, at 1/2, stays; y1, at 4, moves to λ = 1/√4 of the way, (1, -2).
    result = hard_infonce(x, y, 1.0, exponent=0.5)
    cosines = torch.tensor([1 / math.sqrt(2), 1 / math.sqrt(1.25), 1 / math.sqrt(5)], dtype=torch.float64)
    assert float(result.forward[0]) == pytest.approx(float(cosines.logsumexp(0) - cosines[0]), rel=1e-12)
    assert float(result.forward_interpolation[0]) == pytest.approx(0.75, rel=1e-12)
    assert not result.forward_correct[0]


def test_correctness_is_judged_against_plain_negatives() -> None:
    x, y = torch.tensor([[1.0, 0.0], [4.0, -4.5]]), torch.tensor([[1.0, 0.5], [4.0, -4.0]])
    # By hand: cos(x0, y0) = .894, cos(x0, y1) = .707, but y1 moved to the circle of y0, (1.3, -.4), has .956.
    harder, plain = (hard_infonce(x, y, 0.05, exponent=exponent) for exponent in (1.0, 0.0))
    assert float(harder.forward[0]) > math.log(2) > float(plain.forward[0])
    assert harder.forward_correct[0] and plain.forward_correct[0]


@pytest.mark.parametrize("tau", [1.0, 0.05])
@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_exponent_0_is_infonce_of_cosines_with_all_other_sentences(tau: float, path: str) -> None:
    x, y, weights, _ = make(9, 6, spread=1.0)
    x, y = x.double(), y.double()

    def plain(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(torch.cat([x, y]), dim=1)
        logits = (unit @ unit.T / t).masked_fill(torch.eye(18, dtype=torch.bool), -math.inf)
        return torch.nn.functional.cross_entropy(logits, torch.arange(18).roll(9), reduction="none").view(2, 9)

    tau = torch.tensor(tau, dtype=torch.float64)
    with use_path(path), tiles((7, 5)):
        found = differentiate(lambda x, y, t: kernel(x, y, t, 0.0), x, y, tau, weights)
        means = torch.stack(hard_infonce(x, y, tau, exponent=0.0)[4:])
    check_equal(found, differentiate(plain, x, y, tau, weights))
    assert torch.equal(means, torch.ones(2, 9).double())


@settings(max_examples=25)
@given(
    batch=st.integers(1, 8),
    size=st.integers(2, 12),
    exponent=st.sampled_from([0.0, 0.4, 1.0]),
    normalize=st.booleans(),
    columns=st.integers(0, 1),
    seed=st.integers(0, 2**20),
)
def test_the_reference_path_is_the_formula(batch, size, exponent, normalize, columns, seed) -> None:
    x, y, weights, generator = make(batch, size, spread=0.5, seed=seed)
    x, y, tau = x.double(), y.double(), torch.tensor(0.05, dtype=torch.float64)
    ids = make_ids(batch, columns, 5, generator) if columns else None
    with use_path("reference"):
        compare(x, y, tau, weights, exponent, normalize=normalize, ids=ids)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("exponent", [0.0, 0.9, 1.0])
def test_duplicates_among_the_negatives(dtype: torch.dtype, exponent: float) -> None:
    x, y, weights, _ = make(7, 8)
    x, y = x.to(dtype), y.to(dtype)
    x[1], y[2], y[3], x[4] = x[0], y[0], x[0], y[0]  # gradients of the query x0 and of its positive y0, on either side
    compare(x, y, torch.tensor(0.05), weights, exponent)
    result = hard_infonce(x, y, 0.05, exponent=exponent)
    assert not result.forward_correct[[0, 1]].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_where_query_and_positive_are_one_vector_every_negative_becomes_it(dtype: torch.dtype) -> None:
    x, *_ = make(6, 8)
    x = x.to(dtype).requires_grad_()
    result = hard_infonce(x, x.detach(), 0.05, exponent=0.9)
    assert error(torch.stack(result[:2]).detach(), torch.full((2, 6), math.log(11)).double()) < 1e-5
    assert not torch.stack(result[4:]).any() and all(result.forward_correct)
    sum(result[:2]).sum().backward()
    assert x.grad.isfinite().all()
    plain = hard_infonce(x, x.detach(), 0.05, exponent=0.0)
    assert torch.equal(torch.stack(plain[4:]), torch.ones(2, 6, dtype=plain.forward.dtype))


def test_an_encoder_that_maps_all_to_one_vector_is_never_correct() -> None:
    for seed in range(8):
        x = make(1, 300, seed=seed)[0].repeat(40, 1)
        result = hard_infonce(x, x, 0.07, exponent=0.5)
        assert not result.forward_correct.any() and not result.backward_correct.any()


@pytest.mark.parametrize("sentences", [None, 1], ids=["one pair", "all of one sentence"])
def test_without_negatives(sentences: int | None) -> None:
    x, y, _, generator = make(5 if sentences else 1)
    ids = make_ids(len(x), 1, sentences, generator) if sentences else None
    x.requires_grad_()
    result = hard_infonce(x, y, 0.05, exponent=0.9, ids=ids)
    sum(result[:2]).sum().backward()
    assert not x.grad.any() and not torch.stack(result[:2]).any()
    assert torch.stack(result[2:4]).all() and torch.equal(torch.stack(result[4:]), torch.ones(2, len(x)))


@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_no_pairs_at_all(path: str) -> None:
    x = torch.ones(0, 5, requires_grad=True)
    with use_path(path):
        result = hard_infonce(x, torch.ones(0, 5), 0.05, exponent=0.9)
    assert isinstance(result, HardInfoNCE) and [len(field) for field in result] == 6 * [0]
    torch.cat(result[:2]).sum().backward()
    assert x.grad.shape == (0, 5)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["0-d", "one element"])
@pytest.mark.parametrize("path", ["chunked", "reference"])
def test_temperature_and_exponent_may_be_tensors_but_only_one_learns(shape: tuple[int, ...], path: str) -> None:
    x, y, weights, _ = make(6)
    tau, exponent = (torch.full(shape, value, requires_grad=True) for value in (0.05, 0.7))
    with use_path(path):
        losses = kernel(x, y, tau, exponent)
        usual = differentiate(lambda x, y, t: kernel(x, y, t, 0.7), x, y, torch.tensor(0.05), weights)
    (losses * weights).sum().backward()
    assert torch.equal(losses.detach(), usual["loss"]) and exponent.grad is None
    assert not any(field.requires_grad for field in hard_infonce(x, y, tau, exponent=exponent)[2:])
    assert tau.grad.shape == shape and tau.grad.sum() == usual["tau"] != 0


def test_backward_may_run_in_other_tiles_and_twice() -> None:
    x, y, weights, _ = make(13)
    leaves = [side.double().requires_grad_() for side in (x, y)]
    with tiles((64, 64)):
        loss = (kernel(*leaves, 0.05, 0.8) * weights).sum()
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
    with tiles((7, 5), kept=False), use_path("reference"):
        second = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(error(b, a) < 1e-12 for a, b in zip(first, second, strict=True))
    (gradient,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


@pytest.mark.parametrize("learning", [(True, False), (False, True)], ids=["x", "y"])
@pytest.mark.parametrize("direction", [0, 1], ids=["forward", "backward"])
def test_one_direction_and_one_side_alone(learning: tuple[bool, bool], direction: int) -> None:
    x, y, weights, _ = make(8)

    def run(function) -> Tensor:
        sides = [side.double().requires_grad_(wanted) for side, wanted in zip((x, y), learning, strict=True)]
        (function(*sides)[direction] * weights[direction]).sum().backward()
        assert [side.grad is not None for side in sides] == list(learning)
        return sides[learning.index(True)].grad

    tau = torch.tensor(0.05, dtype=torch.float64)
    exact = run(lambda x, y: formula(x, y, tau, same_sentences(None, 8), 0.8).losses)
    assert error(run(lambda x, y: kernel(x, y, tau, 0.8)), exact) < 1e-12


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
def test_autocast_does_not_change_it(kept: bool) -> None:
    x, y, weights, _ = make(20, 30)

    def run() -> Results:
        with tiles((64, 64), kept):
            return differentiate(
                lambda x, y, t: kernel(x, y, t, 0.8, normalize=True), x, y, torch.tensor(0.05), weights
            )

    usual = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = run()
    assert all(torch.equal(automatic[key], usual[key]) for key in usual)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_half_precision_is_normalised_with_one_rounding(dtype: torch.dtype) -> None:
    x, y, *_ = make(12, 40)
    x, y = (100 * x).to(dtype), (100 * y).to(dtype)
    given = [torch.nn.functional.normalize(side.float(), dim=1).to(dtype) for side in (x, y)]
    found = hard_infonce(x, y, 0.05, exponent=0.9, normalize=True)
    assert all(torch.equal(*fields) for fields in zip(found, hard_infonce(*given, 0.05, exponent=0.9), strict=True))


@pytest.mark.slow
def test_cosines_are_whole_only_where_they_are_kept() -> None:
    x, y, *_ = make(80, 4)
    x.requires_grad_()
    for kept, least, most in ((True, 4 * 160 * 160, 4 * 160 * 160), (False, 4 * 32 * 64, 4 * 160 * 32)):
        with tiles((32, 64), kept), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            kernel(x, y, 0.05, 0.9).sum().backward()
        assert least <= max(event.self_cpu_memory_usage for event in profiled.events()) <= most


def test_what_does_not_fit_is_refused() -> None:
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"y must be \[B, D\] with B = 3, D = 4, not \[3, 5\]"):
        hard_infonce(x, torch.ones(3, 5), 0.05, exponent=0.9)
    for shape in ((3,), (2, 1)):
        with pytest.raises(ValueError, match="ids"):
            hard_infonce(x, x, 0.05, exponent=0.9, ids=torch.zeros(shape, dtype=torch.int64))
