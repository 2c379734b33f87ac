"""The mean of the last checkpoints, exported as an encoder that all commands accept."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep import SentenceEncoder
from xrep.data.batch import TextSpec
from xrep.errors import UserError
from xrep.models.averaging import average_last
from xrep.models.directory import CRITERION, STATE, Snapshot, load_model, open_checkpoint, write_checkpoint
from xrep_cli.export import main

GERMAN = [german for german, _ in sentence_pairs(20)]


class Small(nn.Module):
    def __init__(self, step: int, value: float | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((3,), 1 + step / 7 if value is None else value))
        self.register_buffer("short", torch.full((2,), 0.1 * step, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(step))

    def architecture(self) -> dict:
        return {"size": len(self.weight)}


def write(run: Path, step: int, **given: float) -> None:
    facts = {
        "config_yaml": "checkpoint: {keep_last: 4}",
        "text": TextSpec(vocabularies={}, max_length=8),
        "save_tokenizers": Path.mkdir,
    }
    own = {"model": Small(step, **given), "criterion": nn.Linear(1, 1), "training_state": {"step": step}}
    write_checkpoint(run / f"checkpoint-{step:08d}", Snapshot.of(step=step, **facts, **own))


def test_the_mean_of_the_newest(tmp_path: Path) -> None:
    large = 2.0**24  # the mean is exact where float32 is not
    for step, value in ((1, large), (2, 1.0), (3, 1.0), (4, 2 - large)):
        write(tmp_path / "exact", step, value=value)
    assert average_last(tmp_path / "exact", 4).tensors()["weight"].tolist() == [1, 1, 1]
    for step in (5, 100, 10, 20):
        write(tmp_path, step)
    newest = average_last(tmp_path, 3)
    mean = newest.tensors()
    assert newest.step == 100
    expected = np.mean([np.float64(np.float32(1 + step / 7)) for step in (10, 20, 100)])
    assert mean["weight"].dtype == torch.float32 and mean["weight"].tolist() == [np.float32(expected)] * 3
    halves = torch.tensor([0.1 * step for step in (10, 20, 100)], dtype=torch.bfloat16).double()
    assert torch.equal(mean["short"], halves.mean().expand(2).bfloat16())
    assert int(mean["count"]) == 100
    one = average_last(tmp_path, 1)
    alone, stored = one.tensors(), open_checkpoint(one.path).tensors()
    assert one.step == 100 and all(torch.equal(alone[name], tensor) for name, tensor in stored.items())


def test_what_cannot_be_averaged(tmp_path: Path) -> None:
    """Of five checkpoints where four are kept, the oldest is there as the best one."""
    run = tmp_path / "run"
    write(run, 1)
    write(run, 2)
    for step in (1, 20, 21, 22, 23):
        write(tmp_path / "with_best", step)
    for place, count, message in (
        (tmp_path / "with_best", 5, "with_best: has 4 checkpoints, not 5; lower `average`"),
        (run, 3, "run: has 2 checkpoints, not 3; lower `average`, or train with a larger `keep"),
        (run / "checkpoint-00000001", 1, "has 0 checkpoints, not 1; name the directory of a run"),
    ):
        with pytest.raises(UserError, match=message):
            average_last(place, count)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run with three checkpoints of random encoders and the hashes of its training sentences."""
    (tmp_path / "run").mkdir()
    for step in (1, 2, 3):
        write_encoder(tmp_path / "run" / f"checkpoint-{step:08d}", seed=step)
    np.save(tmp_path / "run" / "training_hashes.npy", np.arange(5, dtype=np.uint64))
    (tmp_path / "run" / "best").symlink_to("checkpoint-00000002")
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["xrep", "sentence-transformers", "hf"])
def test_the_mean_goes_out_in_every_format(run: Path, tmp_path: Path, kind: str) -> None:
    arguments = ["--path", run, "--average", 2, "--format", kind, "--output", tmp_path / "out"]
    assert main(list(map(str, arguments))) == 0
    exported = SentenceEncoder.load(tmp_path / "out", device="cpu").model.state_dict()
    two, three = (load_model(open_checkpoint(run / f"checkpoint-0000000{step}")).state_dict() for step in (2, 3))
    assert exported.keys() == three.keys()
    for name, tensor in exported.items():
        assert torch.equal(tensor, ((two[name].double() + three[name].double()) / 2).float()), name
        assert not torch.equal(tensor, three[name]) or torch.equal(two[name], three[name])


def test_a_checkpoint_of_the_encoder_alone(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["--path", str(run / "best"), "--format", "xrep", "--output", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(out)
    names = {path.name for path in out.iterdir()}
    expected = "README.md config.yaml manifest.json model.safetensors tokenizer training_hashes.npy"
    assert names == {*expected.split()}
    assert {CRITERION, STATE}.isdisjoint(json.loads((out / "manifest.json").read_text())["files"])
    with pytest.raises(UserError, match="out: an encoder alone, not a run to go on with; set `init`"):
        open_checkpoint(out).training_state()
    theirs = SentenceEncoder.load(run / "best", device="cpu").encode(GERMAN)
    shutil.rmtree(run)
    encoder = SentenceEncoder.load(out, device="cpu")
    np.testing.assert_array_equal(encoder.encode(GERMAN), theirs)
    assert encoder.training_hashes == [out / "training_hashes.npy"]
