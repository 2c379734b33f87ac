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
from tests.support.once import made_once
from tests.support.runs import options
from xrep.data.table import DataDirectory
from xrep.models.directory import MODEL, open_checkpoint
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.shape import EncoderShape
from xrep.nn.weights import read_tensors, save_tensors
from xrep.registry import ENCODERS
from xrep_cli.train import main

STEPS = {"max_steps": 2, "lr_scheduler": "constant", "max_length": 30, "batch_size": 8, "lr": 0, "save_dir": "run"}
SIZES = {"hidden_size": 16, "feedforward_size": 32, "max_positions": 64}
"""Those of the fixture ``translator``."""


@pytest.fixture(scope="module")
def classifier() -> Path:
    def make(folder: Path) -> None:
        given = {"task": "classification", "criterion": "classification", "languages": "de", "vocab_size": 50}
        line = options(**{**STEPS, **SIZES, **given, "save_dir": folder / "run"})
        place = line.index("--towers")
        assert main([str(write_labels(folder / "labels")), *line[:place], *line[place + 2 :]]) == 0

    return made_once("classifier", make) / "run" / "best"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "criterion"),
    [*(("translator", name) for name in ("mlm", "tlm", "hictl", "cmlm")), ("classifier", "mlm")],
)
def test_language_models_start_from_any_encoder(start, criterion, translator, classifier, cli):
    """The encoder's tensors are those of the start, and the new run says that its head is new."""
    path, raw = {"translator": translator, "classifier": classifier}[start], write_corpus(cli.folder / "raw", 40, 9, 9)
    done = cli("train", raw, *options(**{**STEPS, **SIZES, "criterion": criterion, "encoder": path}))
    assert f"{path} has no masked language head; tower shared gets a new one" in done.err
    found, given = (open_checkpoint(x).tensors(MODEL) for x in (cli.folder / "run" / "last", path))
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


@pytest.mark.slow
def test_mlm_trains_an_encoder_of_a_plugin(data_directory, cli, monkeypatch):
    monkeypatch.setitem(ENCODERS._targets, "theirs", f"{__name__}:TheirEncoder")
    tokenizer, own = DataDirectory(data_directory).tokenizers["shared"], cli.folder / "own"
    shape = EncoderShape(
        type="theirs", vocabulary_size=tokenizer.vocabulary_size, pad_id=tokenizer.pad_id, layers=1, hidden_size=32,
        heads=2, feedforward_size=48, max_positions=32,
    )  # fmt: skip
    own.mkdir()
    tokenizer.save(own)
    (own / "sizes.json").write_text(json.dumps(dataclasses.asdict(shape)), encoding="utf-8")
    save_tensors(TheirEncoder(shape, dropout=0.0, attention_dropout=0.0).state_dict(), own / "model.safetensors")
    given = {**STEPS, "criterion": "mlm", "encoder": "own", "encoder_type": "theirs"}
    assert "own has no masked language head" in cli("train", data_directory, *options(**given)).err
    assert (cli.folder / "run" / "last" / MODEL).is_file()
