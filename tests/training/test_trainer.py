"""The trainer: its steps, the end of a run, and the state that it keeps."""

import json
import math

import pytest
import torch

from tests.support.runs import compose_run, contents, make_trainer
from xrep.errors import TrainingError, UserError
from xrep.models.directory import open_checkpoint
from xrep.training.run import train
from xrep.training.trainer import Trainer


class Scripted:
    """A validator that returns given metrics."""

    metric, maximize = "score", True

    def __init__(self, *values):
        self.values = list(values)

    def __call__(self, model, criterion, world):
        return {"score": self.values.pop(0)}


def records(directory, kind):
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_accumulated_batches_equal_one_large_batch(data_directory, two_terms, double, tmp_path):
    """Each term is divided by its size over the batches of a step, which is equal for pairs but not for tokens."""
    exact = {"criterion": "two_terms", "dropout": 0, "attention_dropout": 0, "max_steps": 4}
    large = make_trainer(compose_run(data_directory, tmp_path / "a", batch_size=80, **exact), tmp_path / "a")
    large.train()
    parts = compose_run(data_directory, tmp_path / "b", batch_size=40, update_freq=2, **exact)
    small = make_trainer(parts, tmp_path / "b")
    tokens = [batch.token_count for batch, _ in next(small._groups())]
    small.train()
    assert tokens[0] != tokens[1]
    assert large.state.examples == small.state.examples == 320
    for (name, one), other in zip(large.module.state_dict().items(), small.module.state_dict().values(), strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in "ab"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


@pytest.mark.parametrize("limit", [0.5, 0])
def test_gradients_are_clipped(data_directory, two_terms, tmp_path, limit):
    run = compose_run(data_directory, tmp_path, criterion="two_terms", max_steps=1, log_every=1, clip_norm=limit)
    trainer = make_trainer(run, tmp_path)
    trainer.train()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trainer.module.parameters() if p.grad is not None))
    reported = records(tmp_path, "train")[0]["gradient_norm"]
    assert reported > 1
    assert norm == pytest.approx(limit or reported, rel=1e-4)


def test_a_loss_that_is_no_number_ends_the_run_and_harms_nothing(data_directory, two_terms, tmp_path):
    steady = {"criterion": "two_terms", "lr_scheduler": "constant", "save_every": 1, "keep_last": 9}
    train(compose_run(data_directory, tmp_path / "good", max_steps=6, **steady))
    seventh = make_trainer(compose_run(data_directory, tmp_path / "x", max_steps=7, **steady), tmp_path / "x")
    seventh.train()
    poisoned = two_terms.seen[6][11]
    first = seventh.task.describe(seventh.task.make(next(seventh.task.plan(180)).what), limit=3)
    with pytest.raises(TrainingError) as error:
        train(compose_run(data_directory, tmp_path / "bad", max_steps=20, poisoned=poisoned, **steady))
    last = tmp_path / "bad" / "checkpoint-00000006"
    assert str(error.value).startswith(
        "step 7: the loss is nan; it begins in criterion (from finite inputs); the batch begins with "
    )
    assert first in str(error.value) and " ||| " in first
    assert f"last good checkpoint: {last};" in str(error.value)
    good = open_checkpoint(tmp_path / "good" / "last").tensors()
    assert all(torch.equal(tensor, good[name]) for name, tensor in open_checkpoint(last).tensors().items())
    assert (tmp_path / "bad" / "last").resolve() == last.resolve()


def test_a_fraction_of_an_epoch_and_a_ragged_batch(data_directory, two_terms, tmp_path):
    run = compose_run(data_directory, tmp_path, criterion="two_terms", max_epochs=1.5, batch_size=100)
    state = train(run).state
    assert (state.step, state.examples) == (10, 945)
    assert [len(batch) for batch in two_terms.seen] == [100] * 9 + [45]
    seen = [index for batch in two_terms.seen for index in batch]
    assert sorted(seen[:630]) == list(range(630))
    assert len(set(seen[630:])) == 315


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 3, 400])
def test_minutes_end_a_run_and_its_schedule(data_directory, two_terms, tmp_path, monkeypatch, warmup, schedule):
    """A step takes a second. Warm-up ends with its steps or with a tenth of the minutes, and then the rate decays."""
    monkeypatch.setattr(Trainer, "_seconds", lambda trainer: trainer.state.step + 0.5)
    given = {"criterion": "two_terms", "max_minutes": 1, "log_every": 1, "lr_scheduler": schedule}
    run = compose_run(data_directory, tmp_path, **given, warmup_steps=warmup)
    trainer = make_trainer(run, tmp_path)
    state = trainer.train()
    rates = [record["learning_rate"] / 3e-3 for record in records(tmp_path, "train")]
    peak = min(warmup, 6)
    assert state.step == 60 and max(rates) > 0.97
    assert rates[:peak] == sorted(rates[:peak]) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] > 0.97 if warmup == 0 else rates[0] <= 1 / 3
    assert 0 < rates[-1] < 0.03


@pytest.mark.parametrize("bound", [{"max_steps": 30}, {"max_epochs": 1, "batch_size": 21}])
def test_a_warm_up_that_is_longer_than_the_run_is_shortened(data_directory, two_terms, tmp_path, bound, capfd):
    given = {"criterion": "two_terms", "log_every": 1, "lr_scheduler": "linear", **bound}
    for warmup in (29, 30, 400):
        train(compose_run(data_directory, tmp_path / str(warmup), **given, warmup_steps=warmup))
        rates = [record["learning_rate"] / 3e-3 for record in records(tmp_path / str(warmup), "train")]
        said = capfd.readouterr().err
        assert len(rates) == 30 and max(rates) == pytest.approx(1)
        if warmup == 29:
            assert "warm-up" not in said and rates[28] == pytest.approx(1)
            continue
        problem = f"the warm-up of {warmup} steps would last for all 30 steps of this run; it is shortened to 3"
        assert f"warning: {problem}\n" in said
        assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1]) and rates[-1] == pytest.approx(1 / 27)


def test_patience_ends_training_after_worse_validations(data_directory, two_terms, tmp_path):
    """The best of all is step 4; the third validation after it ends the run, and a repeated call does not go on."""
    steps = {"criterion": "two_terms", "max_steps": 20, "validate_every": 2}
    run = compose_run(data_directory, tmp_path, **steps, patience=3)
    trainer = make_trainer(run, tmp_path / "run", Scripted(1, 5, 2, 4, 3, 9))
    state = trainer.train()
    assert (state.step, state.best_step) == (10, 4)
    again = make_trainer(run, tmp_path / "again", Scripted(9))
    again.state.step, again.state.best_step, again.state.best = 10, 4, 5.0
    assert again.train().step == 10 and again.state.best == 5.0
    with pytest.raises(UserError, match="patience needs validations"):
        compose_run(data_directory, tmp_path, **(steps | {"validate_every": 0}), patience=3)


def test_best_last_and_recent_checkpoints_are_kept(data_directory, two_terms, tmp_path):
    run = compose_run(
        data_directory, tmp_path, criterion="two_terms", max_steps=12, validate_every=2, save_every=3, keep_last=2
    )
    trainer = make_trainer(run, tmp_path, Scripted(10, 30, 20, 30, 25, 29))
    state = trainer.train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [
        "checkpoint-00000008", "checkpoint-00000009", "checkpoint-00000012",
    ]  # fmt: skip
    # Of equal scores the later one is the best.
    assert (tmp_path / "best").resolve().name == "checkpoint-00000008"
    assert (tmp_path / "last").resolve().name == "checkpoint-00000012"
    assert (state.best, state.best_step) == (30, 8)
    assert [record["score"] for record in records(tmp_path, "valid")] == [10, 30, 20, 30, 25, 29]


def test_a_lower_value_may_be_better(data_directory, two_terms, tmp_path):
    validate = Scripted(3.0, 1.0, 2.0)
    validate.maximize = False
    run = compose_run(data_directory, tmp_path, criterion="two_terms", max_steps=6, validate_every=2)
    assert make_trainer(run, tmp_path, validate).train().best_step == 4
    assert (tmp_path / "best").resolve().name == "checkpoint-00000004"


def test_going_on_is_the_same_as_never_stopping(data_directory, tmp_path):
    """Dropout, queues, momentum encoders, optimizer and order of data continue exactly after a resumption."""
    steady = {"lr_scheduler": "constant", "validate_every": 4, "save_every": 5}
    once = train(compose_run(data_directory, tmp_path / "once", max_steps=24, **steady))
    train(compose_run(data_directory, tmp_path / "twice", max_steps=11, **steady))
    twice = train(compose_run(data_directory, tmp_path / "twice", max_steps=24, **steady))
    assert (once.state.step, once.state.examples, once.state.best) == (24, 720, twice.state.best)
    one, other = contents(once.directory / "checkpoint-00000024"), contents(twice.directory / "checkpoint-00000024")
    for name in ("model.safetensors", "criterion.safetensors"):
        assert one[name] == other[name]
    assert [record["step"] for record in records(twice.directory, "train")] == [5, 10, 11, 15, 20, 24]


def test_another_batch_size_after_resuming_misses_and_repeats_nothing(data_directory, two_terms, tmp_path):
    run = {"criterion": "two_terms", "save_dir": tmp_path / "run"}
    train(compose_run(data_directory, **run, batch_size=70, max_steps=4))
    before = two_terms.seen
    train(compose_run(data_directory, **run, batch_size=50, update_freq=2, max_epochs=1))
    after = two_terms.seen
    assert {len(batch) for batch in before} == {70} and [len(batch) for batch in after] == [50] * 7
    assert sorted(index for batch in before + after for index in batch) == list(range(630))
