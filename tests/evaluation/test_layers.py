"""Layers other than the last one: encoders that are loaded, measured and exported with --layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.encoders import open_encoder, with_random_weights
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.eval import main as evaluate
from xrep_cli.export import main as export

SENTENCES = ["unser Nachbar malt", "her teacher sees a red house", "das Buch"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "best")


def test_a_layer_is_pooled(encoder: Path) -> None:
    last, embeddings = (SentenceEncoder.load(encoder, device="cpu", layer=layer) for layer in (1, 0))
    whole = SentenceEncoder.load(encoder, device="cpu")
    np.testing.assert_allclose(last.encode(SENTENCES), whole.encode(SENTENCES), atol=1e-6)
    model, (sentence, *_) = whole.model, SENTENCES
    tokens = whole.tokenizers["shared"].encode([sentence])[0]
    vocabulary = whole.text.vocabulary("shared")
    ids = [vocabulary.bos_id, *tokens, vocabulary.eos_id]
    table = model.encoders["shared"]

    with torch.no_grad():
        expected = table.embed(torch.tensor(ids), torch.arange(len(ids))).mean(0).numpy()
    found = embeddings.encode([sentence], normalize=False)[0]
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-5)
    assert len({each.fingerprint() for each in (last, embeddings, whole)}) == 3


def test_random_weights_are_of_the_same_layer(encoder: Path) -> None:
    drawn = with_random_weights(open_encoder(encoder, layer=0), 3)
    expected = SentenceEncoder.load(encoder, random_weights=3, layer=0).encode(SENTENCES)
    np.testing.assert_allclose(drawn.encode(SENTENCES), expected, atol=1e-6)


def test_an_evaluation_of_a_layer_is_that_of_its_export(encoder: Path, tatoeba_folder: Path, tmp_path: Path) -> None:
    assert export(["--path", str(encoder), "--layer", "0", "--output", str(tmp_path / "exported")]) == 0
    measured = {}
    for name, arguments in {
        "layer": ["--path", str(encoder), "--layer", "0"],
        "exported": ["--path", str(tmp_path / "exported")],
        "last": ["--path", str(encoder)],
    }.items():
        json_file = tmp_path / f"{name}.json"
        assert evaluate(["tatoeba", *arguments, "--data", str(tatoeba_folder), "--json", str(json_file)]) == 0
        measured[name] = json.loads(json_file.read_text())
    assert measured["layer"]["values"] == measured["exported"]["values"]
    assert measured["layer"]["model"]["fingerprint"] != measured["last"]["model"]["fingerprint"]
    assert (measured["layer"]["settings"]["layer"], measured["last"]["settings"]["layer"]) == (0, None)
    own, exported = SentenceEncoder.load(encoder, layer=0), SentenceEncoder.load(tmp_path / "exported")
    np.testing.assert_allclose(own.encode(SENTENCES), exported.encode(SENTENCES), atol=1e-6)


def test_what_is_no_layer(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for layer in (2, -1):
        with pytest.raises(UserError, match=f"^`layer` {layer} of an encoder of 1 layers; choose one of 0 to 1$"):
            SentenceEncoder.load(encoder, layer=layer)
    projected = write_encoder(tmp_path / "run" / "best", options={})
    model = SentenceEncoder.load(projected).model
    model.projections["shared"] = model.encoders["shared"].layers[0]
    model.pool_layer(1)
    with pytest.raises(UserError, match="whose projection was trained for another layer; export it with"):
        model.pool_layer(0)
    np.save(tmp_path / "vectors.npy", np.ones((1, 2)))
    (tmp_path / "sentences.tsv").write_text("de\tx\n", encoding="utf-8")
    with pytest.raises(UserError, match="`layer` of vectors that another system computed; leave it out"):
        open_encoder(tmp_path, layer=1)
    arguments = ["--path", str(encoder), "--format", "xrep", "--layer", "0", "--output", str(tmp_path / "out")]
    assert export(arguments) == 2
    assert "--layer is for the formats of other libraries; leave --format out" in capsys.readouterr().err
