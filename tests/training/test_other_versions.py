"""Runs, checkpoints and indexes whose options another version saved: it lacked options of today, and had others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.nli_data import nli_rows, write_columns
from tests.support.runs import compose_run, options
from tests.support.translators import write_translator
from xrep.config import completed, compose
from xrep.errors import UserError
from xrep.models.directory import CRITERION, MANIFEST, describe, digest_of
from xrep.training.run import train
from xrep.training.stages import is_finished
from xrep_cli.encode import main as encode
from xrep_cli.eval import main as evaluate
from xrep_cli.generate import main as generate
from xrep_cli.report import main as report
from xrep_cli.search import main as search
from xrep_cli.train import main as xrep_train

Change = Callable[[dict[str, Any]], object]
STEADY = {"lr_scheduler": "constant", "clip_norm": 10.0, "save_every": 4, "keep_last": 3}


def change_config(directory: Path, change: Change) -> None:
    """Change the options of a run or of a checkpoint, whose manifest then has the right checksums again."""
    path = directory / "config.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    if (directory / MANIFEST).exists():
        change_manifest(directory, lambda manifest: manifest["files"].update({path.name: describe(path)}))


def change_manifest(directory: Path, change: Change) -> None:
    manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    del manifest["sha256"]
    change(manifest)
    (directory / MANIFEST).write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}), encoding="utf-8")


def as_another_version(values: dict[str, Any]) -> None:
    del values["trainer"]["clip_norm"]
    del values["model"]["dropout"], values["seed"]
    values["criterion"]["cooling"] = 0.5
    values["magic"] = {"power": 9}


def test_a_run_of_another_version_goes_on(data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    train(compose_run(data_directory, whole, max_steps=12, **STEADY))
    train(compose_run(data_directory, run, max_steps=8, **STEADY))
    for directory in (run, *run.glob("checkpoint-*")):
        change_config(directory, as_another_version)
    capsys.readouterr()
    train(compose_run(data_directory, run, max_steps=12, **STEADY))
    said = capsys.readouterr().err.splitlines()
    ignored = "ignored, because this version has no such options: magic {'power': 9}, criterion.cooling 0.5"
    assert f"warning: {run / 'config.yaml'}: {ignored}" in said
    assert sum("magic" in line for line in said) == 1 and any("(step 8)" in line for line in said)
    for name in ("model.safetensors", CRITERION):
        assert (run / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()
    assert (run / "config.yaml").read_text() == (whole / "config.yaml").read_text().replace(str(whole), str(run))


def test_what_the_user_changes_is_reported(data_directory: Path, tmp_path: Path) -> None:
    train(compose_run(data_directory, tmp_path / "run", max_steps=4, **STEADY))
    change_config(tmp_path / "run", as_another_version)
    changes = {**STEADY, "clip_norm": 2.0, "dropout": 0.2, "temperature": 0.1}
    with pytest.raises(UserError) as error:
        train(compose_run(data_directory, tmp_path / "run", max_steps=8, **changes))
    listed = "criterion.temperature 0.04 -> 0.1, model.dropout 0.1 -> 0.2, trainer.clip_norm 10.0 -> 2.0"
    assert f"another configuration: {listed}; choose" in str(error.value)


TASK = {"name": "bitext", "data": "data"}
PART = {"name": "ranks", "task": TASK, "criterion": {"name": "translation_ranking"}, "weight": 2.0}
CONFIGURATIONS = {
    "small": {"task": TASK, "criterion": {"name": "dual_moco"}, "size": "small"},
    "tiny": {"task": TASK, "criterion": {"name": "dual_moco"}, "size": "tiny", "seed": 3},
    "base": {"task": TASK, "criterion": {"name": "dual_moco"}, "size": "base"},
    "own size": {"task": TASK, "criterion": {"name": "dual_moco"}, "model": {"layers": 2},
                 "trainer": {"device": "cpu"}},
    "translation": {"task": {"name": "translation", "data": "data"}, "model": {"name": "translation"},
                    "criterion": {"name": "label_smoothed_cross_entropy"}, "size": "small"},
    "parts": {"parts": [{"name": "moco", "task": TASK, "criterion": {"name": "dual_moco"}}, PART], "size": "small"},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_option_that_was_not_saved_has_its_default(name: str) -> None:
    """The default of some options depends on the size of the encoders."""
    values = compose([("file", CONFIGURATIONS[name])]).values
    given = CONFIGURATIONS[name]
    sections = [(values, given)]
    sections += [(values[key], given.get(key, {})) for key in values if isinstance(values[key], dict)]
    for part, own in zip(values.get("parts", []), given.get("parts", []), strict=True):
        sections += [(part, own), (part["task"], own["task"]), (part["criterion"], own["criterion"])]
    removed = 0
    for section, own in sections:
        for key in [key for key in section if key not in own and key not in ("parts", "name", "size")]:
            value = section.pop(key)
            found, gone = completed(values)
            section[key] = value
            assert (found, gone) == (values, {}), key
            removed += 1
    assert removed > 50


def encoded(path: Path, tmp_path: Path) -> np.ndarray:
    (tmp_path / "lines").write_text("".join(f"{german}\n" for german, _ in sentence_pairs(20)), encoding="utf-8")
    line = ["--path", path, "--input", tmp_path / "lines", "--output", tmp_path / "v.npy", "--lang", "de"]
    assert encode([*map(str, line), "--device", "cpu"]) == 0
    return np.load(tmp_path / "v.npy")


def older_model(values: dict[str, Any]) -> None:
    values["model"]["charm"] = "strange"
    values["model"].pop("norm", None)
    values["model"].pop("pooling", None)


def test_an_encoder_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    best = write_encoder(tmp_path / "best", model_options={"norm": "post", "dropout": 0.1})
    expected = encoded(best, tmp_path)
    change_config(best, older_model)
    capsys.readouterr()
    assert np.array_equal(encoded(best, tmp_path), expected)
    said = capsys.readouterr().err
    assert said.count("has no such options") == 1
    assert f"{best / 'config.yaml'}: ignored, because this version has no such options: model.charm 'strange'" in said


def test_an_index_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Neither the options of the index nor those of its encoder are what they were."""
    best, index = write_encoder(tmp_path / "best"), tmp_path / "index"
    (tmp_path / "lines").write_text("".join(f"{english}\n" for _, english in sentence_pairs(20)), encoding="utf-8")
    given = ["--path", best, "--input", tmp_path / "lines", "--lang", "en", "--output", index, "--device", "cpu"]
    assert search(["build", *map(str, given)]) == 0
    capsys.readouterr()
    query = ["query", str(index), sentence_pairs(20)[3][1], "--lang", "en", "--device", "cpu"]
    assert search(query) == 0
    expected = capsys.readouterr().out
    change_config(best, older_model)
    change_config(best, lambda values: values["model"].update(dropout=0.1))
    change_manifest(index, lambda manifest: manifest["options"].update(graph=32))
    change_manifest(index, lambda manifest: manifest["options"].pop("quantize"))
    assert search(query) == 0
    said = capsys.readouterr()
    assert said.out == expected and "has no such options: options.graph 32" in said.err


def test_a_translator_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    best = write_translator(tmp_path / "best")
    (tmp_path / "lines").write_text("eins\n", encoding="utf-8")
    line = ["--path", best, "--input", tmp_path / "lines", "--source-lang", "de", "--target-lang", "en"]
    assert generate([*map(str, line), "--device", "cpu"]) == 0
    expected = capsys.readouterr().out
    change_config(best, older_model)
    assert generate([*map(str, line), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert said.out == expected and said.err.count("has no such options: model.charm") == 1


def test_the_classifier_of_a_criterion(data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for split, language in (("train", "en"), ("dev", "en"), ("test", "en")):
        write_columns(tmp_path / "nli" / f"{split}-{language}.tsv", nli_rows(30, seed=1))
    given = {"task": "nli", "criterion": "nli", "vocab_size": 70, "max_steps": 2, "save_dir": tmp_path / "run"}
    assert xrep_train([str(tmp_path / "nli"), *options(**given)]) == 0
    line = ["nli", "--path", str(tmp_path / "run" / "best"), "--data", str(tmp_path / "nli"), "--langs", "en"]
    capsys.readouterr()
    assert evaluate([*line, "--json", "-"]) == 0
    expected = json.loads(capsys.readouterr().out)
    change_config(tmp_path / "run" / "best", lambda values: values["criterion"].update(sharpness=3))
    change_config(tmp_path / "run" / "best", lambda values: values["criterion"].pop("head"))
    assert evaluate([*line, "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["values"] == expected["values"]
    assert "has no such options: criterion.sharpness 3" in said.err


def test_finished_runs_of_another_version_are_not_trained_again(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Courses and searches leave out the runs that are finished."""
    run = compose_run(data_directory, tmp_path / "search" / "seed1", max_steps=2, seed=1, **STEADY)
    train(run)
    assert is_finished(run)
    for directory in (tmp_path / "search" / "seed1", *(tmp_path / "search").glob("*/checkpoint-*")):
        change_config(directory, as_another_version)
    assert is_finished(run)
    assert not is_finished(compose_run(data_directory, tmp_path / "search" / "seed1", max_steps=2, **STEADY, lr=1e-4))
    assert report([str(tmp_path / "search" / "seed1"), "--output", str(tmp_path / "report.html")]) == 0
    assert "cooling" in (tmp_path / "report.html").read_text(encoding="utf-8")
