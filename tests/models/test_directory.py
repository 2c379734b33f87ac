"""Checkpoint directories are complete or absent, and are refused if damaged."""

import os
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.runs import contents
from xrep.config import to_yaml
from xrep.errors import UserError
from xrep.inference.sentence_encoder import encoder_of
from xrep.interop.sentence_modules import PROMPTS
from xrep.models.directory import (
    CRITERION,
    STATE,
    Snapshot,
    load_matching,
    load_model,
    open_checkpoint,
    write_checkpoint,
)  # fmt: skip
from xrep.models.dual_encoder import DualEncoder
from xrep.text.sides import open_tokenizers

SHAPE = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 16, "max_positions": 48}
CONFIG = {
    "model": {"name": "dual_encoder", **SHAPE},
    "task": {"data": "${oc.env:HOME}/x", "name": "bitext"},
    "checkpoint": {"save_dir": "runs/${"},
    "plugins": ["somewhere.plugin"],
}


READERS = {
    "manifest.json": lambda checkpoint: checkpoint.step,
    "config.yaml": load_model,
    "model.safetensors": load_model,
    "tokenizer": lambda checkpoint: open_tokenizers(checkpoint.tokenizer),
    CRITERION: lambda checkpoint: checkpoint.tensors(CRITERION),
    STATE: lambda checkpoint: checkpoint.training_state(),
    "training_hashes.npy": lambda checkpoint: checkpoint.training_hashes,
    PROMPTS: encoder_of,
}
"""What reads each file of a checkpoint."""


@pytest.fixture
def write(text, tokenizer):
    def write_to(path, **given):
        torch.manual_seed(3)
        model = DualEncoder(DualEncoder.Config(**SHAPE), text)
        facts = {
            "step": 7, "config_yaml": to_yaml(CONFIG), "text": text, "save_tokenizers": tokenizer.save, "model": model,
            "criterion": nn.Linear(2, 2), "training_state": {"step": 7, "tensor": torch.ones(3)},
        }  # fmt: skip
        write_checkpoint(path, Snapshot.of(**{**facts, **given}))
        return path

    return write_to


def test_what_is_written_is_read_back(write, text, tmp_path):
    checkpoint = open_checkpoint(write(tmp_path / "c"))
    torch.manual_seed(3)
    model = DualEncoder(DualEncoder.Config(**SHAPE), text)
    assert (checkpoint.step, checkpoint.text) == (7, text)
    assert checkpoint.config == CONFIG  # interpolations remain text
    assert checkpoint.training_state()["tensor"].tolist() == [1, 1, 1]
    loaded = load_model(checkpoint)
    assert not loaded.training
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in loaded.state_dict().items())
    assert sorted(os.listdir(tmp_path)) == ["c"]
    mask = os.umask(0)
    os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in checkpoint.path.iterdir() if path.is_file()} == {0o666 & ~mask}


def test_a_changed_byte_in_any_file_is_refused_and_named(write, tmp_path):
    """By what reads the file."""
    hashes, prompts = tmp_path / "training_hashes.npy", tmp_path / PROMPTS
    np.save(hashes, np.arange(5, dtype=np.uint64))
    prompts.write_text("{}")
    checkpoint = write(tmp_path / "c", files={path.name: path for path in (hashes, prompts)})
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    assert {path.relative_to(checkpoint).parts[0] for path in files} == {*READERS} and len(files) == 9
    for path in files:
        name = path.relative_to(checkpoint).parts[0]
        whole = path.read_bytes()
        middle = len(whole) // 2
        for damaged in (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], whole[:-1]):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=f"{path.name}: damaged checkpoint|no valid {path.name}"):
                READERS[name](open_checkpoint(checkpoint))
        path.write_bytes(whole)
        READERS[name](open_checkpoint(checkpoint))
    manifest = checkpoint / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 7', '"step": 9'))
    with pytest.raises(UserError, match=r"manifest\.json: damaged checkpoint"):
        open_checkpoint(checkpoint)


def test_the_folder_of_a_run_is_told_from_its_checkpoints(write, tmp_path):
    write(tmp_path / "run" / "last")
    with pytest.raises(UserError, match="did you mean .*run/last"):
        open_checkpoint(tmp_path / "run")


def test_the_tensors_of_a_part_are_those_whose_names_begin_so(write, tmp_path):
    """Also where a mean takes the place of the tensors in the file."""
    checkpoint = open_checkpoint(write(tmp_path / "c"))
    raised = {name: tensor + 1 for name, tensor in checkpoint.tensors().items()}
    expected, mean = (of.tensors(prefix="encoders.source.") for of in (checkpoint, replace(checkpoint, mean=raised)))
    assert expected and "token_embedding.weight" in expected and expected.keys() == mean.keys()
    assert all(torch.equal(mean[name], tensor + 1) for name, tensor in expected.items())


@pytest.mark.parametrize("large", ["criterion", "training_state", "tokenizers"])
def test_a_write_that_finds_no_room_leaves_what_was_there(write, tmp_path, large):
    """A file may have 64 KiB: the operating system refuses further writes, as on a full disk."""
    write(tmp_path / "c")
    before = contents(tmp_path)

    def fill(folder):
        folder.mkdir()
        (folder / "vocabulary").write_bytes(bytes(100_000 if large == "tokenizers" else 1))

    given = {"criterion": nn.Linear(200, 200), "training_state": {"tensor": torch.ones(50_000)}, "tokenizers": None}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, limits[1]))
        with pytest.raises(OSError, match="File too large") as error:
            write(tmp_path / "c", **({large: given[large]} if given[large] else {}), save_tokenizers=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / "c")
    assert contents(tmp_path) == before


def test_a_model_of_a_plugin_names_the_plugin(write, tmp_path):
    config = to_yaml({**CONFIG, "model": {"name": "octopus"}})
    with pytest.raises(UserError, match="model 'octopus' is not known here; import the plugin somewhere.plugin first"):
        load_model(open_checkpoint(write(tmp_path / "c", config_yaml=config)))


def test_matching_tensors_are_copied_and_new_ones_named():
    class Memory(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.linear = nn.Linear(2, 3)
            self.register_buffer("rows", torch.zeros(rows, 2))
            self.register_buffer("count", torch.zeros(()))

    small, same, large = (nn.Sequential(Memory(rows)) for rows in (2, 2, 4))
    small[0].rows.fill_(5)
    small[0].count.fill_(9)
    assert load_matching(same, {**small.state_dict(), "unknown": torch.ones(1)}) == []
    assert load_matching(large, small.state_dict()) == ["0.rows", "0.count"]
    assert torch.equal(large[0].linear.weight, small[0].linear.weight) and float(large[0].count) == 0
    assert torch.equal(same[0].rows, small[0].rows) and float(same[0].count) == 9
    assert load_matching(small, {"0.linear.weight": torch.ones(3, 3)}) == [*small.state_dict()]
