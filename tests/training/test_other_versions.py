"""Runs and checkpoints whose options another version saved: it lacked options of today, and had others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run
from xrep.config import completed, flat, runs_of
from xrep.errors import UserError
from xrep.models.directory import CRITERION, MANIFEST, digest_of, file_facts
from xrep.training.run import train
from xrep.training.stages import is_finished

pytestmark = pytest.mark.slow
Change = Callable[[dict[str, Any]], object]
STEADY: dict[str, Any] = {"lr_scheduler": "constant", "save_every": 4, "keep_last": 3, "validate_every": 4}


def change_config(directory: Path, change: Change) -> None:
    """Change the options of a run or of a checkpoint, whose manifest then has the right checksums again."""
    path = directory / "config.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    if (directory / MANIFEST).exists():
        change_manifest(directory, lambda manifest: manifest["files"].update({path.name: file_facts(path)}))


def change_manifest(directory: Path, change: Change) -> None:
    manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    del manifest["sha256"]
    change(manifest)
    (directory / MANIFEST).write_text(json.dumps({**manifest, "sha256": digest_of(manifest)}), encoding="utf-8")


def as_another_version(values: dict[str, Any]) -> None:
    del values["trainer"]["clip_norm"], values["model"]["dropout"], values["seed"]
    values["criterion"]["cooling"] = 0.5
    values["magic"] = {"power": 9}


@pytest.fixture
def run(data_directory: Path, tmp_path: Path) -> Path:
    """A run of 4 steps, with the default of clip_norm, that another version saved."""
    directory = train(compose_run(data_directory, tmp_path / "run", max_steps=4, **STEADY, clip_norm=10.0)).directory
    for place in (directory, *directory.glob("checkpoint-*")):
        change_config(place, as_another_version)
    return directory


def test_a_run_of_another_version_goes_on(data_directory, run, tmp_path, capsys):
    given = {**STEADY, "max_steps": 6, "clip_norm": 10.0}
    whole = train(compose_run(data_directory, tmp_path / "whole", **given)).directory
    capsys.readouterr()
    train(compose_run(data_directory, run, **given))
    said = capsys.readouterr().err.splitlines()
    ignored = "ignored, because this version has no such options: criterion.cooling 0.5, magic.power 9"
    assert f"warning: {run / 'config.yaml'}: {ignored}" in said
    assert sum("magic" in line for line in said) == 1 and any("(step 4)" in line for line in said)
    for name in ("model.safetensors", CRITERION):
        assert (run / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()
    assert (run / "config.yaml").read_text() == (whole / "config.yaml").read_text().replace(str(whole), str(run))


def test_a_finished_run_is_not_trained_again_and_changes_are_reported(data_directory, run, tmp_path, cli):
    """Courses and searches leave out the runs that are finished, and the report shows all that was saved."""
    given = {**STEADY, "max_steps": 4}
    assert is_finished(compose_run(data_directory, run, **given, clip_norm=10.0))
    assert not is_finished(compose_run(data_directory, run, **given, clip_norm=10.0, lr=1e-4))
    assert cli("report", run, "--output", "report.html").code == 0
    assert "cooling" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(UserError) as error:
        train(compose_run(data_directory, run, **given, clip_norm=2.0, dropout=0.2, temperature=0.1))
    listed = "criterion.temperature 0.04 -> 0.1, model.dropout 0.1 -> 0.2, trainer.clip_norm 10.0 -> 2.0"
    assert f"another configuration: {listed}; choose" in str(error.value)


TASK = {"name": "bitext", "data": "data"}
ONE = {"task": TASK, "criterion": {"name": "dual_moco"}}
PART = {"name": "ranks", "task": TASK, "criterion": {"name": "translation_ranking"}, "weight": 2.0}
CONFIGURATIONS = {
    "small": {**ONE, "size": "small"},
    "tiny": {**ONE, "size": "tiny", "seed": 3},
    "base": {**ONE, "size": "base"},
    "own size": {**ONE, "model": {"layers": 2}, "trainer": {"device": "cpu"}},
    "translation": {"task": {"name": "translation", "data": "data"}, "model": {"name": "translation"},
                    "criterion": {"name": "label_smoothed_cross_entropy"}, "size": "small"},
    "parts": {"parts": [{"name": "moco", **ONE}, PART], "size": "small"},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_option_that_was_not_saved_has_its_default(name: str) -> None:
    """The default of some options depends on the size of the encoders."""
    given = flat(CONFIGURATIONS[name])
    values = runs_of([("file", given)])[0].values
    kept = {*given, "parts", "size"}
    missing = [key for key in values if key not in kept and not key.endswith(".name")]
    for key in missing:
        assert completed({other: value for other, value in values.items() if other != key}) == (values, {}), key
    assert len(missing) > 50


def older_model(values: dict[str, Any]) -> None:
    values["model"]["charm"] = "strange"
    values["model"].pop("norm", None)
    values["model"].pop("pooling", None)


def test_an_encoder_of_another_version(shared_encoder, tmp_path, cli):
    """The options of the model are not what they were; an index has the encoder that it had."""
    best, (_, query) = shutil.copytree(shared_encoder, tmp_path / "best"), sentence_pairs(20)[3]
    (tmp_path / "lines").write_text("".join(f"{english}\n" for _, english in sentence_pairs(20)), encoding="utf-8")
    shared = ("--lang", "en", "--device", "cpu")
    given = ("--path", best, "--input", "lines", *shared)
    assert cli("search", "build", *given, "--output", "index").code == 0

    def run() -> tuple[list[Any], str]:
        encoded = cli("encode", *given, "--output", "v.npy")
        found = cli("search", "query", "index", query, *shared)
        return [encoded.code, (tmp_path / "v.npy").read_bytes(), found.code, found.out], encoded.err

    expected, _ = run()
    change_config(best, older_model)
    found, said = run()
    assert found == expected and found[0] == found[2] == 0
    charm = "ignored, because this version has no such options: model.charm 'strange'"
    assert said.count(f"{best / 'config.yaml'}: {charm}") == 1
