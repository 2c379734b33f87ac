"""The records of training in TensorBoard, with the options as hyperparameters, and at Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.support.runs import compose_run
from xrep.config.yaml_files import flat
from xrep.errors import UserError
from xrep.training.progress import Progress
from xrep.training.run import train


def test_tensorboard_has_the_options_and_the_records_of_a_run(data_directory: Path, tmp_path: Path) -> None:
    run = compose_run(data_directory, tmp_path / "run", max_steps=4, log_every=2)
    run.configs["logging"].tensorboard = True
    train(run)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    metadata = events.summary_metadata["_hparams_/session_start_info"]
    options = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info.hparams
    assert options["criterion.temperature"].number_value == run.values["criterion"]["temperature"]
    assert options["criterion.name"].string_value == "dual_moco"
    assert options["trainer.compile"].bool_value is False and "checkpoint.save_dir" in options
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    scalars = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert scalars == [(record["step"], pytest.approx(record["loss"])) for record in records]


def test_nested_options_have_names() -> None:
    values = {"seed": 1, "criterion": {"name": "x", "sizes": [1, 2]}, "parts": [{"name": "nli", "weight": 2}]}
    assert flat(values) == {
        "seed": 1, "criterion.name": "x", "criterion.sizes": [1, 2], "parts.nli.name": "nli", "parts.nli.weight": 2,
    }  # fmt: skip


def test_without_wandb_its_installation_is_named(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "wandb" else find_spec(name, *a))
    with pytest.raises(UserError, match=r"wandb, which is not installed: pip install 'xrep\[wandb\]'"):
        compose_run(data_directory, tmp_path / "run", logger="wandb")


@pytest.mark.slow
def test_wandb_gets_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    names = []
    for step in (0, 2):  # the second one goes on with the first
        config = Progress.Config(tensorboard=False, logger="wandb")
        progress = Progress(config, tmp_path, step, options={"criterion": {"temperature": 0.04}})
        progress.record(step + 1, {"loss": 1.5}, "train")
        progress.close()
        names.append((tmp_path / "wandb.id").read_text())
    assert names[0] == names[1]
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*-{names[0]}/run-{names[0]}.wandb"))
    assert len(files) == 2
    for file in files:
        content = file.read_bytes()
        assert b"criterion.temperature" in content and b"train/loss" in content
