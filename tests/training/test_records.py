"""What a run says and records: metrics, boards, launches, its log, its line of progress, and its encoders."""

import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.support.runs import compose_run, figures
from xrep.config import read_yaml
from xrep.errors import TrainingError
from xrep.interop.pretrained import declared_languages
from xrep.report.runs import read_runs
from xrep.training import introduction
from xrep.training.log import Log
from xrep.training.reports import Reports
from xrep.training.run import train
from xrep.training.state import TrainingState
from xrep.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEADY: dict[str, Any] = {"criterion": "translation_ranking", "lr_scheduler": "constant", "save_every": 4}


def losses(run: Path) -> dict[int, float]:
    """Return the training loss by step; a step with two records fails."""
    found = [(record["step"], record["loss"]) for record in figures(run) if record["kind"] == "train"]
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    return dict(found)


def said(log: Path) -> list[str]:
    """Return the lines of a log without their times, which must be in order."""
    lines = [line.split(" ", 1) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [time for time, _ in lines] == sorted(time for time, _ in lines)
    return [text for _, text in lines]


# -- metrics.jsonl ----------------------------------------------------------------------------------------------------


def test_every_step_is_in_one_record(data_directory: Path, tmp_path: Path) -> None:
    run, single = tmp_path / "run", tmp_path / "single"
    train(compose_run(data_directory, single, max_steps=13, **STEADY, log_every=1))
    train(compose_run(data_directory, run, max_steps=13, **STEADY))
    each, found = losses(single), losses(run)
    assert [*found] == [5, 10, 13]
    for before, step in ((0, 5), (5, 10), (10, 13)):
        mean = sum(each[number] for number in range(before + 1, step + 1)) / (step - before)
        assert found[step] == pytest.approx(mean)
    (read,) = read_runs([str(run)])
    assert [step for step, _ in read.curves["training", "loss"]] == [5, 10, 13]
    assert json.loads((run / "summary.json").read_text())["best"]["step"] == 13
    train(compose_run(data_directory, run, max_steps=13, **STEADY))  # it is finished
    assert losses(run) == found
    train(compose_run(data_directory, run, max_steps=22, **STEADY))
    assert [*losses(run)] == [5, 10, 13, 15, 20, 22] and losses(run)[13] == found[13]


def test_a_gradient_of_zero_is_told(data_directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A batch of one pair has no negatives."""
    train(compose_run(data_directory, tmp_path / "run", max_steps=2, **{**STEADY, "batch_size": 1}))
    assert "step 2: loss and gradient are 0, so that nothing is learnt; perhaps a batch" in capfd.readouterr().err


def test_lines_that_are_no_records_are_dropped_on_resuming(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    records = [json.dumps({"step": step, "kind": "train"}) for step in (1, 2, 3)]
    path.write_text("\n".join([*records[:2], '{"step": 1, "ki', records[2]]), encoding="utf-8")
    Log(Log.Config(tensorboard=False), tmp_path, 2, {}).close()
    assert path.read_text(encoding="utf-8").splitlines() == records[:2]


# -- boards -----------------------------------------------------------------------------------------------------------


def test_tensorboard_has_the_options_and_the_records_of_a_run(data_directory: Path, tmp_path: Path) -> None:
    run = compose_run(data_directory, tmp_path / "run", max_steps=3, **STEADY, log_every=2)
    run.configs["logging"].tensorboard = True
    train(run)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    metadata = events.summary_metadata["_hparams_/session_start_info"]
    options = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info.hparams
    assert "logging.logger" in options
    assert options["model.dropout"].number_value == run.values["model.dropout"]
    assert options["criterion.name"].string_value == "translation_ranking"
    assert options["trainer.compile"].bool_value is False and "checkpoint.save_dir" in options
    scalars = {event.step: event.value for event in events.Scalars("train/loss")}
    assert scalars == pytest.approx(losses(tmp_path / "run")) and [*scalars] == [2, 3]


def test_wandb_gets_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    names = []
    for step in (0, 2):  # the second one goes on with the first
        config = Log.Config(tensorboard=False, logger="wandb")
        progress = Log(config, tmp_path, step, {"criterion.temperature": 0.04})
        progress.record(step + 1, {"loss": 1.5}, "train")
        progress.close()
        names.append((tmp_path / "wandb.id").read_text())
    files = sorted((tmp_path / "wandb").glob(f"offline-run-*-{names[0]}/run-{names[0]}.wandb"))
    assert names[0] == names[1] and len(files) == 2
    for content in (file.read_bytes() for file in files):
        assert b"criterion.temperature" in content and b"train/loss" in content


# -- launches and the log ---------------------------------------------------------------------------------------------


def test_each_launch_is_recorded_with_its_end(data_directory, tmp_path, monkeypatch, capfd):
    """The first launch is stopped, the second one fails, the third one ends, and a fourth one has nothing to do."""
    run, step = tmp_path / "run", Trainer.run_step

    def at_step(number: int, act: Callable[[], None]) -> None:
        def acting(trainer: Trainer, *arguments: Any) -> None:
            if trainer.state.step == number:
                act()
            step(trainer, *arguments)

        monkeypatch.setattr(Trainer, "run_step", acting)

    def fail() -> None:
        raise TrainingError("the sky fell")

    given = {**STEADY, "save_every": 2, "max_steps": 8}
    at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert train(compose_run(data_directory, run, **given)).signal == "SIGTERM"
    assert [*losses(run)] == [3]
    at_step(5, fail)
    with pytest.raises(TrainingError):
        train(compose_run(data_directory, run, **given))
    monkeypatch.undo()
    for _ in range(2):
        train(compose_run(data_directory, run, **given))
    assert [*losses(run)] == [3, 5, 8]
    records = [json.loads(line) for line in (run / "launches.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["event"] for record in records] == ["start", "end"] * 4
    assert [record["step"] for record in records] == [0, 3, 3, 5, 4, 8, 8, 8]
    ends = [record["how"] for record in records[1::2]]
    assert ends == ["stopped by SIGTERM after step 3", "the sky fell", "finished", "finished"]
    assert [line for line in said(run / "log.txt") if line.startswith("end of the launch")] == [
        f"end of the launch: {end}" for end in ends
    ]
    first = records[0]
    assert first["command"].startswith(sys.orig_argv[0]) and first["folder"] == os.getcwd() and first["host"]
    release = torch.__version__.split("+")[0]  # behind the + is the build, which the package does not always name
    assert first["versions"]["torch"].split("+")[0] == release and first["options"]["trainer.max_steps"] == 8
    assert first["time"] <= records[-1]["time"]


def test_the_log_has_all_that_was_said(data_directory: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(compose_run(data_directory, tmp_path / "run", max_steps=2, validate_every=1, **STEADY))
    lines, err = said(tmp_path / "run" / "log.txt"), list(filter(None, capfd.readouterr().err.splitlines()))
    assert lines[0].startswith("launch in ") and lines[-1] == "end of the launch: finished"
    own = lines[1:-1]
    assert len(own) > 6 and own == err[-len(own) :]


def test_options_that_were_changed_are_kept(data_directory: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for steps, size in ((2, 30), (2, 30), (4, 20), (4, 20)):
        train(compose_run(data_directory, run, max_steps=steps, batch_size=size, **STEADY))
    names = sorted(path.name for path in run.glob("config*"))
    assert names == ["config-until-00000002.yaml", "config.yaml"]
    assert [read_yaml(run / name)["task.batch_size"] for name in names] == [30, 20]


# -- the line of progress ---------------------------------------------------------------------------------------------


def progress_of(data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[str]:
    """Train and return each line of progress, also those that would be shown too soon after another one."""
    lines: list[str] = []
    monkeypatch.setattr(Log, "line", lambda _, text: lines.append(text))
    train(compose_run(data, folder, **{"log_every": 1000, **given}))
    return lines


def test_a_queue_fills_before_loss_and_accuracy_are_shown(data_directory, tmp_path, monkeypatch):
    lines = progress_of(data_directory, tmp_path / "run", monkeypatch, max_steps=8, validate_every=3, queue_size=100)
    steps = [line for line in lines if not line.endswith("encoded")]
    assert len(steps) == 8
    filled = [re.findall(r"queue (\d+) of 100 filled", line) for line in steps]
    assert filled == [["30"], ["60"], ["90"], [], [], [], [], []]
    for line, full in zip(steps, filled, strict=True):
        assert ("loss" in line) == ("accuracy " in line.split("validation")[0]) == (not full)
    assert ["validation accuracy" in line for line in steps] == [False] * 3 + [True] * 5
    # The numbers move at every step, and validations count what they have encoded.
    assert len({tuple(re.findall(r"loss [0-9.]+", line)) for line in steps[3:]}) == 5
    counted = [int(line.split("validating: ")[1].split()[0].replace(",", "")) for line in lines if "validating" in line]
    assert counted[:4] == sorted(counted[:4]) and len(counted) > 4 and counted[0] > 1


def test_the_first_metrics_are_on_the_line_whatever_their_names() -> None:
    lines = list[str]()
    log, pair = SimpleNamespace(line=lines.append), SimpleNamespace(criterion=torch.nn.Module())
    reports: Any = Reports(log, pair, lambda state: 0.5, 16)  # pyright: ignore[reportArgumentType]
    counts = {"pairs": 8.0, "tokens": 60.0, "busy": 2.0, "waited": 1.0}
    first = {"loss_pull": 1.0, "gap": 2.0, "far/gap": math.nan}
    for loss, values in ((1.0, first), (2.0, {"gap": 3.0, "far/gap": 5.0, "a": 1.0, "b": 1.0})):
        reports.add(SimpleNamespace(loss=loss, values=values, norm=1.0, scale=None, skipped=False), 0.1, counts)
    reports.line(TrainingState(step=2, examples=16))
    shown = "epoch 1.00 | step 2 | loss 1.5 | gap 2.5 | far/gap 5 | a 1 | lr 1.00e-01 | 4 pairs/s | 30 tokens/s"
    assert lines == [f"{shown} | 0:00 left"]


def test_a_step_of_several_batches_shows_that_it_goes_on(data_directory, tmp_path, monkeypatch):
    given = {"criterion": "translation_ranking", "max_steps": 2, "update_freq": 3, "validate_every": 0}
    lines = progress_of(data_directory, tmp_path / "run", monkeypatch, **given)
    pattern = r"step in progress: (\d+) sentences encoded"
    done = [re.findall(pattern, line) for line in lines if "validating" not in line]
    assert done == [["60"], ["120"], ["180"], []] * 2
    assert all("queue" not in line for line in lines)


# -- encoders ---------------------------------------------------------------------------------------------------------


def encoders_of(data: Path, folder: Path, capsys: pytest.CaptureFixture[str], **given: Any) -> list[str]:
    """Train and return the lines about encoders, without the numbers of parameters."""
    capsys.readouterr()
    train(compose_run(data, folder, **{"criterion": "translation_ranking", "max_steps": 1, **given}))
    lines = capsys.readouterr().err.splitlines()
    return [line.replace(", 0.0M parameters", "") for line in lines if line.startswith("tower ")]


def test_towers_are_named_with_languages_state_and_origin(data_directory, tmp_path, capsys):
    """The text has es-en as well, so that both are on the source side."""
    shared = encoders_of(data_directory, tmp_path / "shared", capsys)
    assert shared == ["tower shared (de, en, es): trained, random weights"]
    frozen = {"towers": "separate", "freeze": "encoders.source,encoders.target.layers@5"}
    assert encoders_of(data_directory, tmp_path / "run", capsys, **frozen) == [
        "tower source (de, es): frozen, random weights",
        "tower target (en): frozen until step 5, random weights",
    ]
    first = tmp_path / "run" / "checkpoint-00000001"
    resumed = encoders_of(data_directory, tmp_path / "run", capsys, **frozen, max_steps=2)
    assert resumed[0] == f"tower source (de, es): frozen, from {first} (de, es, this run)"
    begun = {"towers": "separate", "init": first, "freeze": "encoders.target.layers"}
    assert encoders_of(data_directory, tmp_path / "init", capsys, **begun) == [
        f"tower source (de, es): trained, from {first} (de, es, init)",
        f"tower target (en): partly frozen (0.0M parameters trained), from {first} (en, init)",
    ]


def test_lora_is_named_with_what_it_trains(data_directory, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(introduction, "_millions", str)
    given = {"towers": "separate", "freeze": "encoders.source,projections.source", "lora_rank": 2, "projection_size": 8}
    lines = encoders_of(data_directory, tmp_path / "run", capsys, **given)
    # Products for queries, keys and values, of attention, and two of the feed-forward layer; then the projection.
    factors = 2 * ((32 + 96) + (32 + 32) + (32 + 64) + (64 + 32))
    assert lines[1].startswith(f"tower target (en): LoRA of rank 2 ({factors + 32 * 8 + 8} trained), ")
    assert lines[0].startswith("tower source (de, es): frozen, ")


def test_languages_that_a_model_declares(tmp_path: Path) -> None:
    cards = {
        "---\nlanguage: en\n---\n": ["en"],
        "---\nlanguage:\n  - deu\n  - zh-Hans\ntags: [en]\n---\n": ["de", "zh"],
        "---\nlicense: mit\nlanguage: [en, 'fr']\n---\n": ["en", "fr"],
        "---\nlanguage:\n- multilingual\n- de\n---\n": [],
        "---\nlicense: mit\n---\nlanguage: en\n": [],
        "language: en\n": [],
    }
    assert declared_languages(tmp_path) == []
    for card, languages in cards.items():
        (tmp_path / "README.md").write_text(card, encoding="utf-8")
        assert declared_languages(tmp_path) == languages, card
    (tmp_path / "xrep_source.json").write_text('{"languages": "zh"}', encoding="utf-8")  # noted by xrep-data
    assert declared_languages(tmp_path) == ["zh"]
