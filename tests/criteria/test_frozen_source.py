"""frozen_source against a simulation of section 3.2 in float64, in which a list is the queue."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from tests.support.runs import compose_run, make_trainer
from xrep.criteria.frozen_source import FrozenSource, LearnableTemperature
from xrep.data.batching import PairBatch
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
RATE = 0.5


def make_model(text, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(DualEncoder.Config(**{**SMALL, "dropout": 0.0, "attention_dropout": 0.0, **options}), text)


def make_criterion(model, text, **options: Any) -> FrozenSource:
    return FrozenSource(FrozenSource.Config(**options), model, text)


def make_groups(make_batch, accumulate: int = 1) -> list[list[PairBatch]]:
    """Return batches of 4 pairs (3 in the last of a step) in which sentences are repeated with other translations."""
    some = sentence_pairs(20)
    pairs = some[:8] + [(some[0][0], some[8][1]), (some[9][0], some[1][1]), *some[2:4]] + some[10:18] + some[4:12]
    batches = [make_batch(pairs[4 * i : 4 * i + 4 - (i % accumulate)]) for i in range(7)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def simulate(model, groups, options: dict[str, Any]) -> tuple[list[float], dict[str, Tensor], float]:
    """Return the losses of the steps, the final weights, and the final tau."""
    model = copy.deepcopy(model).double()
    theta = torch.tensor(math.log(options.get("temperature", 1.0)), dtype=torch.float64, requires_grad=True)
    learnable = options.get("learnable_temperature", True) and options.get("loss") != "mse"
    trains_source = options.get("source") == "trained"
    queue: list[tuple[Tensor, set]] = []
    losses = []
    for group in groups:
        objective, new = torch.zeros((), dtype=torch.float64), []
        for batch in group:
            source = model.encode(model.tower("de"), batch.source)[0]
            source = source if trains_source else source.detach()
            target = model.encode(model.tower("en"), batch.target)[0]
            ids = [{("source", a), ("target", b)} for a, b in batch.ids.tolist()]
            for i in range(len(batch)):
                share = objective.new_tensor(1.0) / sum(map(len, group))
                if options.get("loss") == "mse":
                    objective = objective + share * ((target[i] - source[i]) ** 2).sum()
                    continue
                others = [(source[j], ids[j]) for j in range(len(batch)) if j != i] + queue
                masked = options.get("mask_equal_sentences")
                negatives = [vector for vector, other in others if not (masked and other & ids[i])]
                positive = torch.exp(target[i] @ source[i] / theta.exp())
                total = positive + sum(torch.exp(target[i] @ vector / theta.exp()) for vector in negatives)
                objective = objective - share * torch.log(positive / total)
            new += zip(source.detach(), ids, strict=True)
        named = {n: p for n, p in model.named_parameters() if trains_source or ".source." not in n}
        inputs = [*named.values(), *([theta] if learnable else [])]
        for parameter, gradient in zip(inputs, torch.autograd.grad(objective, inputs), strict=True):
            parameter.data -= RATE * gradient
        theta.data.clamp_(math.log(0.01), 0)
        size = options.get("queue_size", 0)
        queue = (queue + new)[-size:] if size else []
        losses.append(float(objective.detach()))
    return losses, {name: p.detach() for name, p in model.named_parameters()}, float(theta.exp().detach())


def train(model, criterion, groups) -> list[float]:
    """Train as the trainer does: add up the gradients of the micro-batches, then make one step."""
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=RATE)
    losses = []
    for group in groups:
        size = sum(sizes_of(criterion, batch)["frozen_source"] for batch in group)
        optimizer.zero_grad()
        terms = [loss_of(criterion, model, batch).terms["frozen_source"] for batch in group]
        sum(term.sum / size for term in terms).backward()
        optimizer.step()
        criterion.after_step(model)
        losses.append(float(sum(term.sum.detach() for term in terms)) / size)
    return losses


RUNS = {
    "the batch alone": {},
    "queue wraps": {"queue_size": 10, "temperature": 0.1},
    "equal sentences masked": {"queue_size": 10, "temperature": 0.1, "mask_equal_sentences": True},
    "accumulation": {"queue_size": 9, "temperature": 0.2, "accumulate": 2},
    "queue below the batch": {"queue_size": 2, "temperature": 0.2, "accumulate": 2},
    "fixed temperature": {"queue_size": 50, "temperature": 0.05, "learnable_temperature": False},
    "dual": {"source": "trained", "temperature": 0.1},
    "multilingual": {"source": "trained", "towers": "shared", "mask_equal_sentences": True, "temperature": 0.1},
    "mse": {"loss": "mse"},
}


@pytest.mark.parametrize("name", RUNS)
def test_steps_equal_the_simulation(text, make_batch, name: str) -> None:
    options = dict(RUNS[name])
    # float64 is used because several steps amplify rounding errors of float32 differently on different processors.
    model = make_model(text, towers=options.pop("towers", "separate")).double()
    groups = make_groups(make_batch, options.pop("accumulate", 1))
    expected, weights, tau = simulate(model, groups, options)
    start = copy.deepcopy(model.state_dict())
    criterion = make_criterion(model, text, **options).double().train()
    if criterion.temperature is not None:
        criterion.temperature.theta.data.fill_(math.log(options.get("temperature", 1.0)))  # not rounded to float32

    losses = train(model, criterion, groups)

    assert losses == pytest.approx(expected, rel=1e-10)
    for parameter, exact in zip(model.state_dict().values(), weights.values(), strict=True):
        torch.testing.assert_close(parameter, exact, rtol=0, atol=1e-10)
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])]
    assert any("target" in name or "shared" in name for name in moved)
    assert any("source" in name for name in moved) == (name == "dual")
    if criterion.temperature is not None:
        assert float(criterion.temperature().detach()) == pytest.approx(tau, rel=1e-10)
        assert abs(tau - options.get("temperature", 1.0)) > 1e-4
    if criterion.queue is not None:
        assert criterion.queue.filled == min(options["queue_size"], sum(len(b) for group in groups for b in group))


def test_frozen_source_alone_is_named_as_frozen(text) -> None:
    model = make_model(text)
    assert make_criterion(model, text).frozen == ["encoders.source"]
    assert make_criterion(model, text, source="trained").frozen == ()
    projected = make_model(text, projection_size=12)
    assert make_criterion(projected, text).frozen == ["encoders.source", "projections.source"]


@pytest.mark.parametrize("micro_batch", [None, 8])
def test_the_source_is_bit_equal_after_training_and_has_no_dropout(
    data_directory: Path, tmp_path: Path, micro_batch: int | None
) -> None:
    given = {} if micro_batch is None else {"micro_batch": micro_batch}
    run = compose_run(
        data_directory, tmp_path / "run", criterion="frozen_source", towers="separate", queue_size=40, dropout=0.4,
        max_steps=6, weight_decay=0.1, save_every=0, **given,
    )  # fmt: skip
    trainer = make_trainer(run, tmp_path / "run")
    model, criterion = trainer.module.model, trainer.module.criterion
    before = copy.deepcopy(model.state_dict())
    still = copy.deepcopy(model).eval()
    seen = []
    contrast = criterion.contrast

    def look(vectors, planned):
        with torch.no_grad():
            exact = [still.encode(side, getattr(planned.batch, side))[0] for side in ("target", "source")]
            seen.append([float((one - other).abs().max()) for one, other in zip(vectors, exact, strict=True)])
        return contrast(vectors, planned)

    criterion.contrast = look
    trainer.train()
    assert len(seen) == 6 and max(source for _, source in seen) < 1e-6
    assert seen[0][0] > 0.05, "the target has dropout"
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name.split(".")[1] for name in changed} == {"target"}
    groups = trainer.engine.optimizer.param_groups
    theta = criterion.temperature.theta
    assert theta != 0 and [g["weight_decay"] for g in groups if any(p is theta for p in g["params"])] == [0.0]
    assert sum(len(g["params"]) for g in groups) == sum("target" in n for n, _ in model.named_parameters()) + 1


def test_the_temperature_stays_within_its_bounds_and_comes_back() -> None:
    temperature = LearnableTemperature(1.0)
    assert float(temperature().detach()) == 1.0 and temperature.theta.ndim == 0
    for step, bound in ((5.0, 1.0), (-50.0, 0.01)):
        temperature.theta.data += step
        temperature.clamp()
        assert float(temperature().detach()) == pytest.approx(bound)
        (gradient,) = torch.autograd.grad(temperature(), [temperature.theta])
        assert float(gradient) == pytest.approx(bound)


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"queue_size": -1}, "queue_size must be at least 0, not -1"),
        ({"temperature": 2.0}, "temperature must lie in [0.01, 1], not 2.0"),
        ({"temperature": 0.0, "learnable_temperature": False}, "temperature must lie in [0.0001, 10000], not 0.0"),
        ({"loss": "mse", "queue_size": 5}, "queue_size is for loss: contrastive; mse has no negatives"),
        ({"teacher_text": "x"}, "teacher_vectors and teacher_text belong together; give both"),
        ({"cache_source": "x", "teacher_text": "x", "teacher_vectors": "y"}, "cache_source is for a source tower"),
        ({"source": "trained", "queue_size": 5}, "queue_size needs source: frozen; queued vectors"),
        ({"source": "trained", "loss": "mse"}, "loss mse needs source: frozen; both towers would"),
        ({"source": "trained", "cache_source": "x"}, "cache_source needs source: frozen; cached"),
        ({"source": "trained", "teacher_text": "x", "teacher_vectors": "y"}, "teacher_vectors needs source: frozen"),
    ],
    ids=str,
)
def test_problems(given: dict[str, Any], problem: str) -> None:
    (found,) = FrozenSource.Config(**given).problems()
    assert found.startswith(problem)


def test_a_shared_tower_cannot_be_frozen(text) -> None:
    with pytest.raises(UserError, match=r"this model has one for both sides; set `towers` to separate, or `source`"):
        make_criterion(make_model(text, towers="shared"), text)


def test_a_long_queue_of_few_pairs_is_warned_of(text) -> None:
    model, task = make_model(text), SimpleNamespace(examples=100)
    (warning,) = make_criterion(model, text, queue_size=51).warnings(task)
    assert "queue_size 51 exceeds half of the 100 training pairs" in warning
    assert make_criterion(model, text, queue_size=50).warnings(task) == []
    assert make_criterion(model, text, queue_size=51, mask_equal_sentences=True).warnings(task) == []


def test_evaluation_leaves_the_queue_alone(text, make_batch) -> None:
    model = make_model(text)
    criterion = make_criterion(model, text, queue_size=6).eval()
    loss_of(criterion, model, make_batch(sentence_pairs(4)))
    criterion.after_step(model)
    assert criterion.queue.filled == 0
    nn.ModuleList([model, criterion]).train()
    loss_of(criterion, model, make_batch(sentence_pairs(4)))
    criterion.after_step(model)
    assert criterion.queue.filled == 4
