"""The validator of natural language inference, by the classifier or by the vectors of triplets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.nli_data import Row, nli_rows, write_columns, write_simcse
from xrep.config import Part
from xrep.criteria.multitask import Multitask
from xrep.criteria.nli import Nli
from xrep.criteria.nli_triplet import NliTriplet
from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.tasks.nli import NliTask
from xrep.tasks.task import ExampleKind
from xrep.text.nli import LABELS
from xrep.validation.nli import NliValidator

TRAIN = nli_rows(60)


class Bag(nn.Module):
    """A model with bag-of-subwords vectors, and dropout while training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(size, 24)
        self.dropout = nn.Dropout(0.5)
        self.output_size = 24

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        sums = ((self.dropout(self.table(side.tokens)) * side.mask.unsqueeze(-1)).sum(1) for side in (source, target))
        return tuple(sums)


@pytest.fixture
def make(tmp_path: Path):
    """``make(name, files)`` returns a task with files of rows by their names."""

    def made(name: str, files: dict[str, list[Row]], form: str = "pairs", **options: Any) -> NliTask:
        for file, rows in {"train-en.tsv": TRAIN, **files}.items():
            (write_simcse if file.endswith(".csv") else write_columns)(tmp_path / name / file, rows)
        return NliTask(NliTask.Config(data=str(tmp_path / name), form=form, vocab_size=70, **options), 1)

    return made


BITEXT = SimpleNamespace(gives=ExampleKind.TRANSLATIONS, has_validation=True)
HEAD = {"head": "mlp", "head_size": 16, "head_dropout": 0.5}


def vector(model: Bag, task: NliTask, sentence: str) -> Tensor:
    tokenizer = task.tokenizers["shared"]
    (ids,) = tokenizer.encode([sentence])
    return model.table(torch.tensor(tokenizer.add_special(ids))).sum(0).double().detach()


def by_hand(model: Bag, criterion: Nli, task: NliTask, rows: list[Row]) -> float:
    """Return the accuracy of the classifier of two layers in percent, in float64."""
    weights = {name: tensor.double() for name, tensor in criterion.state_dict().items()}
    right = 0
    for premise, hypothesis, label in rows:
        u, v = (vector(model, task, sentence) for sentence in (premise, hypothesis))
        u, v = (24**0.5 * side / side.norm() for side in (u, v))
        x = torch.cat([u, v, (u - v).abs(), u * v])
        hidden = (weights["hidden.0.weight"] @ x + weights["hidden.0.bias"]).clamp(min=0)
        right += LABELS[int((weights["output.weight"] @ hidden + weights["output.bias"]).argmax())] == label
    assert 0 < right < len(rows)
    return 100 * right / len(rows)


def make_validator(task: Any) -> NliValidator:
    return NliValidator(NliValidator.Config(), task)


@pytest.mark.slow
def test_the_classifier_is_measured_in_each_language(make) -> None:
    german, english = nli_rows(20, "de", seed=1), nli_rows(40, seed=2)
    task = make("both", {"dev-de.tsv": german, "dev-en.tsv": english})
    model = Bag(70).train()
    criterion = Nli(Nli.Config(**HEAD), model, task.text).train()
    validate = make_validator(task)
    found = validate(model, criterion)
    expected = [by_hand(model, criterion, task, rows) for rows in (german, english)]
    assert [found["accuracy-de"], found["accuracy-en"]] == pytest.approx(expected) and expected[0] != expected[1]
    assert found["accuracy"] == pytest.approx(sum(expected) / 2) and len(found) == 3
    assert validate.metric == "accuracy" and validate(model, criterion) == found


def test_premise_and_hypothesis_of_two_languages(make) -> None:
    own = {"de": nli_rows(20, "de", seed=1), "en": nli_rows(20, seed=1)}
    files = {f"{split}-{lang}.tsv": rows for split in ("train", "dev") for lang, rows in own.items()}
    task, model = make("crossed", files, cross_lingual=True), Bag(70)
    criterion = Nli(Nli.Config(**HEAD), model, task.text)
    found = make_validator(task)(model, criterion)
    for one, other in (("de", "en"), ("en", "de")):
        rows = [(first[0], *second[1:]) for first, second in zip(own[one], own[other], strict=True)]
        assert found[f"accuracy-{one}-{other}"] == pytest.approx(by_hand(model, criterion, task, rows))
    assert set(found) == {"accuracy", "accuracy-de-en", "accuracy-en-de"}


@pytest.mark.slow
def test_each_part_is_measured_by_its_own_criterion(make) -> None:
    rows = nli_rows(40, seed=1)
    triplets = [(row[0], row[1], other[1]) for row, other in zip(TRAIN[::2], TRAIN[1::2], strict=True)]
    tasks = {
        "nli": make("pairs", {"dev.tsv": rows}),
        "contrast": make("triplets", {"dev.csv": triplets}, form="triplets"),
        "bitext": BITEXT,
        "undivided": make("undivided", {}),
    }
    model = Bag(70)
    kinds = {"contrast": (NliTriplet, NliTriplet.Config()), "nli": (Nli, Nli.Config(**HEAD))}
    parts = [Part(name, kind, config, 1.0, 1.0) for name, (kind, config) in kinds.items()]
    criterion = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, tasks["nli"].text)
    accuracy = by_hand(model, criterion.parts["nli"], tasks["nli"], rows)
    sides = ([vector(model, tasks["contrast"], sentence) for sentence in triplet] for triplet in triplets)
    won = [bool(a @ p / p.norm() > a @ n / n.norm()) for a, p, n in sides]
    share, validate = 100 * sum(won) / len(won), make_validator(SimpleNamespace(parts=tasks))
    assert validate(model, criterion) == pytest.approx({"accuracy": accuracy, "triplet_accuracy": share})
    assert validate.metric == "accuracy" and 0 < share < 100
    alone = make_validator(tasks["contrast"])
    assert alone(model, criterion.parts["contrast"]) == {"triplet_accuracy": pytest.approx(share)}
    assert alone.metric == "triplet_accuracy"
    with torch.no_grad():
        model.table.weight.fill_(1.0)
    assert alone(model, criterion.parts["contrast"]) == {"triplet_accuracy": 0.0}  # all one vector: no success
    with pytest.raises(UserError, match="the criterion has no classifier; choose the `criterion` nli or the `valid"):
        make_validator(tasks["nli"])(model, criterion.parts["contrast"])
    with pytest.raises(UserError, match="there is no dev split of task nli to validate on; give it a file such as"):
        make_validator(SimpleNamespace(parts={"bitext": BITEXT, "undivided": tasks["undivided"]}))
    with pytest.raises(UserError, match="no task has labelled pairs; choose the `validation` loss or sts"):
        make_validator(SimpleNamespace(parts={"bitext": BITEXT}))
