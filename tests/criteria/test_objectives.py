"""What holds for every objective: its equation, batches of no rows, half precision, pieces, and no waiting."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.criteria.by_hand import SEED
from tests.criteria.objectives import FIRST, OBJECTIVES, Maker, both, copied
from tests.support.closeness import assert_near
from tests.support.planning import loss_of, plan, sizes_of
from xrep.criteria.contrastive import ContrastiveCriterion, encode_in_pieces
from xrep.criteria.criterion import Criterion, Loss
from xrep.registry import CRITERIA

WEIGHTS = {"rtl_to_pivot": 0.5, "rtl_from_pivot": 0.5}
"""Weights of terms that are not 1."""
CONTRASTIVE = [name for name, own in OBJECTIVES.items() if issubclass(CRITERIA.load(own.kind), ContrastiveCriterion)]


def objective(loss: Loss, sizes: dict[str, float]) -> Tensor:
    return sum(term.weight * term.sum / max(sizes[name], 1) for name, term in loss.terms.items())


def gradients(total: Tensor, model: nn.Module, criterion: Criterion) -> dict[str, Tensor | None]:
    parameters = dict(both(model, criterion).named_parameters())
    for parameter in parameters.values():
        parameter.grad = None
    total.backward()
    return {name: parameter.grad for name, parameter in parameters.items() if parameter.requires_grad}


def fewest_layers(name: str) -> dict[str, int]:
    return {} if "layers" in OBJECTIVES[name].model or "pooled_layer" in OBJECTIVES[name].model else {"layers": 1}


def may_be_idle(name: str, criterion: Criterion) -> bool:
    """Whether parameters may have no gradient; those of layers that nothing reads have none."""
    return criterion.idle_parameters or "pooled_layer" in OBJECTIVES[name].model


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_gradient_and_metrics_are_those_of_the_equation(make: Maker, name: str) -> None:
    model, criterion, batch = make(name)
    exact, exact_criterion = copied(model, criterion)
    planned = plan(criterion, batch, SEED)
    expected = OBJECTIVES[name].equation(exact, exact_criterion, planned)
    torch.manual_seed(SEED)
    loss = criterion(model, planned)
    assert planned.sizes == expected.sizes and {*loss.terms} == {*expected.terms}
    for term, value in loss.terms.items():
        torch.testing.assert_close(value.sum, expected.terms[term], rtol=1e-9, atol=1e-12, msg=term)
        assert value.weight == WEIGHTS.get(term, 1.0)
    for metric, value in expected.metrics.items():
        assert float(loss.metrics[metric]) == pytest.approx(value, rel=1e-5, abs=1e-4), metric
    assert not any(metric.requires_grad for metric in loss.metrics.values())
    wanted = sum(WEIGHTS.get(term, 1.0) * value / expected.sizes[term] for term, value in expected.terms.items())
    theirs = gradients(wanted, exact, exact_criterion)
    mine = gradients(objective(loss, planned.sizes), model, criterion)
    for parameter, gradient in theirs.items():
        own = mine[parameter]
        assert own is not None or (gradient is None and may_be_idle(name, criterion)), parameter
        if own is not None:
            assert_near(own, torch.zeros_like(own) if gradient is None else gradient, 1e-8, parameter)
    if criterion.idle_parameters:
        assert None in mine.values()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "float32") for name in OBJECTIVES), *((name, "bf16 autocast") for name in FIRST)]
)
def test_a_batch_of_no_rows_is_worth_nothing(make: Maker, name: str, kind: str) -> None:
    """A rank may have no part of a batch, and others wait for its gradients."""
    model, criterion, batch = make(name, torch.float32, dropout=0.1, **fewest_layers(name))
    for part in (batch.rows(3, 3), batch.rows(0, 1)):
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in kind):
            loss = loss_of(criterion, model, part)
        sizes = sizes_of(criterion, part)
        assert {*loss.terms} == {*sizes} and (len(part) or not any(sizes.values()))
        for value in (*(term.sum for term in loss.terms.values()), *loss.metrics.values()):
            assert value.isfinite() and value.dtype == torch.float32
        if not len(part):
            still = {"temperature", "p_positive"}  # which are of no batch
            worth = [value for metric, value in loss.metrics.items() if metric not in still]
            assert not any(map(float, (*(term.sum.detach() for term in loss.terms.values()), *worth)))
        for parameter, gradient in gradients(objective(loss, sizes), model, criterion).items():
            assert gradient is not None or may_be_idle(name, criterion), parameter
            assert gradient is None or (gradient.isfinite().all() and (len(part) or not gradient.any())), parameter
        criterion.after_step(model)


class NoWaiting(TorchDispatchMode):
    """A context that forbids reading a tensor's values, or a size that depends on them, because that would wait for a
    GPU."""

    aten = torch.ops.aten
    FORBIDDEN = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.repeat_interleave)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        by_mask = func is self.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        waits = by_mask or func.overloadpacket in self.FORBIDDEN
        assert not waits or kwargs.get("output_size") is not None, func
        return func(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_does_not_wait_for_the_device(make: Maker, name: str) -> None:
    model, criterion, batch = make(name, torch.float32, dropout=0.1, **fewest_layers(name))
    parts = [batch, batch.rows(0, 0), *([batch.rows(2, 3)] if name in FIRST else [])]  # the last one has no padding
    planned = [plan(criterion, part).to("cpu") for part in parts]
    objective(loss_of(criterion, model, batch), sizes_of(criterion, batch)).backward()  # products are tried out once
    with NoWaiting():
        for each in planned:
            objective(criterion(model, each), each.sizes).backward()
            criterion.after_step(model)


ROUNDED = [*FIRST, "frozen_source, trained", "hictl, words", "dap, both", "cmlm, raw", "tlm, next sentence", "nli, mlp",
           "translation_ranking, negatives", "translation, bias"]  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_half_precision_is_near_to_float32(make: Maker, name: str) -> None:
    model, criterion, batch = make(name, torch.float32, dropout=0.0, attention_dropout=0.0, **fewest_layers(name))
    planned = plan(criterion, batch)
    exact = criterion(model, planned)
    expected = gradients(objective(exact, planned.sizes), model, criterion)
    with torch.autocast("cpu", torch.bfloat16):
        half = criterion(model, planned)
    for term, value in half.terms.items():
        assert value.sum.dtype == torch.float32
        near = pytest.approx(float(exact.terms[term].sum.detach()), rel=3e-2)
        assert float(value.sum.detach()) == near and value.sum != exact.terms[term].sum, "nothing was rounded"
    for parameter, gradient in gradients(objective(half, planned.sizes), model, criterion).items():
        if gradient is not None:
            assert gradient.dtype == torch.float32
            slack = 0.1 * float(expected[parameter].abs().max()) + 0.02
            torch.testing.assert_close(gradient, expected[parameter], rtol=0, atol=slack, msg=parameter)


def parts_of(batch: Any) -> list[Any]:
    return [batch.rows(*bounds) for bounds in ((0, 4), (4, 4), (4, 5), (5, 9))]


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sizes_of_parts_add_up_to_that_of_the_batch(make: Maker, name: str) -> None:
    """The ranks have parts of a batch, some of them empty."""
    model, criterion, batch = make(name)
    parts = [sizes_of(criterion, part) for part in parts_of(batch)]
    if OBJECTIVES[name].kind in ("nli", "label_smoothed_cross_entropy"):  # which compare no rows and draw nothing
        sums = [[*loss_of(criterion, model, part).terms.values()][0].sum for part in (batch, *parts_of(batch))]
        torch.testing.assert_close(sum(sums[1:]), sums[0])
    for term, size in sizes_of(criterion, batch).items():
        if OBJECTIVES[name].options.get("reconstruction_ratio", 1) == 1 and "next_sentence" not in parts[0]:
            assert sum(part[term] for part in parts) == size
        assert parts[1][term] == 0


def drawn(name: str) -> bool:
    """Whether masks are drawn for each piece by itself."""
    own = OBJECTIVES[name]
    return own.options.get("reconstruction_ratio", 1.0) < 1 or (
        own.kind == "hictl" and own.options.get("language_model", True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONTRASTIVE if not drawn(name)])
def test_pieces_give_the_loss_and_gradient_of_the_whole(make: Maker, name: str) -> None:
    model, criterion, batch = make(name, dropout=0.0, attention_dropout=0.0, **fewest_layers(name))
    rows = 2 if "negatives" in name or "one layer" in name else 5
    other, pieces = copied(model, criterion)
    encode_in_pieces(pieces, rows)
    whole, parts = loss_of(criterion, model, batch), loss_of(pieces, other, batch)
    assert len(plan(pieces, batch).pieces) == -(-9 // rows) and sizes_of(pieces, batch) == sizes_of(criterion, batch)
    for term, value in whole.terms.items():
        torch.testing.assert_close(parts.terms[term].sum, value.sum, rtol=1e-10, atol=1e-12)
    for metric, value in whole.metrics.items():
        torch.testing.assert_close(parts.metrics[metric], value, msg=metric)
    sizes = sizes_of(criterion, batch)
    found = gradients(objective(parts, sizes), other, pieces)
    for parameter, gradient in gradients(objective(whole, sizes), model, criterion).items():
        if gradient is not None:
            assert_near(found[parameter], gradient, 1e-10, parameter)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_both_passes_over_a_piece_draw_alike(make: Maker, name: str) -> None:
    """The vectors are computed twice, the second time with the loss of the rows."""
    model, criterion, batch = make(name, dropout=0.3, **fewest_layers(name))
    planned, found = plan(criterion, batch), []
    for read in (criterion.vectors, lambda *given: criterion.encode(*given).vectors):
        torch.manual_seed(2)
        found.append(read(model, planned))
    assert all(torch.equal(*sides) for sides in zip(*found, strict=True))
