"""Training whose towers transformers computes: gradient caching, freezing, resuming, export and the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.interop.foreign_models import FAMILIES, SENTENCES, library_vectors, write_model
from tests.support.corpus import write_corpus
from tests.support.programs import run_program
from tests.support.runs import environment, options, refusal, xrep_train
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import open_checkpoint

UNSIZED = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "raw", train=120, valid=20, test=20)


def arguments(raw: Path, save_dir: Path, encoder: Path, **given) -> list[str]:
    given = {"criterion": "translation_ranking", "max_steps": 3, "batch_size": 12, "encoder": encoder, **given}
    line = options(save_dir=save_dir, **given)
    for name in UNSIZED:
        place = line.index(f"--{name.replace('_', '-')}")
        del line[place : place + 2]
    return [str(raw), *line]


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "last" / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
def test_train_resume_encode_and_export(raw: Path, tmp_path: Path, family: str) -> None:
    encoder = write_model(tmp_path / "models" / family, family)
    whole = xrep_train(*arguments(raw, tmp_path / "whole", encoder, micro_batch=4, freeze="encoders.*.token_embedding"))
    assert whole.returncode == 0, whole.stderr
    assert re.search(rf"from {encoder} \(\d+ tensors, encoder type transformers", whole.stderr)
    shared = {"micro_batch": 4, "freeze": "encoders.*.token_embedding"}
    for steps in (1, 3):  # the run stops and goes on
        part = xrep_train(*arguments(raw, tmp_path / "part", encoder, max_steps=steps, **shared))
        assert part.returncode == 0, part.stderr
    ours, resumed = tensors(tmp_path / "whole"), tensors(tmp_path / "part")
    assert ours.keys() == resumed.keys() and all(torch.equal(ours[name], resumed[name]) for name in ours)

    started = SentenceEncoder.load(encoder, device="cpu").model.state_dict()
    moved = {name for name in ours if not torch.allclose(ours[name], started[name])}
    assert "encoders.shared.token_embedding.weight" not in moved and len(moved) > len(ours) / 2

    architecture = open_checkpoint(tmp_path / "whole" / "last").manifest["architecture"]
    assert architecture["towers"]["shared"]["type"] == "transformers"
    vectors = SentenceEncoder.load(tmp_path / "whole" / "last", device="cpu").encode(SENTENCES)
    (tmp_path / "lines.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    line = ["--path", tmp_path / "whole" / "last", "--lang", "de", "--input", tmp_path / "lines.txt"]
    encoded = run_program("xrep_cli.encode", *line, "--output", tmp_path / "v.npy", environment=environment())
    assert encoded.returncode == 0, encoded.stderr
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-5)
    exported = ["--path", tmp_path / "whole" / "last", "--format", "hf", "--output", tmp_path / "out" / family]
    assert run_program("xrep_cli.export", *exported, environment=environment()).returncode == 0
    np.testing.assert_allclose(library_vectors(tmp_path / "out" / family, SENTENCES), vectors, atol=1e-5)
    again = xrep_train(*arguments(raw, tmp_path / "next", tmp_path / "whole" / "last", max_steps=1, lr=0))
    assert again.returncode == 0, again.stderr
    assert all(torch.equal(tensor, ours[name]) for name, tensor in tensors(tmp_path / "next").items())


def test_gradient_caching_gives_the_same_run(raw: Path, tmp_path: Path) -> None:
    encoder = write_model(tmp_path / "deberta", "deberta-v2")
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "encoder_type": "transformers"}
    for name, given in (
        ("whole", {}),
        ("cached", {"micro_batch": 4}),
        ("recomputed", {"activation_checkpointing": None}),
    ):
        run = xrep_train(*arguments(raw, tmp_path / name, encoder, **rates, **given))
        assert run.returncode == 0, run.stderr
    whole = tensors(tmp_path / "whole")
    for name in ("cached", "recomputed"):
        for key, tensor in tensors(tmp_path / name).items():
            torch.testing.assert_close(tensor, whole[key], atol=2e-4, rtol=0, msg=key)


def test_layers_freeze_and_decay_by_their_number(raw: Path, tmp_path: Path) -> None:
    encoder = write_model(tmp_path / "modernbert", "modernbert")
    given = {"freeze": "encoders.shared.layers.0", "layer_decay": 0.5, "dropout": 0.5}
    run = xrep_train(*arguments(raw, tmp_path / "r", encoder, max_steps=1, **given))
    assert run.returncode == 0, run.stderr
    started = SentenceEncoder.load(encoder, device="cpu").model.state_dict()
    moved = [name for name, tensor in tensors(tmp_path / "r").items() if not torch.equal(tensor, started[name])]
    assert moved and not [name for name in moved if ".layers.0." in name]
    assert [name for name in moved if ".layers.1." in name]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"criterion": "tlm"}, "tlm needs encoders of type transformer, this one has the type transformers"),
        ({"compile": None}, "layers of encoders of type transformers cannot be compiled; train without --compile"),
        ({"encoder_type": "transformer"}, "a model of type 'modernbert'; xrep's own encoder reads bert"),
        ({"encoder_type": "transformerz"}, "unknown encoder 'transformerz'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_line(raw: Path, tmp_path: Path, given: dict, message: str) -> None:
    encoder = write_model(tmp_path / "modernbert", "modernbert")
    assert message in refusal(xrep_train(*arguments(raw, tmp_path / "r", encoder, **given)))


def test_a_type_without_a_pretrained_encoder(raw: Path, tmp_path: Path) -> None:
    line = [str(raw), *options(save_dir=tmp_path / "r", encoder_type="transformers", max_steps=1, vocab_size=100)]
    assert "name a pretrained encoder, or leave out --encoder-type" in refusal(xrep_train(*line))


def test_masked_language_modelling_and_translation(raw: Path, tmp_path: Path) -> None:
    encoder = write_model(tmp_path / "modernbert", "modernbert")
    tokenizer = json.loads((encoder / "tokenizer_config.json").read_text())
    (encoder / "tokenizer_config.json").write_text(json.dumps({**tokenizer, "mask_token": "[MASK]"}))
    line = arguments(raw, tmp_path / "mlm", encoder, max_steps=2, task="monolingual", criterion="mlm")
    run = xrep_train(*line)
    assert run.returncode == 0, run.stderr
    line = ["--task", "translation", "--criterion", "label_smoothed_cross_entropy", "--encoder", str(encoder)]
    line += ["--max-tokens", "256", "--max-length", "32", "--max-steps", "2"]
    sizes = [
        "--decoder-layers",
        "1",
        "--max-positions",
        "32",
        "--max-length",
        "32",
        "--max-steps",
        "2",
        "--max-tokens",
        "256",
    ]
    run = xrep_train(
        str(raw), *line, *sizes, "--device", "cpu", "--no-tensorboard", "--save-dir", str(tmp_path / "nmt")
    )
    assert run.returncode == 0, run.stderr
    assert open_checkpoint(tmp_path / "nmt" / "last").manifest["architecture"]["encoder"]["type"] == "transformers"
