"""The checkpoint that a run resumes from, and runs that are refused."""

import json
import re
import shutil

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run, contents
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.models.directory import CRITERION, open_checkpoint
from xrep.text.readers import parse_bitext
from xrep.training.run import train

STEADY = {"lr_scheduler": "constant", "save_every": 4, "keep_last": 3}


@pytest.fixture(scope="module")
def finished(data_directory, tmp_path_factory):
    """Train a run of 12 steps with checkpoints at 4, 8 and 12."""
    return train(compose_run(data_directory, tmp_path_factory.mktemp("runs") / "run", max_steps=12, **STEADY)).directory


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


@pytest.fixture(scope="module")
def other_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    (folder / "x.tsv").write_text("".join(f"{de}\t{en}\n" for de, en in sentence_pairs(500, seed=9)), encoding="utf-8")
    train_text = {"train": [parse_bitext(f"de-en={folder / 'x.tsv'}")]}
    return preprocess(train_text, folder / "bin", PreprocessOptions(vocabulary_size=100), lambda line: None, False).path


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_damaged_checkpoint_is_passed_over_and_made_anew(data_directory, run, finished, capfd):
    flip(run / "checkpoint-00000012" / "model.safetensors")
    (run / "checkpoint-00000008" / "training_state.pt").unlink()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 13, "ki')
    train(compose_run(data_directory, run, **{**STEADY, "max_steps": 10, "keep_last": 1, "validate_every": 8}))
    said = capfd.readouterr().err
    for name in ("checkpoint-00000012/model.safetensors", "checkpoint-00000008/training_state.pt"):
        assert f"warning: {run / name}: damaged checkpoint" in said
    assert f"going on from {run / 'checkpoint-00000004'} (step 4)" in said
    # The damaged checkpoint of a later step does not count among the recent ones.
    assert open_checkpoint(run / "last").step == 10
    assert {path.name for path in run.glob("checkpoint-*")} == {
        (run / name).resolve().name for name in ("last", "best")
    }
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == [5, 10]
    train(compose_run(data_directory, run, max_steps=12, **STEADY))
    for name in ("model.safetensors", CRITERION):
        assert (run / "last" / name).read_bytes() == (finished / "last" / name).read_bytes()


def test_what_a_killed_run_left_is_put_right(data_directory, run, capfd):
    """Killed while it saved: a partial checkpoint; killed after that: links that point at the checkpoint before."""
    partial = run / ".checkpoint-00000016.0a1b2c3d.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    best = (run / "best").resolve().name
    for name in ("last", "best"):
        (run / name).unlink()
    (run / "last").symlink_to("checkpoint-00000004")
    state = train(compose_run(data_directory, run, max_steps=12, **STEADY)).state
    assert state.step == 12
    assert "this run is finished" in capfd.readouterr().err
    assert not partial.exists()
    assert (run / "last").resolve().name == "checkpoint-00000012"
    assert (run / "best").resolve().name == best


def test_another_configuration_is_refused(data_directory, run):
    before = contents(run)
    with pytest.raises(UserError) as error:
        train(compose_run(data_directory, run, max_steps=20, temperature=0.1, layers=2, seed=4, **STEADY))
    assert str(error.value) == (
        f"{run}: holds a run of another configuration: criterion.temperature 0.04 -> 0.1, model.layers 1 -> 2, "
        "seed 1 -> 4; choose another `save_dir`, or delete this one"
    )
    assert contents(run) == before


def test_other_data_is_refused(other_data, run):
    before = contents(run)
    with pytest.raises(UserError, match="was trained on other data; choose another `save_dir`"):
        train(compose_run(other_data, run, max_steps=20, **STEADY))
    assert contents(run) == before


def test_a_copy_of_the_data_is_the_same_data(data_directory, run, tmp_path):
    copy = shutil.copytree(data_directory, tmp_path / "copy")
    assert train(compose_run(copy, run, max_steps=14, **STEADY)).state.step == 14


def test_foreign_folders_are_refused(data_directory, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text("{")
    for place, message in (
        (tmp_path, "is not empty and holds no run"),
        (tmp_path / "notes.txt", "is a file, not a directory"),
        (tmp_path / "notes.txt" / "run", "is a file, not a directory"),
        (tmp_path / "damaged", "not the configuration of a run"),
    ):
        with pytest.raises(UserError, match=message):
            train(compose_run(data_directory, place, max_steps=1))


def test_init_takes_what_fits(data_directory, run, tmp_path, capfd):
    init = {"init": run / "best", "save_dir": tmp_path / "next", "max_steps": 1, "lr": 0}
    train(compose_run(data_directory, **init, queue_size=64, projection_size=16))
    said = capfd.readouterr().err
    old, new = (open_checkpoint(place / "last") for place in (run, tmp_path / "next"))
    assert all(torch.equal(new.tensors()[name], tensor) for name, tensor in old.tensors().items())
    assert "model tensors" in said and "; new: projections.shared.weight, projections.shared.bias" in said
    # A queue of another size starts empty: its count is not taken without its rows.
    assert int(new.tensors(CRITERION)["source_queue.count"]) == 30
    assert "source_queue.vectors" in said and "vocabulary" not in said


def test_new_momentum_encoders_start_as_the_model_of_init(data_directory, tmp_path):
    train(compose_run(data_directory, tmp_path / "ranking", criterion="translation_ranking", max_steps=3, lr=0.01))
    init = {"init": tmp_path / "ranking" / "last", "max_steps": 1, "lr": 0, "momentum": 1}
    train(compose_run(data_directory, tmp_path / "moco", **init))
    moco = open_checkpoint(tmp_path / "moco" / "last")
    momentum = moco.tensors(CRITERION)
    for name, tensor in open_checkpoint(tmp_path / "ranking" / "last").tensors().items():
        assert torch.equal(momentum[f"momentum_encoder.model.{name}"], tensor)


def test_init_of_the_same_sizes_takes_the_queues(data_directory, run, tmp_path, capfd):
    init = {"init": run / "last", "save_dir": tmp_path / "next", "max_steps": 1, "lr": 0, "momentum": 1}
    train(compose_run(data_directory, **init))
    old, new = (open_checkpoint(place / "last").tensors(CRITERION) for place in (run, tmp_path / "next"))
    assert int(new["source_queue.count"]) == int(old["source_queue.count"]) + 30 == 390
    assert all(torch.equal(new[name], tensor) for name, tensor in old.items() if name.startswith("momentum"))
    # To resume this run, its --init is not needed any more.
    shutil.rmtree(run)
    assert train(compose_run(data_directory, **{**init, "max_steps": 2})).state.step == 2


def test_the_mean_of_a_run_is_something_to_start_from(data_directory, run, tmp_path, capfd):
    export_path(run, tmp_path / "mean", "xrep", average=3)
    init = {"init": tmp_path / "mean", "max_steps": 1, "lr": 0, "momentum": 1}
    train(compose_run(data_directory, tmp_path / "next", **init))
    said = capfd.readouterr().err
    mean, new = (open_checkpoint(place) for place in (tmp_path / "mean", tmp_path / "next" / "last"))
    assert all(torch.equal(new.tensors()[name], tensor) for name, tensor in mean.tensors().items())
    assert re.search(rf"init: (\d+) of \1 model tensors from {tmp_path / 'mean'}\n", said)
    assert re.search(r"init: 0 of \d+ criterion tensors", said) and "vocabulary" not in said
    assert int(new.tensors(CRITERION)["source_queue.count"]) == 30


def test_init_says_what_does_not_fit(data_directory, other_data, run, tmp_path, capfd):
    train(compose_run(other_data, tmp_path / "next", init=run / "best", max_steps=1))
    assert f"warning: {run / 'best'} has another vocabulary" in capfd.readouterr().err
    with pytest.raises(UserError, match="no tensor of the model fits"):
        train(
            compose_run(
                other_data,
                tmp_path / "wide",
                init=run / "best",
                max_steps=1,
                hidden_size=16,
                feedforward_size=8,
                max_positions=40,
            )
        )
    with pytest.raises(UserError, match="did you mean .*best"):
        train(compose_run(other_data, tmp_path / "none", init=run, max_steps=1))
    assert not (tmp_path / "wide").exists() and not (tmp_path / "none").exists()
