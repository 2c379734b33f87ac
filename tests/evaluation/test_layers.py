"""Layers other than the last one: encoders that are loaded, measured and exported with --layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.commands import Commands
from xrep.errors import UserError
from xrep.evaluation.encoders import open_encoder, with_random_weights
from xrep.inference.sentence_encoder import SentenceEncoder

SENTENCES = ["unser Nachbar malt", "her teacher sees a red house", "das Buch"]


def test_a_layer_is_pooled(shared_encoder: Path) -> None:
    last, embeddings = (SentenceEncoder.load(shared_encoder, device="cpu", layer=layer) for layer in (1, 0))
    whole = SentenceEncoder.load(shared_encoder, device="cpu")
    np.testing.assert_allclose(last.encode(SENTENCES), whole.encode(SENTENCES), atol=1e-6)
    vocabulary, table = whole.text.vocabulary("shared"), whole.model.encoders["shared"]
    ids = [vocabulary.bos_id, *whole.tokenizers["shared"].encode(SENTENCES[:1])[0], vocabulary.eos_id]
    with torch.no_grad():
        expected = table.embed(torch.tensor(ids), torch.arange(len(ids))).mean(0).numpy()
    found = embeddings.encode(SENTENCES[:1], normalize=False)[0]
    np.testing.assert_allclose(found / np.linalg.norm(found), expected / np.linalg.norm(expected), atol=1e-5)
    assert len({each.fingerprint() for each in (last, embeddings, whole)}) == 3
    drawn = with_random_weights(open_encoder(shared_encoder, layer=0), 3)
    expected = SentenceEncoder.load(shared_encoder, random_weights=3, layer=0).encode(SENTENCES)
    np.testing.assert_allclose(drawn.encode(SENTENCES), expected, atol=1e-6)


@pytest.mark.slow
def test_an_evaluation_of_a_layer_is_that_of_its_export(
    shared_encoder: Path, tatoeba_folder: Path, tmp_path: Path, cli: Commands
) -> None:
    assert cli("export", "--path", shared_encoder, "--layer", 0, "--output", "exported").code == 0
    found = []
    for path, *layer in ((shared_encoder, "--layer", 0), ("exported",), (shared_encoder,)):
        line = ["tatoeba", "--path", path, *layer, "--data", tatoeba_folder, "--json", "out.json"]
        assert cli("eval", *line).code == 0
        found.append(json.loads((tmp_path / "out.json").read_text()))
    assert found[0]["values"] == found[1]["values"]
    assert found[0]["model"]["fingerprint"] != found[2]["model"]["fingerprint"]
    assert (found[0]["settings"]["layer"], found[2]["settings"]["layer"]) == (0, None)
    own, exported = SentenceEncoder.load(shared_encoder, layer=0), SentenceEncoder.load(tmp_path / "exported")
    np.testing.assert_allclose(own.encode(SENTENCES), exported.encode(SENTENCES), atol=1e-6)


def test_a_projection_belongs_to_the_layer_it_was_trained_for(shared_encoder: Path) -> None:
    with pytest.raises(UserError, match="^`layer` 2 of an encoder of 1 layers; choose one of 0 to 1$"):
        SentenceEncoder.load(shared_encoder, layer=2)
    model = SentenceEncoder.load(shared_encoder).model
    model.projections["shared"] = model.encoders["shared"].layers[0]
    model.pool_layer(1)
    with pytest.raises(UserError, match="whose projection was trained for another layer; export it with"):
        model.pool_layer(0)
