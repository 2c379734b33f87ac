"""The trainer: its steps, the end of a run, and what it validates and keeps."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs import compose_run, figures, make_trainer
from xrep.errors import UserError
from xrep.training.run import train
from xrep.training.trainer import Trainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_terms")]
TERMS = {"criterion": "two_terms", "log_every": 1}


class Scripted:
    """A validator that returns given metrics."""

    metric, maximize, examples = "score", True, ()

    def __init__(self, *values: float, maximize: bool = True) -> None:
        self.values, self.maximize = list(values), maximize

    def __call__(self, *_: Any) -> dict[str, float]:
        return {"score": self.values.pop(0)}


def column(run: Path, name: str) -> list[Any]:
    """Return a number of all records that have it."""
    return [record[name] for record in figures(run) if name in record]


@pytest.mark.parametrize(("criterion", "given"), [
    ("two_terms", {"batch_size": 40, "update_freq": 2}),
    ("two_terms", {"activation_checkpointing": None}),
    ("two_terms", {"data_workers": 2}),
    ("translation_ranking", {"micro_batch": 8}),
])  # fmt: skip
def test_the_same_gradients(data_directory: Path, tmp_path: Path, criterion: str, given: dict[str, Any]) -> None:
    """Each term is divided by its size over the batches of a step, which is equal for pairs but not for tokens."""
    exact = {"dropout": 0, "attention_dropout": 0, "max_steps": 4, "batch_size": 80, "log_every": 1}
    torch.set_default_dtype(torch.float64)
    try:
        found = []
        for name, more in (("whole", {}), ("other", given)):
            run = compose_run(data_directory, tmp_path / name, criterion=criterion, **{**exact, **more})
            found.append(make_trainer(run, tmp_path / name))
            found[-1].train()
    finally:
        torch.set_default_dtype(torch.float32)
    whole, other = found
    assert whole.state.examples == other.state.examples == 320
    for name, tensor in whole.pair.state_dict().items():
        assert tensor.dtype == torch.float64
        torch.testing.assert_close(other.pair.state_dict()[name], tensor, rtol=0, atol=1e-10, msg=name)
    for name in ("loss", "gradient_norm"):
        assert column(tmp_path / "whole", name) == pytest.approx(column(tmp_path / "other", name), rel=1e-10)


@pytest.mark.parametrize("limit", [0.5, 0])
def test_gradients_are_clipped(data_directory: Path, tmp_path: Path, limit: float) -> None:
    trainer = make_trainer(compose_run(data_directory, tmp_path, **TERMS, max_steps=1, clip_norm=limit), tmp_path)
    trainer.train()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trainer.pair.parameters() if p.grad is not None))
    (reported,) = column(tmp_path, "gradient_norm")
    assert reported > 1 and norm == pytest.approx(limit or reported, rel=1e-4)


def test_a_fraction_of_an_epoch_and_a_ragged_batch(data_directory: Path, two_terms: Any, tmp_path: Path) -> None:
    state = train(compose_run(data_directory, tmp_path, **TERMS, max_epochs=1.5, batch_size=100)).state
    assert (state.step, state.examples) == (10, 945)
    assert [len(batch) for batch in two_terms.seen] == [100] * 9 + [45]
    seen = [index for batch in two_terms.seen for index in batch]
    assert sorted(seen[:630]) == list(range(630)) and len(set(seen[630:])) == 315


@pytest.mark.parametrize("warmup", [0, 3, 400])
def test_minutes_end_a_run_and_its_schedule(data_directory, tmp_path, monkeypatch, warmup):
    """A step takes a second. Warm-up ends with its steps or with a tenth of the minutes, and then the rate decays."""
    monkeypatch.setattr(Trainer, "status", lambda trainer: (trainer.state.step + 0.5, False))
    given = {**TERMS, "max_minutes": 0.5, "lr_scheduler": "cosine", "warmup_steps": warmup, "batch_size": 5}
    state = make_trainer(compose_run(data_directory, tmp_path, **given), tmp_path).train()
    rates = [rate / 3e-3 for rate in column(tmp_path, "learning_rate")]
    peak = min(warmup, 3)
    assert state.step == 30 and max(rates) > 0.97
    assert rates[:peak] == sorted(rates[:peak]) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] > 0.97 if warmup == 0 else rates[0] <= 1 / 3
    assert 0 < rates[-1] < 0.03


@pytest.mark.parametrize(("clock", "steps"), [("cpu", 12), ("wall", 3)])
def test_minutes_are_those_of_the_clock_or_the_processor(data_directory, tmp_path, monkeypatch, clock, steps):
    """A step takes 10 seconds of which 2.5 are of the processor. A run that goes on counts what it had used before."""
    ticks = itertools.count(1000, 1e-6)
    for kind, share in (("monotonic", 10), ("process_time", 2.5)):
        monkeypatch.setattr(f"time.{kind}", lambda share=share: next(ticks) + share * trainer.state.step)
    given = {**TERMS, "max_minutes": 0.5, "clock": clock, "batch_size": 5}
    trainer = make_trainer(compose_run(data_directory, tmp_path / "whole", **given), tmp_path / "whole")
    assert trainer.train().step == steps and trainer.state.seconds == pytest.approx(30, abs=0.1)
    trainer = make_trainer(compose_run(data_directory, tmp_path / "resumed", **given), tmp_path / "resumed")
    trainer.state.seconds = 20.0
    assert trainer.train().step == steps / 3


@pytest.mark.parametrize(
    ("warmup", "bound"),
    [(29, {"max_steps": 30}), (30, {"max_steps": 30}), (400, {"max_epochs": 0.5, "batch_size": 11})],
)
def test_a_warm_up_that_is_longer_than_the_run_is_shortened(data_directory, tmp_path, warmup, bound, capfd):
    given = {**TERMS, "lr_scheduler": "linear", "batch_size": 5, "validate_every": 0, **bound}
    train(compose_run(data_directory, tmp_path / "run", **given, warmup_steps=warmup))
    rates, said = [rate / 3e-3 for rate in column(tmp_path / "run", "learning_rate")], capfd.readouterr().err
    if warmup == 29:
        assert "warm-up" not in said and rates[28] == pytest.approx(1)
        return
    count = len(rates)
    problem = f"the warm-up of {warmup} steps would last for all {count} steps of this run; it is shortened to 3"
    assert f"warning: {problem}\n" in said
    assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1]) and rates[-1] < rates[4] < 1


def test_patience_ends_training_after_worse_validations(data_directory: Path, tmp_path: Path) -> None:
    """The best of all is step 4; the third validation after it ends the run, and a repeated call does not go on."""
    run = compose_run(data_directory, tmp_path, **TERMS, max_steps=20, validate_every=2, patience=3)
    state = make_trainer(run, tmp_path / "run", Scripted(1, 5, 2, 4, 3, 9)).train()
    assert (state.step, state.best_step) == (10, 4)
    again = make_trainer(run, tmp_path / "again", Scripted(9))
    again.state.step, again.state.best_step, again.state.best, again.state.worse = 10, 4, 5.0, 3
    assert again.train().step == 10 and again.state.best == 5.0
    again.state.worse = 0  # validations, not steps, are counted
    assert not again.finished
    with pytest.raises(UserError, match="patience needs validations"):
        compose_run(data_directory, tmp_path, **TERMS, validate_every=0, patience=3)


@pytest.mark.parametrize("sign", [1, -1])
def test_best_last_and_recent_checkpoints_are_kept(data_directory: Path, tmp_path: Path, sign: int) -> None:
    """Of equal scores the later one is the best. A lower value may be better."""
    given = {**TERMS, "max_steps": 12, "validate_every": 2, "save_every": 3, "keep_last": 2}
    scores = [sign * score for score in (10, 30, 20, 30, 25, 29)]
    validate = Scripted(*scores, maximize=sign > 0)
    state = make_trainer(compose_run(data_directory, tmp_path, **given), tmp_path, validate).train()
    assert sorted(int(path.name[-8:]) for path in tmp_path.glob("checkpoint-*")) == [8, 9, 12]
    assert [(tmp_path / name).resolve().name for name in ("best", "last")] == [
        "checkpoint-00000008",
        "checkpoint-00000012",
    ]
    assert (state.best, state.best_step) == (sign * 30, 8)
    assert column(tmp_path, "score") == scores
