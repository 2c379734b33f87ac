"""Messages of a run whose step fails."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs import TwoTerms, compose_run, make_trainer
from xrep.criteria.criterion import Planned
from xrep.errors import TrainingError
from xrep.models.directory import open_checkpoint
from xrep.training.run import train
from xrep.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEADY = {"criterion": "two_terms", "lr_scheduler": "constant"}


def trainer_of(data: Path, folder: Path, **given: Any) -> Trainer:
    return make_trainer(compose_run(data, folder, **{**STEADY, **given}), folder)


def test_a_loss_that_is_no_number_ends_the_run_and_harms_nothing(data_directory, two_terms, tmp_path):
    steady = {**STEADY, "save_every": 1, "keep_last": 9}
    seventh = trainer_of(data_directory, tmp_path / "good", max_steps=7, **steady)
    with seventh.checkpoints:
        seventh.train()
    poisoned = two_terms.seen[6][11]
    first = seventh.task.describe(seventh.task.make(next(seventh.task.plan(180)).rows), limit=3)
    with pytest.raises(TrainingError) as error:
        train(compose_run(data_directory, tmp_path / "bad", max_steps=20, poisoned=poisoned, **steady))
    last = tmp_path / "bad" / "checkpoint-00000006"
    assert str(error.value).startswith(
        "step 7: the loss is nan; it begins in criterion (from finite inputs); the batch begins with "
    )
    assert first in str(error.value) and " ||| " in first
    assert f"last good checkpoint: {last};" in str(error.value)
    good = open_checkpoint(tmp_path / "good" / last.name).tensors()
    assert all(torch.equal(tensor, good[name]) for name, tensor in open_checkpoint(last).tensors().items())
    assert (tmp_path / "bad" / "last").resolve() == last.resolve()


def infinite_module(trainer: Trainer) -> None:
    norm = trainer.pair.model.encoders["shared"].layers[0].feedforward_norm
    norm.register_forward_hook(lambda module, inputs, output: output * torch.inf if trainer.state.step >= 2 else None)


def weight_without_number(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.pair.model.encoders["shared"].layers[0].attention.qkv.bias[3] = torch.nan


def gradient_of(value: float) -> Callable[[Trainer], None]:
    """Make one gradient infinite; clipping must not spread it to others."""

    def spoil(trainer: Trainer) -> None:
        bias = trainer.pair.model.encoders["shared"].layers[0].attention.output.bias
        bias.register_hook(lambda gradient: torch.full_like(gradient, value))

    return spoil


LAYER = r"model\.encoders\.shared\.layers\.0"
GRADIENT = rf"the norm of the gradient is (nan|inf); it begins in the gradient of {LAYER}\.attention\.output\.bias"


@pytest.mark.parametrize(("spoil", "clip_norm", "message"), [
    (infinite_module, 1.0, rf"step 3: the loss is nan; it begins in {LAYER}\.feedforward_norm "
     r"\(from finite inputs\); the batch begins with de-en"),
    (weight_without_number, 1.0, rf"step 1: the loss is nan; it begins in the weights of {LAYER}\.attention\.qkv"),
    (gradient_of(math.inf), 10.0, GRADIENT),
    (gradient_of(math.nan), 10.0, GRADIENT),
    (gradient_of(math.inf), 0.0, GRADIENT),
])  # fmt: skip
def test_what_is_no_number_is_named(data_directory, two_terms, tmp_path, spoil, clip_norm, message):
    trainer = trainer_of(data_directory, tmp_path, max_steps=5, clip_norm=clip_norm)
    spoil(trainer)
    before = {name: p.clone() for name, p in trainer.pair.named_parameters()}
    with pytest.raises(TrainingError, match=message):
        trainer.train()
    if message == GRADIENT:
        assert all(torch.equal(p, before[name]) for name, p in trainer.pair.named_parameters())


def test_memory_that_runs_out(data_directory, two_terms, tmp_path, monkeypatch):
    """The error is the allocator's own, because the test requests more memory than any machine has."""
    forward = two_terms.forward

    def greedy(self: TwoTerms, model: Any, planned: Planned) -> Any:
        if len(two_terms.seen) == 3:
            torch.empty(2**55)
        return forward(self, model, planned)

    monkeypatch.setattr(two_terms, "forward", greedy)
    trainer = trainer_of(data_directory, tmp_path, max_steps=9, save_every=1)
    with pytest.raises(TrainingError) as error:
        with trainer.checkpoints:
            trainer.train()
    said = str(error.value)
    assert said.startswith("step 4: cpu: out of memory with 30 examples of ")
    assert "lower `batch_size` or `max_tokens` (and raise `update_freq`), `micro_batch` or `max_length`" in said
    assert said.endswith(f"last good checkpoint: {tmp_path / 'checkpoint-00000003'}")


def test_a_dead_data_worker_ends_the_run(data_directory: Path, two_terms: type[TwoTerms], tmp_path: Path) -> None:
    trainer = trainer_of(data_directory, tmp_path, max_steps=1000, data_workers=2)
    killed: list[int] = []

    def kill_one(*_: Any) -> None:
        if trainer.state.step == 2 and not killed:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            killed.append(int(children[-1]))
            os.kill(killed[0], signal.SIGKILL)

    trainer.pair.register_forward_pre_hook(kill_one)
    with pytest.raises(TrainingError, match="a data worker was killed"):
        trainer.train()
