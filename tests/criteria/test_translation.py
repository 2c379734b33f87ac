"""The translation loss: its smoothing, its languages, and the models and tasks that fit it."""

import dataclasses

import pytest
import torch

from tests.criteria.equations_words import translation as equation
from tests.criteria.objectives import OBJECTIVES, Maker
from tests.support.planning import plan
from tests.support.runs import SMALL_MODEL
from xrep.config import runs_of
from xrep_cli.train import main
from xrep_cli.train_options import parse


def test_each_row_has_its_target_language(make: Maker, make_batch) -> None:
    """Batches number all languages, the model numbers only its target languages."""
    languages = {"source_languages": ["aa", "de", "zz"], "target_languages": ["en", "fr"]}
    other = Maker(dataclasses.replace(make.text, **languages), make_batch)
    model, criterion = other.build(OBJECTIVES["translation"])
    batch, places = make.batch("pairs"), [0, 1, 1, 0, 0, 1, 0, 1, 1]
    batch.facts["languages"] = torch.tensor([[4, 2 + place] for place in places])
    assert [other.text.languages[i] for i in batch.languages[1].tolist()] == ["zz", "fr"]
    planned = plan(criterion, batch)
    found = criterion(model, planned).terms["translation"].sum
    torch.testing.assert_close(found, equation(model, criterion, planned, places).terms["translation"])
    wrong = equation(model, criterion, planned, [1 - place for place in places]).terms["translation"]
    assert not torch.isclose(found, wrong, rtol=1e-4)


@pytest.mark.parametrize(("given", "model", "validation"), [
    ({"task": "translation"}, "translation", "translation"),
    ({"task": "translation", "model": "dual_encoder"}, "dual_encoder", "retrieval"),
    ({"task": "bitext"}, "dual_encoder", "retrieval"),
    ({"task": "bitext", "model": "translation"}, "translation", "translation"),
    ({"task": "bitext", "model": "translation", "validation": "nli"}, "translation", "nli"),
])  # fmt: skip
def test_model_and_validation_fit_the_task(given: dict[str, str], model: str, validation: str) -> None:
    """The defaults fit if nothing is chosen."""
    line = [f"--{name}={value}" for name, value in {**given, "criterion": "label_smoothed_cross_entropy"}.items()]
    parsed = parse(line)
    run = runs_of(parsed.layers, parsed.problems)[0]
    assert (run.values["model.name"], run.values["validation.name"]) == (model, validation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("criterion", "own"), [("tlm", []), ("translation_ranking", ["--max-tokens=none", "--batch-size=30"])]
)
def test_a_sentence_encoder_may_train_on_the_task(data_directory, tmp_path, capfd, criterion, own):
    """Batches have a number of tokens or of pairs."""
    small = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_MODEL.items()]
    line = ["--task=translation", "--max-steps=1", "--device=cpu", "--no-tensorboard", f"--criterion={criterion}",
            "--model=dual_encoder", "--max-length=32", *small, "--max-tokens=700", *own]  # fmt: skip
    assert main([str(data_directory), *line, "--save-dir", str(tmp_path / "run")]) == 0, capfd.readouterr().err
