"""The checkpoint that a run resumes from or starts from, and directories that hold something else."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from tests.support.runs import compose_run, contents, make_trainer
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.models.directory import CRITERION, checkpoints_in, open_checkpoint
from xrep.text.find import parse_bitext
from xrep.training.run import train

pytestmark = pytest.mark.slow
STEADY: dict[str, Any] = {"lr_scheduler": "constant", "save_every": 4, "keep_last": 3, "validate_every": 4}


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a run of 12 steps with checkpoints at 4, 8 and 12."""
    return shutil.copytree(trained_run, tmp_path / "run", symlinks=True)


@pytest.fixture(scope="session")
def other_data() -> Path:
    def make(folder: Path) -> None:
        pairs = "".join(f"{de}\t{en}\n" for de, en in sentence_pairs(500, seed=9))
        (folder / "x.tsv").write_text(pairs, encoding="utf-8")
        text = {"train": [parse_bitext(f"de-en={folder / 'x.tsv'}")]}
        preprocess(text, folder / "bin", PreprocessOptions(vocabulary_size=100), lambda line: None, False)

    return made_once("other-data", make) / "bin"


def links(run: Path) -> list[int]:
    return [int((run / name).resolve().name[-8:]) for name in ("last", "best")]


def test_a_damaged_checkpoint_is_passed_over_and_made_anew(data_directory, run, trained_run, capfd):
    weights = run / "checkpoint-00000012" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 4
    weights.write_bytes(data)
    (run / "checkpoint-00000008" / "training_state.pt").unlink()
    for step in (8, 12):
        (run / f"checkpoint-{step:08d}" / "notes.txt").write_text("mine")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "ki')
    train(compose_run(data_directory, run, **{**STEADY, "max_steps": 10, "keep_last": 1, "validate_every": 8}))
    said = capfd.readouterr().err
    for name in ("checkpoint-00000012/model.safetensors", "checkpoint-00000008/training_state.pt"):
        assert f"warning: {run / name}: damaged checkpoint" in said
    assert f"going on from {run / 'checkpoint-00000004'} (step 4)" in said
    # The damaged checkpoint of a later step does not count among the recent ones.
    assert open_checkpoint(run / "last").step == 10
    assert {int(path.name[-8:]) for path in checkpoints_in(run)} == {*links(run)}
    for step in (8, 12):  # what others put there stays
        left = {path.name for path in (run / f"checkpoint-{step:08d}").iterdir()}
        assert "notes.txt" in left and (len(left) == 1) == (step not in links(run))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [5, 10]
    train(compose_run(data_directory, run, max_steps=12, **STEADY))
    for name in ("model.safetensors", CRITERION):
        assert (run / "last" / name).read_bytes() == (trained_run / "last" / name).read_bytes()


def test_what_a_killed_run_left_is_put_right(data_directory, run, trained_run, capfd):
    """Killed while it saved: a partial checkpoint; killed after that: links that point at the checkpoint before."""
    partial = run / ".checkpoint-00000016.0a1b2c3d.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    for name in ("last", "best"):
        (run / name).unlink()
    (run / "last").symlink_to("checkpoint-00000004")
    assert train(compose_run(data_directory, run, max_steps=12, **STEADY)).state.step == 12
    assert "this run is finished" in capfd.readouterr().err
    assert not partial.exists() and links(run) == links(trained_run)


def test_what_is_another_run_is_refused_and_left(data_directory: Path, other_data: Path, run: Path) -> None:
    before = contents(run)
    for data, given, message in (
        (data_directory, {"temperature": 0.1, "layers": 2, "seed": 4},
         f"{run}: holds a run of another configuration: criterion.temperature 0.04 -> 0.1, model.layers 1 -> 2, "
         "seed 1 -> 4; choose another `save_dir`, or delete this one"),
        (data_directory, {"size": "base"}, "size 'small' -> 'base'; set `size` to small to go on with it, or choose"),
        (other_data, {}, "was trained on other data; choose another `save_dir`"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            train(compose_run(data, run, max_steps=20, **STEADY, **given))
        assert message in str(error.value)
        assert contents(run) == before


def test_a_copy_of_the_data_is_the_same_data(data_directory: Path, run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data_directory, tmp_path / "copy")
    assert train(compose_run(copy, run, max_steps=14, **STEADY)).state.step == 14


def test_a_state_of_another_version_is_refused_in_one_line(data_directory, trained_run, tmp_path):
    checkpoint = open_checkpoint(trained_run / "last")
    state = checkpoint.training_state()
    del state["step"]
    trainer = make_trainer(compose_run(data_directory, tmp_path, max_steps=12), tmp_path)
    with pytest.raises(UserError, match="training_state.pt: not the training state of this run .*; delete its check"):
        trainer.resume(checkpoint, state)


# -- starts -----------------------------------------------------------------------------------------------------------


def test_init_takes_what_fits(data_directory, run, tmp_path, capfd):
    init = {"init": run / "best", "save_dir": tmp_path / "next", "max_steps": 1, "lr": 0}
    train(compose_run(data_directory, **init, queue_size=64, projection_size=16))
    said = capfd.readouterr().err
    old, new = (open_checkpoint(place / "last") for place in (run, tmp_path / "next"))
    best = open_checkpoint(run / "best").tensors()
    assert best.keys() == old.tensors().keys()
    assert all(torch.equal(new.tensors()[name], tensor) for name, tensor in best.items())
    assert "model tensors" in said and "; new: projections.shared.weight, projections.shared.bias" in said
    # A queue of another size starts empty: its count is not taken without its rows.
    assert int(new.tensors(CRITERION)["source_queue.count"]) == 30
    assert "source_queue.vectors" in said and "vocabulary" not in said


def test_init_of_the_same_sizes_takes_the_queues(data_directory: Path, run: Path, tmp_path: Path) -> None:
    init = {"init": run / "last", "save_dir": tmp_path / "next", "max_steps": 1, "lr": 0, "momentum": 1}
    train(compose_run(data_directory, **init))
    old, new = (open_checkpoint(place / "last").tensors(CRITERION) for place in (run, tmp_path / "next"))
    assert int(new["source_queue.count"]) == int(old["source_queue.count"]) + 30 == 390
    assert all(torch.equal(new[name], tensor) for name, tensor in old.items() if name.startswith("momentum"))
    # To resume this run, its --init is not needed any more.
    shutil.rmtree(run)
    assert train(compose_run(data_directory, **{**init, "max_steps": 2})).state.step == 2


def test_new_momentum_encoders_start_as_the_mean_of_a_run(data_directory, trained_run, tmp_path, capfd):
    export_path(trained_run, tmp_path / "mean", "xrep", average=3)
    init = {"init": tmp_path / "mean", "max_steps": 1, "lr": 0, "momentum": 1}
    train(compose_run(data_directory, tmp_path / "next", **init))
    said = capfd.readouterr().err
    mean, new = (open_checkpoint(place) for place in (tmp_path / "mean", tmp_path / "next" / "last"))
    momentum = new.tensors(CRITERION)
    for name, tensor in mean.tensors().items():
        assert torch.equal(new.tensors()[name], tensor)
        assert torch.equal(momentum[f"momentum_encoder.model.{name}"], tensor)
    assert re.search(rf"init: (\d+) of \1 model tensors from {tmp_path / 'mean'}\n", said)
    assert re.search(r"init: 0 of \d+ criterion tensors", said) and "vocabulary" not in said
    assert int(momentum["source_queue.count"]) == 30


def test_init_says_what_does_not_fit(data_directory, other_data, trained_run, tmp_path, capfd):
    best = trained_run / "best"
    train(compose_run(other_data, tmp_path / "next", init=best, max_steps=1))
    assert f"warning: {best} has another vocabulary" in capfd.readouterr().err
    sizes = {"hidden_size": 16, "feedforward_size": 8, "max_positions": 40}
    with pytest.raises(UserError, match="no tensor of the model fits"):
        train(compose_run(other_data, tmp_path / "wide", init=best, max_steps=1, **sizes))
    assert not (tmp_path / "wide").exists()
