"""The objective on the dev split, against the same sums over single batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from xrep.config import Part
from xrep.criteria.criterion import Criterion, Planned
from xrep.criteria.dap import DAP
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.training.validator import SEED, evaluating
from xrep.validation.loss import LossValidator

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


@pytest.fixture
def undivided(tmp_path_factory: pytest.TempPathFactory, data_directory: Path) -> MonolingualTask:
    """Text that has no dev split."""
    folder = tmp_path_factory.mktemp("undivided")
    lines = "".join(f"{german}\n" for german, _ in sentence_pairs(100, seed=1))
    (folder / "train.de").write_text(lines, encoding="utf-8")
    given = {"data": str(folder), "tokenizer": str(data_directory), "max_length": 64}
    return MonolingualTask(MonolingualTask.Config(**given), 1)


def planned(criterion: Criterion, batches: list[Any]) -> list[Planned]:
    """The plans of the batches, their random numbers drawn one after the other, as the validator draws them."""
    generator = torch.Generator().manual_seed(SEED)
    return [criterion.plan(batch, generator) for batch in batches]


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
    plans = planned(criterion, batches)
    with evaluating(model, criterion):
        losses = [criterion(model, plan) for plan in plans]
    size = sum(plan.sizes["mlm"] for plan in plans)
    assert found["loss"] == pytest.approx(sum(float(loss.terms["mlm"].sum) for loss in losses) / size, rel=1e-6)
    right = sum(float(loss.metrics["accuracy"]) * loss.rows["accuracy"] for loss in losses)
    assert found["accuracy"] == pytest.approx(right / size, rel=1e-6)
    nn.init.constant_(criterion.language.heads["shared"].bias, 0.0)
    criterion.language.heads["shared"].bias.data[7] = 5.0
    assert validate(model, criterion)["loss"] > found["loss"] + 0.3


def mixed(
    parts: dict[str, MonolingualTask | BitextTask], weights: tuple[float, ...]
) -> tuple[MixtureTask, DualEncoder, Multitask]:
    """The tasks as one task, with mlm of a weight for each."""
    tasks = [Part(name, type(task), task.config, 1.0, 1.0) for name, task in parts.items()]
    task = MixtureTask(MixtureTask.Config(parts=tasks, mixing="weight"), 1)
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SIZES, dropout=0.5), task.text)
    criteria = [Part(name, MLM, MLM.Config(), weight, 1.0) for name, weight in zip(parts, weights, strict=True)]
    return task, model, Multitask(Multitask.Config(parts=criteria, mixing="weight"), model, task.text)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 0.25)])
def test_several_parts_are_the_weighted_objective(make, weights: tuple[float, float]) -> None:
    """Each term is divided by its own size, over all batches, and the weights of the parts count, as in training."""
    task, model, criterion = mixed({"a": make(), "b": make(units="adjacent")}, weights)
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    plans = planned(criterion, list(task.validation_batches()))
    with evaluating(model, criterion):
        losses = [criterion(model, plan) for plan in plans]
    for part, weight in zip("ab", weights, strict=True):
        name = f"{part}/mlm"
        own = [loss for loss in losses if name in loss.terms]
        size = sum(plan.sizes.get(name, 0) for plan in plans)
        total = sum(float(loss.terms[name].sum) for loss in own)
        assert len(own) > 1 and found[f"loss_{name}"] == pytest.approx(weight * total / size, rel=1e-6)
        right = sum(float(loss.metrics[f"{part}/accuracy"]) * loss.rows[f"{part}/accuracy"] for loss in own)
        assert found[f"{part}/accuracy"] == pytest.approx(right / size, rel=1e-6)
    assert found["loss"] == pytest.approx(found["loss_a/mlm"] + found["loss_b/mlm"])
    metrics = {f"{part}/{name}" for part in "ab" for name in ("accuracy", "perplexity")}
    assert set(found) == {"loss", "loss_a/mlm", "loss_b/mlm", *metrics}


def test_parts_without_a_dev_split_are_left_out(make, undivided) -> None:
    task, model, criterion = mixed({"a": make(), "b": undivided}, (2.0, 1.0))
    assert not undivided.has_validation and task.has_validation
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    assert set(found) == {"loss", "a/accuracy", "a/perplexity"}
    double, other = mixed({"a": make(), "b": undivided}, (1.0, 1.0))[1:]
    assert found["loss"] == pytest.approx(2 * LossValidator(LossValidator.Config(), task)(double, other)["loss"])


def test_the_whole_criterion_of_any_task(data_directory: Path) -> None:
    """Translations, too: all terms of DAP with their weights, on the dev split of both language pairs."""
    task = BitextTask(BitextTask.Config(data=str(data_directory), max_length=32), 1)
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SIZES), task.text)
    criterion = DAP(DAP.Config(rtl_layers=1, rtl_direction="both"), model, task.text)
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    batches = list(task.validation_batches())
    plans = planned(criterion, batches)
    with evaluating(model, criterion):
        losses = [criterion(model, plan) for plan in plans]
    terms = {"translation_ranking": 1.0, "rtl_to_pivot": 0.5, "rtl_from_pivot": 0.5}
    assert set(found) == {"loss", "accuracy", "rtl_accuracy", *(f"loss_{name}" for name in terms)}
    for name, weight in terms.items():
        mean = sum(float(loss.terms[name].sum) for loss in losses) / sum(plan.sizes[name] for plan in plans)
        assert found[f"loss_{name}"] == pytest.approx(weight * mean, rel=1e-5)
    assert found["loss"] == pytest.approx(sum(found[f"loss_{name}"] for name in terms))
    assert sum(map(len, batches)) == 66


def test_no_dev_split(undivided: MonolingualTask) -> None:
    with pytest.raises(UserError, match="there is no dev split; give it files such as valid.de, or choose another"):
        LossValidator(LossValidator.Config(), undivided)
