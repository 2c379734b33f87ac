"""Several validations of a run: their metrics are those of each alone, and one of them chooses the best checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.runs import compose_run
from xrep.config import runs_of
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import ConfigError
from xrep.registry import VALIDATORS
from xrep.validation.several import SeveralValidator
from xrep_cli.options import parse

RUN = {"criterion": "translation_ranking", "max_steps": 4, "validate_every": 1, "warmup_steps": 0}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    pairs = sentence_pairs(60)
    lines = [f"{pairs[n][1]},{pairs[59 - n][1]},{n % 5 + n / 100:.2f}" for n in range(30)]
    write_lines(folder / "stsb-en-dev.csv", lines)
    return folder


def test_the_metrics_are_those_of_each_alone(data_directory: Path, sets: Path, tmp_path: Path) -> None:
    given = {"sts_path": sets, "max_pool_size": 20, "validate_with": "retrieval,sts,loss"}
    run = compose_run(data_directory, tmp_path, **RUN, **given)
    assert run.classes["validation"] is SeveralValidator
    task = run.classes["task"](run.configs["task"], 1)
    torch.manual_seed(0)
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = TranslationRanking(run.configs["criterion"], model, task.text)
    several = SeveralValidator(run.configs["validation"], task)
    assert (several.metric, several.maximize) == ("retrieval/accuracy", True)
    alone: dict[str, dict[str, Any]] = {"sts": {"sts_path": str(sets)}, "loss": {}, "retrieval": {"max_pool_size": 20}}
    expected = {}
    for name, values in alone.items():
        kind = VALIDATORS.load(name)
        found = kind(kind.Config(**values), task)(model, criterion)
        expected |= {f"{name}/{metric}": value for metric, value in found.items()}
    assert several(model, criterion) == expected and len(expected) > 5
    run.configs["validation"].validate_with = ["loss", "sts"]
    several = SeveralValidator(run.configs["validation"], task)
    assert (several.metric, several.maximize) == ("loss/loss", False)


def test_each_way_of_giving_validate_with_chooses_it(tmp_path: Path) -> None:
    """As for every option: on the command line, or of a stage, also over a named validation."""
    single = "x --task bitext"
    for file, words in (
        ("validation: loss", f"{single} --validate-with sts,loss"),
        ("validation: {validate_with: [sts, loss]}", single),
        (
            "validation: loss\ntask: {name: bitext, data: x}\nstages: [{name: one}, {name: two}]",
            "--stages.one.validation.validate-with sts,loss",
        ),
    ):
        (tmp_path / "file.yaml").write_text(file)
        line = parse([*words.split(), "--criterion", "translation_ranking", "--config", str(tmp_path / "file.yaml")])
        first, *others = runs_of(line.layers, line.problems)
        options = [first.values[f"validation.{name}"] for name in ("name", "validate_with")]
        assert options == ["several", ["sts", "loss"]]
        assert all(run.values["validation.name"] == "loss" for run in others)


def test_what_cannot_be_chosen() -> None:
    for given, problem in (
        ("sts,sts", "validate_with must name validations, each once, not sts,sts"),
        ("sts --max-pool-size 1", "max_pool_size must be at least 2, not 1"),
    ):
        words = f"x --task bitext --criterion translation_ranking --validate-with {given}"
        line = parse(words.split())
        with pytest.raises(ConfigError) as caught:
            runs_of(line.layers, line.problems)
        assert problem in str(caught.value)
