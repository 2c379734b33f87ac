"""Runs of xrep-train that train language models from the encoder of a translator or of a classifier."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.annotated import write_labels
from tests.support.corpus import write_corpus
from tests.support.runs import options
from xrep.data.store import DataDirectory
from xrep.models.directory import MODEL, open_checkpoint
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.shape import EncoderShape
from xrep.nn.weights import read_tensors, save_tensors
from xrep.registry import ENCODERS
from xrep_cli.train import main

STEPS = {"max_steps": 2, "lr_scheduler": "constant", "max_length": 30, "batch_size": 8}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def starts(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Train a translator and a classifier for two steps."""
    folder = tmp_path_factory.mktemp("starts")
    translator = {"task": "translation", "criterion": "label_smoothed_cross_entropy", "decoder_layers": 1, "beam": 1}
    classifier = {"task": "classification", "criterion": "classification", "languages": "de", "vocab_size": 50}
    runs = {
        "nmt": (raw, {**translator, "max_sentences": 4, "max_tokens": 300, "vocab_size": 120}, "batch_size"),
        "classifier": (write_labels(folder / "labels"), classifier, ""),
    }
    for name, (data, given, refused) in runs.items():
        every = {**given, **STEPS, "save_dir": folder / name}
        line = options(**every)
        for option in filter(None, ("towers", refused)):
            place = line.index(f"--{option.replace('_', '-')}")
            del line[place : place + 2]
        assert main([str(data), *line]) == 0
    return {name: folder / name / "best" for name in runs}


@pytest.mark.slow
@pytest.mark.parametrize("start", ["nmt", "classifier"])
@pytest.mark.parametrize("criterion", ["mlm", "tlm", "hictl", "cmlm"])
def test_language_models_start_from_any_encoder(
    raw: Path, starts: dict[str, Path], start: str, criterion: str, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    """The encoder's tensors are those of the start, and the new run says that its head is new."""
    run = tmp_path / "run"
    line = options(**{**STEPS, "criterion": criterion, "encoder": starts[start], "lr": 0, "save_dir": run})
    assert main([str(raw), *line]) == 0
    said = capfd.readouterr().err
    assert f"{starts[start]} has no masked language head; tower shared gets a new one" in said
    found, given = (open_checkpoint(path).tensors(MODEL) for path in (run / "last", starts[start]))
    encoder = {name.removeprefix("encoder."): x for name, x in given.items() if name.startswith("encoder.")}
    assert len(encoder) > 10
    assert all(torch.equal(x, found[f"encoders.shared.{name}"]) for name, x in encoder.items())


class TheirEncoder(TransformerEncoder):
    """Reads a format of its own: ``sizes.json`` beside the weights, and no ``config.json``."""

    @classmethod
    def read_shape(cls, directory: Path) -> EncoderShape:
        return EncoderShape(**json.loads((directory / "sizes.json").read_text(encoding="utf-8")))

    @classmethod
    def read_state(cls, directory: Path, shape: Any) -> tuple[dict[str, torch.Tensor], list[str]]:
        return read_tensors(directory / "model.safetensors"), []


def test_mlm_trains_an_encoder_of_a_plugin(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(ENCODERS._targets, "theirs", f"{__name__}:TheirEncoder")
    own, run = tmp_path / "own", tmp_path / "run"
    tokenizer = DataDirectory(data_directory).tokenizers["shared"]
    shape = EncoderShape(
        type="theirs", vocabulary_size=tokenizer.vocabulary_size, pad_id=tokenizer.pad_id, layers=1, hidden_size=32,
        heads=2, feedforward_size=48, max_positions=32,
    )  # fmt: skip
    own.mkdir()
    tokenizer.save(own)
    (own / "sizes.json").write_text(json.dumps(dataclasses.asdict(shape)), encoding="utf-8")
    save_tensors(TheirEncoder(shape, dropout=0.0, attention_dropout=0.0).state_dict(), own / "model.safetensors")
    given = {**STEPS, "criterion": "mlm", "encoder": own, "encoder_type": "theirs", "lr": 0, "save_dir": run}
    assert main([str(data_directory), *options(**given)]) == 0
    assert f"{own} has no masked language head" in capfd.readouterr().err
    assert (run / "last" / MODEL).is_file()
