"""The objective on the dev split, against the same sums over single batches."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs, write_lines
from xrep.config import Part
from xrep.criteria.criterion import Criterion
from xrep.criteria.dap import DAP
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.training.validator import SEED
from xrep.validation.loss import LossValidator

SIZES = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 64, "towers": "shared"}


@pytest.fixture
def make(tmp_path: Path, data_directory: Path):
    german, english = zip(*sentence_pairs(400), strict=True)
    files = {"train.de": german[:100], "train.en": english[:100], "valid.de": german[100:370]}
    for folder, own in (("divided", files), ("undivided", {"train.de": german})):
        for name, lines in own.items():
            write_lines(tmp_path / folder / name, lines)

    def made(folder: str = "divided", **options: Any) -> MonolingualTask:
        given = {"data": str(tmp_path / folder), "tokenizer": str(data_directory), "max_length": 64, **options}
        return MonolingualTask(MonolingualTask.Config(**given), 1)

    return made


def assert_sums(task: Any, model: Any, criterion: Criterion, weights: dict[str, float], rel: float = 1e-6) -> dict:
    """Check the validation against sums over the batches: each term has a weight and is divided by its own size over
    all batches, and a metric is the mean over its rows. Return what the validator found."""
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    generator = torch.Generator().manual_seed(SEED)
    plans = [criterion.plan(batch, generator) for batch in task.validation_batches()]
    with torch.inference_mode():
        losses = [criterion(model, plan) for plan in plans]
    means = {}
    for name, weight in weights.items():
        total = sum(float(loss.terms[name].sum) for loss in losses if name in loss.terms)
        means[name] = weight * total / sum(plan.sizes.get(name, 0) for plan in plans)
    expected = {"loss": sum(means.values())} | ({f"loss_{n}": x for n, x in means.items()} if len(means) > 1 else {})
    for name in {name for loss in losses for name in loss.metrics}:
        own = [(float(loss.metrics[name]), loss.rows[name]) for loss in losses if name in loss.metrics]
        assert len(own) > 1
        expected[name] = sum(value * rows for value, rows in own) / sum(rows for _, rows in own)
        if name.endswith("nll"):  # the perplexity is not the mean of those of the batches
            expected[name.replace("nll", "perplexity")] = math.exp(expected[name])
    assert found == pytest.approx(expected, rel=rel)
    return found


def test_a_mean_over_masked_tokens(make) -> None:
    task = make()
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SIZES, dropout=0.5), task.text)
    criterion = MLM(MLM.Config(), model, task.text)
    before, validate = torch.get_rng_state(), LossValidator(LossValidator.Config(), task)
    found = validate(model, criterion)
    assert (
        torch.equal(torch.get_rng_state(), before)
        and validate(model, criterion) == found
        and set(found) == {"loss", "accuracy", "nll", "perplexity"}
    )
    assert [len(batch) for batch in task.validation_batches()] == [128, 128, 14]
    assert assert_sums(task, model, criterion, {"mlm": 1.0}) == found
    nn.init.constant_(criterion.masked_lm.heads["shared"].bias, 0.0)
    criterion.masked_lm.heads["shared"].bias.data[7] = 5.0
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


def test_several_parts_are_the_weighted_objective_and_those_without_a_dev_split_are_left_out(make) -> None:
    found = assert_sums(*mixed({"a": make(), "b": make(units="adjacent")}, (3.0, 0.25)), {"a/mlm": 3.0, "b/mlm": 0.25})
    assert {"a/accuracy", "a/perplexity", "b/accuracy", "b/perplexity"} < set(found) and len(found) == 9
    undivided = make("undivided")
    task, model, criterion = mixed({"a": make(), "b": undivided}, (2.0, 1.0))
    assert not undivided.has_validation and task.has_validation
    found = LossValidator(LossValidator.Config(), task)(model, criterion)
    assert set(found) == {"loss", "a/accuracy", "a/nll", "a/perplexity"}
    double, other = mixed({"a": make(), "b": undivided}, (1.0, 1.0))[1:]
    assert found["loss"] == pytest.approx(2 * LossValidator(LossValidator.Config(), task)(double, other)["loss"])
    with pytest.raises(UserError, match="there is no dev split; give one, such as valid.de of text or dev.tsv of"):
        LossValidator(LossValidator.Config(), undivided)


def test_the_whole_criterion_of_any_task(data_directory: Path) -> None:
    """Translations, too: all terms of DAP with their weights, on the dev split of both language pairs."""
    task = BitextTask(BitextTask.Config(data=str(data_directory), max_length=32), 1)
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**SIZES), task.text)
    criterion = DAP(DAP.Config(rtl_layers=1, rtl_direction="both"), model, task.text)
    weights = {"translation_ranking": 1.0, "rtl_to_pivot": 0.5, "rtl_from_pivot": 0.5}
    found = assert_sums(task, model, criterion, weights, rel=1e-5)
    assert set(found) == {"loss", "accuracy", "rtl_accuracy", *(f"loss_{name}" for name in weights)}
    assert sum(map(len, task.validation_batches())) == 66
