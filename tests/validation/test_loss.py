"""The objective on the dev split, against the same sums over single batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.corpus import sentence_pairs
from tests.fixtures import data_directory
from xrep.config import Part
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.validation.loss import SEED, LossValidator
from xrep.validation.retrieval import evaluating

__all__ = ["data_directory"]
SIZES = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 64, "towers": "shared"}


@pytest.fixture
def make(tmp_path: Path, data_directory: Path):
    def made(**options: Any) -> MonolingualTask:
        german, english = zip(*sentence_pairs(400), strict=True)
        files = {"train.de": german[:100], "train.en": english[:100], "valid.de": german[100:370]}
        for name, lines in files.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        given = {"data": str(tmp_path), "tokenizer": str(data_directory), "max_length": 64, **options}
        return MonolingualTask(MonolingualTask.Config(**given), 1)

    return made


def test_a_mean_over_masked_tokens(make) -> None:
    task = make()
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SIZES, dropout=0.5), task.text)
    criterion = MLM(MLM.Config(), model, task.text)
    model.train(), criterion.eval()
    before = torch.get_rng_state()
    validate = LossValidator(LossValidator.Config(), task)
    found = validate(model, criterion)
    assert torch.equal(torch.get_rng_state(), before) and model.training and not criterion.training
    assert validate(model, criterion) == found and set(found) == {"loss", "accuracy", "perplexity"}
    batches = list(task.validation_batches())
    assert [len(batch) for batch in batches] == [128, 128, 14]
    torch.manual_seed(SEED)
    with evaluating(model, criterion):
        losses = [criterion(model, batch) for batch in batches]
    size = sum(criterion.sizes(batch)["mlm"] for batch in batches)
    assert found["loss"] == pytest.approx(sum(float(loss.terms["mlm"].sum) for loss in losses) / size, rel=1e-6)
    right = sum(float(loss.metrics["accuracy"]) * loss.rows["accuracy"] for loss in losses)
    assert found["accuracy"] == pytest.approx(right / size, rel=1e-6)
    nn.init.constant_(criterion.language.heads["shared"].bias, 0.0)
    criterion.language.heads["shared"].bias.data[7] = 5.0
    assert validate(model, criterion)["loss"] > found["loss"] + 0.3


def test_of_several_parts(make) -> None:
    parts = {"a": make(), "b": make(units="adjacent")}
    tasks = [Part(name, MonolingualTask, task.config, 1.0, 1.0) for name, task in parts.items()]
    task = MixtureTask(MixtureTask.Config(parts=tasks, mixing="weight"), 1)
    model = DualEncoder(DualEncoder.Config(**SIZES), task.text)
    config = Multitask.Config(parts=[Part(name, MLM, MLM.Config(), 1.0, 1.0) for name in parts], mixing="weight")
    criterion = Multitask(config, model, task.text)
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    assert found["loss"] == pytest.approx((found["a/loss"] + found["b/loss"]) / 2)
    assert set(found) == {"loss", *(f"{p}/{name}" for p in "ab" for name in ("loss", "accuracy", "perplexity"))}


def test_no_dev_split(make, tmp_path: Path) -> None:
    make()
    (tmp_path / "valid.de").rename(tmp_path / "more.de")
    task = MonolingualTask(MonolingualTask.Config(data=str(tmp_path), vocab_size=90), 1)
    with pytest.raises(UserError, match="there is no dev split of task monolingual to validate on; give it files"):
        LossValidator(LossValidator.Config(), task)
