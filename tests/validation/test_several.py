"""Several validations of a run: their metrics are those of each alone, and one of them chooses the best checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run, options
from xrep.config import compose, compose_course
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import ConfigError
from xrep.registry import VALIDATORS
from xrep.validation.several import SeveralValidator
from xrep_cli.options import parse
from xrep_cli.train import main

RUN = {"criterion": "translation_ranking", "max_steps": 4, "validate_every": 1, "warmup_steps": 0}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sts")
    pairs = sentence_pairs(60)
    lines = [f"{pairs[n][1]},{pairs[59 - n][1]},{n % 5 + n / 100:.2f}\n" for n in range(30)]
    (folder / "stsb-en-dev.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def test_the_metrics_are_those_of_each_alone(data_directory: Path, sets: Path, tmp_path: Path) -> None:
    given = {"sts_path": sets, "max_pool_size": 20, "validate_with": "sts,loss,retrieval", "best_by": "retrieval"}
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


@pytest.mark.parametrize("best_by", [None, "loss"])
def test_one_of_them_chooses_the_best_checkpoint(
    data_directory: Path, sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture, best_by: str | None
) -> None:
    given = {"validate_with": "sts,loss", "sts_path": sets} | ({"best_by": best_by} if best_by else {})
    assert main([str(data_directory), *options(**RUN, **given, save_dir=tmp_path / "run")]) == 0
    metric, better = ("loss/loss", min) if best_by else ("sts/spearman", max)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = {record["step"]: record[metric] for record in records if record["kind"] == "valid"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(values) == 4 and summary["best"]["metric"] == metric
    assert summary["best"]["value"] == better(values.values())
    step = int((tmp_path / "run" / "best").resolve().name.removeprefix("checkpoint-"))
    assert values[step] == better(values.values())
    assert f"validation sts/spearman {values[4] if metric[0] == 's' else records[-1]['sts/spearman']:.2f}, " in (
        capsys.readouterr().err
    )


STAGES = """
task: {name: bitext, data: x}
criterion: translation_ranking
validation: loss
stages: [{name: one, validation: {validate_with: [sts, loss], best_by: loss}}, {name: two}]
"""


@pytest.mark.parametrize("place", ["option", "assignment", "file", "stages", "stage on the command line"])
def test_each_way_of_giving_validate_with_chooses_it(place: str, tmp_path: Path) -> None:
    """As for every option: --validate-with, validation.validate_with=, or a YAML file, also over a named validation."""
    files = {
        "below.yaml": "validation: loss",
        "file.yaml": "validation: {validate_with: [sts, loss], best_by: loss}",
        "stages.yaml": STAGES,
        "plain.yaml": STAGES.replace(", validation: {validate_with: [sts, loss], best_by: loss}", ""),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    single = ["x", "--task", "bitext", "--criterion", "translation_ranking", "--config", str(tmp_path / "below.yaml")]
    given = {
        "option": [*single, "--validate-with", "sts,loss", "--best-by", "loss"],
        "assignment": [*single, "validation.validate_with=[sts,loss]", "validation.best_by=loss"],
        "file": [*single, "--config", str(tmp_path / "file.yaml")],
        "stages": ["--config", str(tmp_path / "stages.yaml")],
        "stage on the command line": [
            *("--config", str(tmp_path / "plain.yaml"), "--stages.one.validation.validate-with", "sts,loss"),
            "stages.one.validation.best_by=loss",
        ],
    }
    line = parse(given[place])
    first, *others = compose_course(line.layers, line.problems)
    options = first.values["validation"]
    assert (options["name"], options["validate_with"], options["best_by"]) == ("several", ["sts", "loss"], "loss")
    assert all(run.values["validation"]["name"] == "loss" for run in others)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--validate-with", "sts,sts"], "validate_with must name validations, each once, not sts,sts"),
        (["--validate-with", "bleu"], "validate_with must be a list"),
        (["--validate-with", "sts", "--best-by", "loss"], "best_by is loss, which validate_with (sts) does not name"),
        (["--validate-with", "sts", "--max-pool-size", "1"], "max_pool_size must be at least 2, not 1"),
        (["--validation", "loss", "--validate-with", "sts"], "unknown option --validate-with"),
    ],
)
def test_what_cannot_be_chosen(given: list[str], problem: str) -> None:
    line = parse(["x", "--task", "bitext", "--criterion", "translation_ranking", *given])
    with pytest.raises(ConfigError) as caught:
        compose(line.layers, line.problems)
    assert problem in str(caught.value)


def test_a_validation_that_cannot_be_is_refused(data_directory: Path, tmp_path: Path, capsys: Any) -> None:
    given = options(**RUN, validate_with="retrieval,nli", save_dir=tmp_path / "run")
    assert main([str(data_directory), *given]) == 2
    assert "there is no dev split of task nli to validate on" in capsys.readouterr().err
    given = options(**RUN, validate_with="sts", sts_path=tmp_path / "none", save_dir=tmp_path / "run")
    assert main([str(data_directory), *given]) == 2
    assert "none: " in capsys.readouterr().err and not (tmp_path / "run").exists()
