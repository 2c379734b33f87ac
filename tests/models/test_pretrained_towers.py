"""Models that start from directories of transformers: poolers as projections (MLP after [CLS]), and translators."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.nn.small_models import POSITIONS, VOCABULARY, hidden_states, make_batch, make_model, save, transformers
from tests.support.closeness import assert_near
from xrep.criteria.hictl import HiCTL
from xrep.criteria.masked_language import MaskedLanguage
from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.models.translation import Translation


def text_of(*sides: str) -> TextSpec:
    vocabulary = Vocabulary(size=VOCABULARY, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    languages = {"source_languages": ["de"], "target_languages": ["en"]}
    return TextSpec(vocabularies=dict.fromkeys(sides, vocabulary), max_length=POSITIONS, **languages)


@torch.no_grad()
def pooled(model: torch.nn.Module) -> Tensor:
    batch = make_batch(0)
    return model(input_ids=batch.tokens, attention_mask=batch.mask.long()).pooler_output


@pytest.mark.parametrize("pooler, towers", [("all", "shared"), ("all", "separate"), ("target", "separate")])
def test_vectors_are_those_of_the_pooler_in_transformers(pooler: str, towers: str, tmp_path: Path) -> None:
    """A teacher may have the pooler and its student a new layer."""
    model = make_model("BertModel")
    options = {"encoder": str(save(model, tmp_path / "bert")), "pooling": "cls", "normalize": False, "towers": towers}
    options |= {} if pooler == "all" else {"projection": "tanh", "projected_side": "source"}
    text = text_of("shared") if towers == "shared" else text_of("source", "target")
    ours = DualEncoder(DualEncoder.Config(pooler=pooler, **options), text).eval()
    assert ours.new_projections == ([] if pooler == "all" else ["source"])
    assert ours.projections.keys() == text.vocabularies.keys()
    with torch.no_grad():
        for tower in text.vocabularies if pooler == "all" else ["target"]:
            torch.testing.assert_close(ours.encode(tower, make_batch(0))[0], pooled(model), rtol=0, atol=1e-5)
    DualEncoder(ours.config, text, ours.architecture()).load_state_dict(ours.state_dict())


def test_what_has_no_pooler_is_one_line(tmp_path: Path) -> None:
    path = str(save(make_model("BertForMaskedLM"), tmp_path / "bert"))
    config = DualEncoder.Config(encoder=path, towers="shared", pooling="cls", pooler="all")
    with pytest.raises(UserError, match="no pooler: no tensor pooler.dense.weight; leave out `pooler`"):
        DualEncoder(config, text_of("shared"))
    for options, message in (({}, "needs pooling cls"), ({"pooling": "cls", "towers": "shared"}, "pooler all")):
        assert any(message in problem for problem in DualEncoder.Config(pooler="source", **options).problems())


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel"])
def test_a_translator_starts_from_a_directory(tmp_path: Path, name: str) -> None:
    """The decoder attends to the states of transformers; rows of the table without a subword are never generated."""
    theirs = make_model(name)
    path, pad_id, words = save(theirs, tmp_path / name), theirs.config.pad_token_id, VOCABULARY - 3
    vocabulary = Vocabulary(size=words, pad_id=pad_id, unk_id=3, bos_id=4, eos_id=2, mask_id=5)
    text = dataclasses.replace(text_of("shared"), vocabularies={"shared": vocabulary})
    config = Translation.Config(encoder=str(path), decoder_layers=1, semantic_bias=True, pretrained_layers=2)
    model, batch = Translation(config, text).eval(), make_batch(pad_id)
    with torch.no_grad():
        assert_near(model.encoder(batch), hidden_states(theirs, batch)[2])
    logits = model.begin(batch, torch.zeros(len(batch), dtype=torch.int64)).next()
    assert logits.shape == (4, 1, words) and torch.isfinite(logits).all()


def test_embeddings_that_are_narrower_than_states(tmp_path: Path) -> None:
    """ELECTRA and ALBERT have such."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "embedding_size": 16, "num_hidden_layers": 1}
    config = transformers.ElectraConfig(**sizes, num_attention_heads=2, intermediate_size=8, max_position_embeddings=24)
    path, text = str(save(transformers.ElectraModel(config), tmp_path / "electra")), text_of("shared")
    encoder = DualEncoder(DualEncoder.Config(encoder=path, towers="shared"), text)
    for make, message in (
        (
            lambda: Translation(Translation.Config(encoder=path, semantic_bias=True), text),
            "semantic_bias needs embeddi",
        ),
        (lambda: Translation(Translation.Config(encoder=path, tie_embeddings="all"), text), "are 16 wide, the decoder"),
        (lambda: MaskedLanguage(encoder, text, rate=0.15), "masked words needs embeddings as wide as"),
        (lambda: HiCTL(HiCTL.Config(language_model=False), encoder, text), "word_contrast needs embeddings as wide"),
    ):
        with pytest.raises(UserError, match=message):
            make()
