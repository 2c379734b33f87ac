"""Static encoders compute what sentence-transformers' StaticEmbedding computes, also in training and from files."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from tests.text.sentences import TEXT
from tests.text.small_tokenizers import published
from xrep.data.batch import TextSpec, Vocabulary, collate
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.pretrained import read_pretrained
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.encoder import Encoder
from xrep.nn.pooling import pool
from xrep.nn.static import StaticEncoder, StaticShape, around
from xrep.nn.weights import save_tensors
from xrep.text.sides import open_tokenizer

SENTENCES = [[7, 8, 9, 7], [], [11], [5, 6]]


@pytest.mark.parametrize("bos, eos", [(2, 3), (None, 3), (2, None), (None, None)])
def test_the_mean_of_the_rows_and_its_gradient(bos: int | None, eos: int | None) -> None:
    """Against numpy in float64; T5 has no token in front of a sentence, and some decoders none behind it."""
    vocabulary = Vocabulary(size=12, pad_id=0, unk_id=1, bos_id=bos, eos_id=eos, mask_id=None)
    shape = StaticShape(vocabulary_size=12, hidden_size=8, **around(vocabulary))
    encoder = Encoder.build(shape, dropout=0.5, attention_dropout=0.0).double().eval()
    batch = collate([np.array(ids, dtype=np.int64) for ids in SENTENCES], vocabulary, 4 + vocabulary.special_count)
    vectors = pool(encoder(batch), batch.mask, "mean")
    table = encoder.token_embedding.weight.detach().numpy()
    cut = [ids[:4] for ids in SENTENCES]
    expected = np.stack([table[ids].mean(0) if ids else np.zeros(8) for ids in cut])
    np.testing.assert_allclose(vectors.detach().numpy(), expected, atol=1e-12)
    weights = torch.randn(vectors.shape, dtype=torch.float64)
    (vectors * weights).sum().backward()
    gradient = np.zeros_like(table)
    for ids, weight in zip(cut, weights.numpy(), strict=True):
        for i in ids:
            gradient[i] += weight / len(ids)
    assert encoder.token_embedding.weight.grad is not None
    np.testing.assert_allclose(encoder.token_embedding.weight.grad.numpy(), gradient, atol=1e-12)
    assert torch.equal(encoder(batch, 0), encoder(batch)) and not torch.equal(encoder.train()(batch), encoder(batch))
    with pytest.raises(ValueError, match="a static encoder has layer 0 alone, not 1"):
        encoder(batch, 1)


def test_a_directory_of_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    rust = tokenizers.Tokenizer.from_buffer(open_tokenizer(published("bert")).model)
    module = importlib.import_module("sentence_transformers.models").StaticEmbedding(rust, embedding_dim=6)
    library.SentenceTransformer(modules=[module], device="cpu").save(str(tmp_path / "st"))
    start = read_pretrained(tmp_path / "st")
    assert (start.shape.type, start.shape.hidden_size, start.pooling, start.normalize) == ("static", 6, "mean", False)
    state, unused = start.state()
    assert torch.equal(state["token_embedding.weight"], module.embedding.weight.detach()) and unused == []
    long = " ".join(TEXT[:200])  # which sentence-transformers does not cut, either
    ours = SentenceEncoder.load(tmp_path / "st", device="cpu").encode(long, normalize=False)
    np.testing.assert_allclose(ours, library.SentenceTransformer(str(tmp_path / "st")).encode(long), atol=1e-6)
    config = DualEncoder.Config(encoder_type="static", pooling="cls")
    text = TextSpec(vocabularies={"shared": Vocabulary.of(open_tokenizer(published("bert")))}, max_length=9)
    with pytest.raises(UserError, match="a static encoder is pooled by the mean, not by cls; leave `pooling` out"):
        DualEncoder(config, text)


@pytest.mark.parametrize("tensors, message", [
    ({"embeddings": torch.ones(3, 2)}, "no table embedding.weight of a static encoder; save it by sentence-t"),
    ({"others": torch.ones(3, 2)}, "no table embedding.weight of a static encoder; fetch the file again"),
    ({"embedding.weight": torch.ones(3)}, "no table embedding.weight of a static encoder"),
])  # fmt: skip
def test_other_tables(tensors: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    save_tensors(tensors, tmp_path / "model.safetensors")
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=message):
        read_pretrained(tmp_path)


def test_a_new_one_has_the_width_of_the_options() -> None:
    shape = StaticEncoder.new_shape(norm="post", vocabulary_size=9, pad_id=0, hidden_size=5, layers=3, heads=1)
    assert Encoder.build(shape, dropout=0.0, attention_dropout=0.0).token_embedding.weight.shape == (9, 5)
