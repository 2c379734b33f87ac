"""dual_moco and frozen_source against a simulation of their equations in float64, in which lists are the queues."""

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.criteria.equations_vectors import counts, cut
from tests.criteria.objectives import GUIDED, Maker, Objective, frozen, moco
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of, with_negatives
from xrep.criteria.criterion import Criterion
from xrep.criteria.dual_moco import DualMoco
from xrep.data.batch import Batch

RATE = 0.2
Groups = list[list[Batch]]
"""The batches of each step."""


def make_groups(make_batch: Callable[[Any], Batch], accumulate: int) -> Groups:
    """Return batches of 4 pairs (3 in the last of a step) in which sentences are repeated with other translations."""
    some = sentence_pairs(20)
    pairs = some[:8] + [(some[0][0], some[8][1]), (some[9][0], some[1][1]), *some[2:4]] + some[10:18] + some[4:12]
    batches = [make_batch(pairs[4 * i : 4 * i + 4 - (i % accumulate)]) for i in range(7)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def train(model: Any, criterion: Any, groups: Groups) -> list[float]:
    """Train as the trainer does: add up the gradients of the micro-batches, then make one step. Return the losses."""
    trained = [p for p in (*model.parameters(), *criterion.parameters()) if p.requires_grad]
    optimizer, losses = torch.optim.SGD(trained, lr=RATE), []
    for group in groups:
        size = sum(sizes_of(criterion, batch)[criterion.term] for batch in group)
        optimizer.zero_grad()
        sums = [loss_of(criterion, model, batch).terms[criterion.term].sum for batch in group]
        (sum(sums) / size).backward()
        optimizer.step()
        criterion.after_step(model)
        losses.append(float(sum(sums).detach()) / size)
    return losses


def simulate(base: Any, criterion: Any, groups: Groups) -> tuple[list[float], Any, Tensor | float]:
    """Train copies of a model and a criterion. Return the losses of the steps, the momentum encoder and tau."""
    config, moves = criterion.config, criterion.term == "infonce"
    size, widths, masked = config.queue_size, (None, *config.matryoshka), config.mask_equal_sentences
    slow = criterion.momentum_encoder.model if moves else base
    theta = None if moves else criterion.theta
    queues: dict[str, list[tuple[Tensor, set, Any]]] = {"source": [], "target": []}
    directions = [("source", "target"), ("target", "source")] if moves else [("target", "source")]
    losses = []
    for group in groups:
        objective, new = torch.zeros((), dtype=torch.float64), {"source": [], "target": []}
        tau, share = config.temperature if theta is None else theta.exp(), 1 / sum(map(len, group))
        for batch in group:
            sides = {"source": ("de", batch.source), "target": ("en", batch.target)}
            query = {side: base.encode(base.tower(of), tokens)[0] for side, (of, tokens) in sides.items()}
            key = {side: slow.encode(slow.tower(of), tokens)[0] for side, (of, tokens) in sides.items()}
            if moves or config.source == "frozen":
                key = {side: vectors.detach() for side, vectors in key.items()}
            ids = [{("source", a), ("target", b)} for a, b in batch.ids.tolist()]
            guide = plan(criterion, batch).batch.facts.get("guide", torch.zeros(len(batch), 2, 0)).double()
            guides = {"source": guide[:, 0], "target": guide[:, 1]}
            for x, y in directions:
                for i in range(len(batch)):
                    if not moves and config.loss == "mse":
                        objective = objective + share * ((query[x][i] - key[y][i]) ** 2).sum()
                        continue
                    beside = [(key[y][j], ids[j], guides[y][j]) for j in range(len(batch)) if j != i]
                    others = queues[y] + (beside if not (moves and size) else [])
                    negatives = [(vector, own) for vector, other, own in others if not (masked and other & ids[i])]
                    for width in widths:
                        own = cut(query[x][i], width)
                        a, p = (guides[x][i], guides[y][i]) if config.guide else (own, cut(key[y][i], width))
                        judged = [judged if config.guide else cut(vector, width) for vector, judged in negatives]
                        near = [not counts(config, a @ each, a @ p) for each in judged]
                        found = [vector for (vector, _), above in zip(negatives, near, strict=True) if not above]
                        positive = torch.exp(own @ cut(key[y][i], width) / tau)
                        total = positive + sum(torch.exp(own @ cut(vector, width) / tau) for vector in found)
                        objective = objective - share * torch.log(positive / total)
            for side in sides:
                new[side] += zip(key[side].detach(), ids, guides[side], strict=True)
        inputs = [p for p in base.parameters() if p.requires_grad] + ([] if theta is None else [theta])
        for parameter, gradient in zip(inputs, torch.autograd.grad(objective, inputs), strict=True):
            parameter.data -= RATE * gradient
        if theta is not None:
            theta.data.clamp_(math.log(0.01), 0)
        for mine, theirs in zip(slow.parameters(), base.parameters(), strict=True) if moves else ():
            mine.data = config.momentum * mine.data + (1 - config.momentum) * theirs.data
        for side in queues:
            queues[side] = (queues[side] + new[side])[-size:] if size else []
        losses.append(float(objective.detach()))
    return losses, slow, config.temperature if theta is None else theta.detach().exp()


MASKED = {"mask_equal_sentences": True}
RUNS: dict[str, tuple[Objective, int]] = {
    "moco, queue wraps": (moco(queue_size=10, momentum=0.7), 1),
    "moco, equal sentences masked": (moco(queue_size=10, momentum=0.7, **MASKED), 1),
    "moco, accumulation": (moco(towers="shared", queue_size=9, momentum=0.5, **MASKED), 2),
    "moco, without momentum": (moco(queue_size=50, momentum=0.0), 1),
    "moco, queue below the batch": (moco(towers="shared", queue_size=2, momentum=0.7), 2),
    "moco, no queue": (moco(momentum=0.7), 2),
    "moco, matryoshka": (moco(queue_size=10, momentum=0.7, matryoshka=[9, 4], **MASKED), 2),
    "frozen, the batch alone": (frozen(), 1),
    "frozen, queue wraps": (frozen(queue_size=10, matryoshka=[7]), 1),
    "frozen, equal sentences masked": (frozen(queue_size=10, **MASKED), 1),
    "moco, too near": (moco(queue_size=10, momentum=0.7, mask_margin=0.02, matryoshka=[9]), 2),
    "moco, guide": (moco(queue_size=10, momentum=0.7, **GUIDED), 1),
    "frozen, guide": (frozen(queue_size=10, matryoshka=[7], **GUIDED), 2),
    "frozen, accumulation": (frozen(queue_size=9), 2),
    "frozen, queue below the batch": (frozen(queue_size=2), 2),
    "frozen, fixed temperature": (frozen(queue_size=50, temperature=0.1, learnable_temperature=False), 1),
    "frozen, dual": (frozen(source="trained"), 1),
    "frozen, mse": (frozen(loss="mse"), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_steps_equal_the_simulation(make: Maker, make_batch, name: str) -> None:
    own, accumulate = RUNS[name]
    model, criterion = make.build(own, layers=1)
    base, other = copy.deepcopy(model), copy.deepcopy(criterion)
    start, groups = copy.deepcopy(model.state_dict()), make_groups(make_batch, accumulate)
    expected, slow, tau = simulate(base, other, groups)

    losses = train(model, criterion, groups)

    size, error = own.options.get("queue_size", 0), 1e-9
    if "matryoshka" in own.options:  # queued vectors are cut in float32
        error = 1e-5
    assert losses == pytest.approx(expected, rel=error) and expected[-1] > 0.05
    if own.kind == "dual_moco":
        assert (expected[0] == losses[0] == 0) == bool(size)
    else:
        learnt = criterion.theta
        assert learnt is None or float(learnt.exp().detach()) == pytest.approx(float(tau), rel=error)
        assert criterion.queue is None or criterion.queue.filled == min(size, sum(map(len, sum(groups, []))))
    pairs = [(model, base), *([(criterion.momentum_encoder.model, slow)] if own.kind == "dual_moco" else [])]
    for mine, theirs in pairs:
        for (parameter_name, parameter), exact in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(parameter.data, exact.data, rtol=error, atol=error, msg=parameter_name)
    moved = {part for part in ("source", "target", "shared") for key, tensor in model.state_dict().items()
             if f".{part}." in key and not torch.equal(tensor, start[key])}  # fmt: skip
    all_towers = {"source", "target"} if own.kind == "dual_moco" or "source" in own.options else {"target"}
    assert moved == ({"shared"} if "shared" in own.model.values() else all_towers)


def queues_of(criterion: Criterion) -> list[Any]:
    queues = [getattr(criterion, name, None) for name in ("source_queue", "target_queue", "queue")]
    return [queue for queue in queues if queue is not None]


@pytest.mark.parametrize("own", [moco("negatives", queue_size=5), frozen(queue_size=5)], ids=lambda own: own.kind)
def test_what_enters_the_queues_and_when(make: Maker, make_batch, own: Objective) -> None:
    """Hard negatives do not, nor do batches of validation; keys enter once, after the step."""
    (model, criterion), pairs = make.build(own), make_batch(sentence_pairs(3))
    batch = with_negatives(pairs, make_batch(sentence_pairs(6)[3:]).target, [0, 0, 2])
    batch = batch if own.kind == "dual_moco" else pairs
    filled = []
    for training in (False, True):
        loss = loss_of(criterion.train(training), model, batch if training else pairs).terms[criterion.term].sum
        filled.append([queue.filled for queue in queues_of(criterion)])
        for _ in range(2):
            criterion.after_step(model)
            filled.append([queue.filled for queue in queues_of(criterion)])
    assert [set(each) for each in filled] == [{0}] * 4 + [{3}] * 2
    assert loss > 0, "the queues of moco are empty, and the negatives are there"
    encoder = criterion.momentum_encoder.model if own.kind == "dual_moco" else model
    if own.kind == "frozen_source":
        keys = encoder.encode_pair(pairs.source, pairs.target)[:1]
        for queue, vectors in zip(queues_of(criterion), keys, strict=True):
            torch.testing.assert_close(queue.vectors[:3], vectors.detach())
    assert all(torch.equal(queue.ids[:3], pairs.ids) for queue in queues_of(criterion))


def test_a_queue_in_half_precision(make: Maker) -> None:
    (model, _), batch = make.build(moco(), torch.float32), make.batch("pairs")
    criterion = DualMoco(DualMoco.Config(queue_size=20, queue_dtype="bfloat16", momentum=1.0), model, make.text)
    keys = criterion.momentum_encoder.model.encode_pair(batch.source, batch.target)
    loss_of(criterion, model, batch)
    criterion.after_step(model)
    for queue, own in zip(queues_of(criterion), keys, strict=True):
        assert queue.vectors.dtype == torch.bfloat16 and torch.equal(queue.vectors[:9], own.bfloat16())


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_of_the_keys(make: Maker, make_batch, dropout: bool) -> None:
    own = moco(queue_size=8, momentum=1.0, momentum_dropout=dropout)
    (model, criterion), batch = make.build(own, dropout=0.3), make_batch(sentence_pairs(4))
    for _ in range(2):
        loss_of(criterion, model, batch)
        criterion.after_step(model)
    keys, slow = criterion.target_queue.vectors, copy.deepcopy(criterion.momentum_encoder.model).eval()
    plain = slow.encode_pair(batch.source, batch.target)[1]
    assert torch.allclose(keys[:4], keys[4:]) is not dropout and torch.allclose(keys[:4], plain) is not dropout


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [moco, frozen])
def test_warning_when_the_queue_exceeds_half_of_the_corpus(make: Maker, kind: Any, masked: bool) -> None:
    _, criterion = make.build(kind(queue_size=51, mask_equal_sentences=masked))
    of_tower = criterion.warnings(SimpleNamespace(examples=102))
    assert len(of_tower) == (kind is frozen) and all("random weights" in warning for warning in of_tower)
    warnings = criterion.warnings(SimpleNamespace(examples=101))[len(of_tower) :]
    assert len(warnings) == (kind is moco or not masked)
    assert all("queue_size 51 exceeds half of the 101 training pairs" in warning for warning in warnings)
    assert all(("`mask_equal_sentences`" in warning) is not masked for warning in warnings)


def test_a_teacher_of_random_weights_is_warned_of(make: Maker) -> None:
    (warning,) = make.build(frozen(source_side="target"))[1].warnings(SimpleNamespace(examples=1))
    assert "the frozen target tower, which teaches, has random weights" in warning and "`target_encoder`" in warning
    for own in (frozen(source="trained"), frozen(source="trained", towers="shared")):
        assert make.build(own)[1].warnings(SimpleNamespace(examples=1)) == []


def test_frozen_source_alone_is_named_as_frozen(make: Maker) -> None:
    assert make.build(frozen(source="trained"))[1].frozen == ()
    assert make.build(frozen(projection_size=12))[1].frozen == ["encoders.source", "projections.source"]


def test_the_temperature_stays_within_its_bounds_and_comes_back(make: Maker) -> None:
    model, criterion, _ = make("frozen_source")
    for step, bound in ((5.0, 1.0), (-50.0, 0.01)):
        criterion.theta.data += step
        criterion.after_step(model)
        assert float(criterion.theta.exp().detach()) == pytest.approx(bound)
