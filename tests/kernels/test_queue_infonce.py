"""queue_infonce against equation 2 as it is written, in float64 with everything materialised."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from xrep.kernels import precision
from xrep.kernels.chunked_steps import QUEUE_ROWS as BLOCK_SIZE
from xrep.kernels.queue_infonce import queue_infonce

Results = dict[str, Tensor]


def reference(query, positive, queue, tau, same, margin) -> Tensor:
    """-log exp((q·k⁺ - m)/τ) / Σ exp(.), [B], in the type of its inputs; ``same`` (bool [B, K]) is no negative."""
    negatives = (query @ queue.T / tau).masked_fill(same, float("-inf"))
    positives = ((query * positive).sum(1, keepdim=True) - margin) / tau
    return -torch.cat([positives, negatives], 1).log_softmax(1)[:, 0]


def differentiate(function, query, positive, tau, weights) -> Results:
    """Loss and gradients of a weighted sum of the losses."""
    leaves = [tensor.clone().requires_grad_() for tensor in (query, positive, tau)]
    loss = function(*leaves)
    (loss * weights.to(loss.dtype)).sum().backward()
    return dict(zip(("loss", "query", "positive", "tau"), (loss.detach(), *(x.grad for x in leaves)), strict=True))


def error(found: Tensor, exact: Tensor) -> float:
    """Largest difference, in units of the largest exact entry (absolute below 1e-3)."""
    assert found.shape == exact.shape
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-3))


def make(batch, size, queue_size, *, scale=1.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query, positive, queue = (
        torch.nn.functional.normalize(torch.randn(n, size, generator=generator), dim=1) * scale
        for n in (batch, batch, queue_size)
    )
    weights = torch.randn(batch, generator=generator)
    return query, positive, queue.to(dtype), weights, generator


CASES = {
    # batch, dimension, queue, and: temperature, margin, scale, filled, ids (how many different sentences), dtype
    "smaller than a block": (123, 50, 507, {}),
    "several blocks": (7, 33, 2 * BLOCK_SIZE + 809, {}),
    "exactly one block": (3, 8, BLOCK_SIZE, {}),
    "one query, one negative": (1, 8, 1, {}),
    "partly filled": (5, 16, BLOCK_SIZE + 900, {"filled": BLOCK_SIZE + 1}),
    "margin": (20, 16, 300, {"margin": 0.3}),
    "ids": (20, 16, BLOCK_SIZE + 77, {"ids": 30, "margin": 0.1}),
    "ids, partly filled": (20, 16, 500, {"ids": 8, "filled": 321}),
    "everything masked": (6, 16, 700, {"ids": 1}),
    "nothing filled": (6, 16, 700, {"filled": 0}),
    "no queue": (6, 16, 0, {}),
    "sharp": (30, 24, 999, {"temperature": 0.01}),
    "large logits": (30, 24, 2 * BLOCK_SIZE + 9, {"temperature": 0.01, "scale": 20.0}),
    "bfloat16": (30, 24, BLOCK_SIZE + 999, {"dtype": torch.bfloat16}),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_equation_2(name: str) -> None:
    batch, size, queue_size, options = CASES[name]
    query, positive, queue, weights, generator = make(
        batch, size, queue_size, scale=options.get("scale", 1.0), dtype=options.get("dtype", torch.float32)
    )
    if options.get("scale"):  # a near neighbour, so that the loss is small beside logits of tens of thousands
        positive = query + 0.01 * positive
    margin, filled = options.get("margin", 0.0), options.get("filled", queue_size)
    tau = torch.tensor(options.get("temperature", 0.07))
    ids = [torch.randint(options.get("ids", 2**40), (n, 2), generator=generator) for n in (batch, queue_size)]
    same = (ids[0][:, None] == ids[1][None, :filled]).any(2)
    masked = dict(zip(("query_ids", "queue_ids"), ids, strict=True)) if "ids" in options else {}
    queue[filled:] = float("nan")
    correct = []

    def kernel(q: Tensor, k: Tensor, t: Tensor) -> Tensor:
        result = queue_infonce(q, k, queue, t, valid=filled, margin=margin, **masked)
        correct.append(result.correct)
        return result.loss

    def plain(q: Tensor, k: Tensor, t: Tensor) -> Tensor:
        return reference(q, k, queue[:filled].to(q.dtype), t, same, margin)

    found = differentiate(kernel, query, positive, tau, weights)
    single = differentiate(plain, query, positive, tau, weights)
    exact = differentiate(plain, query.double(), positive.double(), tau.double(), weights)
    errors = {key: (error(found[key], exact[key]), error(single[key], exact[key])) for key in exact}
    assert all(mine <= 1.5 * torchs + 2e-6 for mine, torchs in errors.values()), errors
    if filled == 0 or same.all():
        assert all(not tensor.any() for tensor in found.values())
    negatives = (query @ queue[:filled].float().T).masked_fill(same, float("-inf"))
    beaten = ((query * positive).sum(1) - margin)[:, None] > negatives
    assert torch.equal(correct[0], beaten.all(1))


def test_a_loss_beside_huge_logits_is_not_rounded_away() -> None:
    # The positive's logit is 32768 and the negative's 10 less: the loss, 4.5e-5, is below the spacing of the logits.
    query = torch.tensor([[1.0, 1.0]])
    loss = queue_infonce(query, torch.tensor([[32768.0, 0.0]]), torch.tensor([[32758.0, 0.0]]), 1.0).loss
    assert float(loss) == pytest.approx(math.log1p(math.exp(-10)), rel=1e-2)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_gradient_flows_to_a_learnable_temperature_but_never_to_the_queue(shape: tuple[int, ...]) -> None:
    query, positive, queue, *_ = make(4, 8, 50)
    queue.requires_grad_()
    tau = torch.full(shape, 0.05, requires_grad=True)
    result = queue_infonce(query, positive, queue, tau)
    assert not result.correct.requires_grad
    result.loss.sum().backward()
    assert queue.grad is None and tau.grad is not None and tau.grad.shape == shape and tau.grad.abs().sum() > 0


def test_half_precision_inputs_get_gradients_of_their_type() -> None:
    query, positive, queue, *_ = (x.bfloat16() for x in make(4, 8, 50)[:3])
    query.requires_grad_(), positive.requires_grad_()
    loss = queue_infonce(query, positive, queue, 0.05).loss
    assert loss.dtype == torch.float32
    loss.sum().backward()
    assert query.grad.dtype == positive.grad.dtype == torch.bfloat16


def test_what_it_refuses() -> None:
    query, positive, queue, *_ = make(4, 8, 50)
    with pytest.raises(ValueError, match="both or neither"):
        queue_infonce(query, positive, queue, 0.05, query_ids=torch.zeros(4, 2, dtype=torch.int64))
    # The softmax is saved, not the graph behind it: a second derivative would be wrong, so there is none.
    query.requires_grad_(), positive.requires_grad_()
    (gradient,) = torch.autograd.grad(queue_infonce(query, positive, queue, 0.05).loss.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        gradient.sum().backward()


def test_neither_autocast_nor_the_fast_product_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    query, positive, queue, *_ = make(33, 40, BLOCK_SIZE + 600)
    tau, weights = torch.tensor(0.05), torch.ones(33)

    def run() -> Results:
        return differentiate(lambda q, k, t: queue_infonce(q, k, queue, t).loss, query, positive, tau, weights)

    usual = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = run()
    assert all(torch.equal(automatic[key], usual[key]) for key in usual)
    monkeypatch.setattr(precision, "_fast_allowed", False)
    slow = run()
    assert all(error(usual[key], slow[key].double()) < 1e-5 for key in usual)


def test_no_array_of_queries_by_queue_exists() -> None:
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() != queue.data_ptr():
                    self.numel = max(self.numel, tensor.numel())
            return result

    query, positive, queue, *_ = make(64, 4, 10 * BLOCK_SIZE)
    query.requires_grad_()
    with Largest() as largest:
        queue_infonce(query, positive, queue, 0.05).loss.sum().backward()
    assert 64 < largest.numel <= 64 * BLOCK_SIZE
