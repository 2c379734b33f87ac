"""frozen_source against a simulation of section 3.2 in float64, in which a list is the queue."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.criteria.equations_vectors import cut
from tests.criteria.objectives import SMALL
from tests.criteria.steps import Groups, make_groups, train
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from tests.support.runs import compose_run, make_trainer
from xrep.criteria.frozen_source import FrozenSource, LearnableTemperature
from xrep.models.dual_encoder import DualEncoder

RATE = 0.5


def make_model(text, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    own = {**SMALL, "layers": 1, "towers": "separate", **options}
    return DualEncoder(DualEncoder.Config(**own), text).double()


def make(model: DualEncoder, text, **options: Any) -> FrozenSource:
    return FrozenSource(FrozenSource.Config(**options), model, text).double()


def simulate(model, groups: Groups, options: dict[str, Any]) -> tuple[list[float], dict[str, Tensor], float]:
    """Return the losses of the steps, the final weights, and the final tau."""
    model = copy.deepcopy(model)
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
                for width in (None, *options.get("matryoshka", [])):
                    query = cut(target[i], width)
                    positive = torch.exp(query @ cut(source[i], width) / theta.exp())
                    total = positive + sum(torch.exp(query @ cut(vector, width) / theta.exp()) for vector in negatives)
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


RUNS = {
    "the batch alone": {},
    "queue wraps": {"queue_size": 10, "temperature": 0.1, "matryoshka": [7]},
    "equal sentences masked": {"queue_size": 10, "temperature": 0.1, "mask_equal_sentences": True},
    "accumulation": {"queue_size": 9, "temperature": 0.2, "accumulate": 2},
    "queue below the batch": {"queue_size": 2, "temperature": 0.2, "accumulate": 2},
    "fixed temperature": {"queue_size": 50, "temperature": 0.05, "learnable_temperature": False},
    "dual": {"source": "trained", "temperature": 0.1},
    "mse": {"loss": "mse"},
}


@pytest.mark.parametrize("name", RUNS)
def test_steps_equal_the_simulation(text, make_batch, name: str) -> None:
    options, model = dict(RUNS[name]), make_model(text)
    groups = make_groups(make_batch, options.pop("accumulate", 1))
    expected, weights, tau = simulate(model, groups, options)
    start = copy.deepcopy(model.state_dict())
    criterion = make(model, text, **options).train()
    if criterion.temperature is not None:
        criterion.temperature.theta.data.fill_(math.log(options.get("temperature", 1.0)))  # not rounded to float32

    losses = train(model, criterion, groups, RATE)

    error = 1e-6 if "matryoshka" in options else 1e-10  # queued vectors are cut in float32
    assert losses == pytest.approx(expected, rel=error)
    for parameter, exact in zip(model.state_dict().values(), weights.values(), strict=True):
        torch.testing.assert_close(parameter, exact, rtol=0, atol=error)
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])]
    assert any("target" in name for name in moved) and any("source" in name for name in moved) == (name == "dual")
    if criterion.temperature is not None:
        assert float(criterion.temperature().detach()) == pytest.approx(tau, rel=error)
        assert abs(tau - options.get("temperature", 1.0)) > 1e-4
    if criterion.queue is not None:
        assert criterion.queue.filled == min(options["queue_size"], sum(len(b) for group in groups for b in group))


def test_frozen_source_alone_is_named_as_frozen(text) -> None:
    model = make_model(text, projection_size=12)
    assert make(model, text, source="trained").frozen == ()
    assert make(model, text).frozen == ["encoders.source", "projections.source"]


@pytest.mark.slow
def test_the_source_is_bit_equal_after_training_and_has_no_dropout(data_directory: Path, tmp_path: Path) -> None:
    run = compose_run(
        data_directory, tmp_path / "run", criterion="frozen_source", towers="separate", queue_size=40, dropout=0.4,
        max_steps=6, weight_decay=0.1, save_every=0, micro_batch=8,
    )  # fmt: skip
    trainer = make_trainer(run, tmp_path / "run")
    model, criterion = trainer.module.model, trainer.module.criterion
    before, still, seen = copy.deepcopy(model.state_dict()), copy.deepcopy(model).eval(), []
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


def test_a_long_queue_of_few_pairs_is_warned_of(text) -> None:
    model, task = make_model(text), SimpleNamespace(examples=100)
    (warning,) = make(model, text, queue_size=51).warnings(task)
    assert "queue_size 51 exceeds half of the 100 training pairs" in warning
    for enough in ({"queue_size": 50}, {"queue_size": 51, "mask_equal_sentences": True}):
        assert make(model, text, **enough).warnings(task) == []


def test_evaluation_leaves_the_queue_alone(text, make_batch) -> None:
    model = make_model(text)
    criterion = make(model, text, queue_size=6)
    for training, filled in ((False, 0), (True, 4)):
        loss_of(criterion.train(training), model, make_batch(sentence_pairs(4)))
        criterion.after_step(model)
        assert criterion.queue.filled == filled
