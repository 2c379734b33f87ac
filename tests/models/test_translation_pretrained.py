"""A translator with a pretrained encoder of the transformers library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.nn.small_models import VOCABULARY, hidden_states, make_batch, make_model, save
from tests.support.closeness import assert_near
from xrep.data.batching import TextSpec, Vocabulary
from xrep.models.translation import Translation


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel"])
def test_starts_from_a_directory_of_transformers(tmp_path: Path, name: str) -> None:
    """The decoder attends to the states of transformers; rows of the table without a subword are never generated."""
    theirs = make_model(name)
    path, pad_id, words = save(theirs, tmp_path / name), theirs.config.pad_token_id, VOCABULARY - 3
    vocabulary = Vocabulary(size=words, pad_id=pad_id, unk_id=3, bos_id=4, eos_id=2, mask_id=5)
    text = TextSpec(
        vocabularies={"shared": vocabulary}, max_length=24, source_languages=["de"], target_languages=["en"]
    )
    config = Translation.Config(encoder=str(path), decoder_layers=1, semantic_bias=True, pretrained_layers=2)
    model, batch = Translation(config, text).eval(), make_batch(pad_id)
    with torch.no_grad():
        assert_near(model.encoder(batch), hidden_states(theirs, batch)[2])
    logits = model.begin(batch, torch.zeros(len(batch), dtype=torch.int64)).next()
    assert logits.shape == (4, 1, words) and torch.isfinite(logits).all()
