"""Export and import: transformers and sentence-transformers compute the same as our encoder, and no bit is lost."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.interop.sentence_models import (
    MAXIMUM,
    SENTENCES,
    as_batch,
    library,
    our_vectors,
    small_tokenizer,
    write_tokenizer,
)
from tests.nn.small_models import (
    LAYERS,
    POSITIONS,
    VOCABULARY,
    assert_same,
    hidden_states,
    load,
    make_batch,
    transformers,
)  # fmt: skip
from tests.support.closeness import assert_near
from xrep.errors import UserError
from xrep.interop.exported import write_huggingface, write_sentence_transformers
from xrep.interop.pretrained import read_pretrained
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.nn.layers import Linear

BERT = EncoderShape(
    vocabulary_size=VOCABULARY, pad_id=0, hidden_size=32, layers=LAYERS, heads=4, feedforward_size=48,
    max_positions=POSITIONS, norm_epsilon=1e-3,
)  # fmt: skip
SHAPES = {
    "no types": BERT,
    "two types": replace(BERT, type_vocabulary_size=2, activation="gelu_tanh"),
    "one type": replace(BERT, type_vocabulary_size=1, activation="relu", pad_id=2),
    "roberta": replace(BERT, pad_id=1, position_offset=2, type_vocabulary_size=1),
    "roberta, no types": replace(BERT, pad_id=2, position_offset=3, norm_epsilon=1e-5),
}


def make_encoder(shape: EncoderShape) -> TransformerEncoder:
    torch.manual_seed(6)
    encoder = TransformerEncoder(shape, dropout=0.2, attention_dropout=0.3, initializer_range=0.2)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return encoder.eval()


def from_transformers(directory: Path, model_class: str = "AutoModel") -> Any:
    """Load their model and check that no weights are left over and at most the pooler is missing."""
    model, report = getattr(transformers, model_class).from_pretrained(directory, output_loading_info=True)
    assert set(report["missing_keys"]) <= {"pooler.dense.weight", "pooler.dense.bias"}
    assert not any(found for kind, found in report.items() if kind != "missing_keys"), report
    return model.eval()


@pytest.mark.parametrize("name", SHAPES)
def test_out_and_back(name: str, tmp_path: Path) -> None:
    shape, encoder = SHAPES[name], make_encoder(SHAPES[name])
    directory = tmp_path / "out"
    write_huggingface(directory, encoder, small_tokenizer(), max_length=20)
    assert os.listdir(tmp_path) == ["out"]

    model, batch = from_transformers(directory), make_batch(shape.pad_id)
    assert type(model).__name__ == ("XLMRobertaModel" if shape.position_offset else "BertModel")
    assert_same(encoder, hidden_states(model, batch), batch)
    if name == "roberta":  # the layout is RoBERTa's, too
        assert_same(encoder, hidden_states(from_transformers(directory, "RobertaModel"), batch), batch)
    config = model.config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (shape.pad_id, 2, 3)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.2, 0.3)
    assert model.dtype == torch.float32

    pretrained, copy, unused = load(directory)
    assert pretrained.shape == shape
    assert unused == ([] if shape.type_vocabulary_size else ["embeddings.token_type_embeddings.weight"])
    state = encoder.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in copy.state_dict().items())
    with torch.no_grad():
        assert torch.equal(copy(batch), encoder(batch))


@pytest.mark.parametrize("layers", [0, 2])
def test_first_layers_alone(tmp_path: Path, layers: int) -> None:
    encoder, batch = make_encoder(SHAPES["two types"]), make_batch(0)
    write_huggingface(tmp_path / "out", encoder, small_tokenizer(), max_length=20, layers=layers)
    theirs = hidden_states(from_transformers(tmp_path / "out"), batch)
    assert len(theirs) == layers + 1
    copy = load(tmp_path / "out")[1]
    with torch.no_grad():
        assert_near(encoder(batch, layers), theirs[-1])
        assert torch.equal(copy(batch), encoder(batch, layers))


def test_bfloat16_weights_go_out_as_float32(tmp_path: Path) -> None:
    encoder, projection = make_encoder(BERT).bfloat16(), Linear(32, 4).bfloat16()
    options: dict[str, Any] = {"pooling": "mean", "normalize": True, "projection": projection}
    write_sentence_transformers(tmp_path / "out", encoder, small_tokenizer(), max_length=20, **options)
    for file in ("model.safetensors", "2_Dense/model.safetensors"):
        assert {tensor.dtype for tensor in load_file(tmp_path / "out" / file).values()} == {torch.float32}
    back, state = read_pretrained(tmp_path / "out").state()[0], encoder.state_dict()
    assert all(torch.equal(tensor, state[key].float()) for key, tensor in back.items())


@pytest.mark.parametrize("changes, message", [
    ({"norm": "pre"}, "normalises before its sublayers has no counterpart"),
    ({"position_offset": 5}, "positions begin at 5, Hugging Face's at 0 or at pad id + 1, 1"),
    ({"max_positions": 19}, "sentences of 20 tokens, but the encoder has 19 positions"),
])  # fmt: skip
def test_what_cannot_go_out(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        write_huggingface(tmp_path / "out", make_encoder(replace(BERT, **changes)), small_tokenizer(), max_length=20)
    assert os.listdir(tmp_path) == []


MODULES = [
    ("mean", None, "none", False, True), ("cls", 12, "tanh", True, True), ("max", 40, "none", False, False),
    ("mean", 12, "none", True, False),
]  # fmt: skip


@pytest.mark.parametrize("pooling, size, activation, bias, normalize", MODULES)
def test_the_vectors_of_sentence_transformers(tmp_path, pooling, size, activation, bias, normalize):
    encoder = make_encoder(BERT if pooling == "mean" else replace(BERT, position_offset=1, type_vocabulary_size=1))
    projection = None if size is None else Linear(32, size, bias=bias)
    options: dict[str, Any] = {"projection": projection, "activation": activation, "normalize": normalize}
    options["pooling"] = pooling
    write_sentence_transformers(tmp_path / "out", encoder, small_tokenizer(), max_length=MAXIMUM, **options)
    theirs = library.SentenceTransformer(str(tmp_path / "out"))
    assert theirs.max_seq_length == MAXIMUM and theirs[0].model.pooler is None
    expected = torch.from_numpy(theirs.encode(SENTENCES))

    pretrained, copy, _ = load(tmp_path / "out")
    assert (pretrained.pooling, pretrained.normalize, pretrained.shape) == (pooling, normalize, encoder.shape)
    batch = as_batch(write_tokenizer(tmp_path / "tokenizer"), SENTENCES)
    found = our_vectors(pretrained, copy, batch)
    assert_near(found, expected)
    assert torch.equal(our_vectors(pretrained, encoder, batch), found)
    dense = pretrained.projection
    if dense is None or projection is None:
        assert dense is projection
    else:
        expected, found = projection.state_dict(), dense.tensors()
        assert dense.activation == activation and found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
