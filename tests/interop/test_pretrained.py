"""Directories of transformers, read into our encoder: every layer, the heads, and all layouts of weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.nn.small_models import (
    LAYERS,
    POSITIONS,
    VOCABULARY,
    assert_same,
    edit_json,
    hidden_states,
    load,
    make_batch,
    make_model,
    save,
)  # fmt: skip
from xrep.errors import UserError
from xrep.interop.pretrained import read_pretrained
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.nn.heads import MaskedLanguageHead

CLASSES = (
    "BertModel", "BertForMaskedLM", "BertForPreTraining", "RobertaModel", "RobertaForMaskedLM", "CamembertModel",
    "XLMRobertaModel", "XLMRobertaForMaskedLM",
)  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("BertForMaskedLM"), tmp_path_factory.mktemp("bert"))


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may change."""
    return Path(shutil.copytree(bert, tmp_path / "copy"))


def rewrite(directory: Path, change: Any) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file(change(tensors), directory / "model.safetensors", metadata={"format": "pt"})


def assert_same_logits(model: Any, pretrained: Any, encoder: Any, batch: Any) -> None:
    head = MaskedLanguageHead(pretrained.shape)
    head.load_state_dict(pretrained.head())
    with torch.no_grad():
        output = model(input_ids=batch.tokens, attention_mask=batch.mask.long())
        expected = output.logits if hasattr(output, "logits") else output.prediction_logits
        expected, words = expected[batch.mask], encoder.token_embedding.weight
        transformed = head(encoder(batch)[batch.mask])
        torch.testing.assert_close(transformed @ words.T + head.bias, expected, rtol=0, atol=1e-4)
        targets = batch.tokens[batch.mask]
        loss = linear_cross_entropy(transformed, words, targets, bias=head.bias).loss
        reference = torch.nn.functional.cross_entropy(expected, targets, reduction="sum")
        torch.testing.assert_close(loss, reference, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", CLASSES)
def test_every_layer_and_the_head_are_theirs(name: str, tmp_path: Path) -> None:
    options = {"hidden_act": "relu"} if name == "RobertaForMaskedLM" else {}  # its head has GELU
    model = make_model(name, **options)
    pretrained, encoder, unused = load(save(model, tmp_path))
    shape, pad_id = pretrained.shape, model.config.pad_token_id
    assert (shape.position_offset, shape.pad_id, shape.max_positions) == (2 * (pad_id == 1), pad_id, POSITIONS)
    assert (pretrained.path, pretrained.pooling, pretrained.normalize) == (tmp_path, None, None)
    batch = make_batch(pad_id)
    states = hidden_states(model, batch)
    assert_same(encoder, states, batch)
    # The unused tensors are those outside of embeddings and layers.
    names = load_file(tmp_path / "model.safetensors").keys()
    assert unused == sorted(n for n in names if "embeddings." not in n and "encoder.layer." not in n)
    if "For" in name:
        assert_same_logits(model, pretrained, encoder, batch)
    _, first, unused = load(tmp_path, 2)
    assert_same(first, states[:3], batch)
    assert len([n for n in unused if f"encoder.layer.{LAYERS - 1}." in n]) == 16


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    model, batch = make_model("BertForMaskedLM", hidden_act=activation), make_batch(0)
    pretrained, encoder, _ = load(save(model, tmp_path))
    assert_same(encoder, hidden_states(model, batch), batch)
    assert_same_logits(model, pretrained, encoder, batch)


def test_a_bare_config_means_what_transformers_takes_it_for(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    kept = {key: config[key] for key in (*sizes, "max_position_embeddings", "model_type")}
    (copy / "config.json").write_text(json.dumps(kept))
    model = make_model("BertForMaskedLM", layer_norm_eps=1e-12)
    batch = make_batch(0)
    assert_same(load(copy)[1], hidden_states(model, batch), batch)
    edit_json(copy / "config.json", model_type="xlm-roberta")
    pretrained = read_pretrained(copy)
    assert (pretrained.shape.pad_id, pretrained.shape.position_offset) == (1, 2)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM"])
def test_a_tied_decoder_may_be_in_the_file(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    save(model, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")  # with decoder.weight and decoder.bias
    batch = make_batch(model.config.pad_token_id)
    pretrained, encoder, unused = load(tmp_path)
    assert any(n.endswith("decoder.weight") for n in unused) and any(n.endswith("decoder.bias") for n in unused)
    assert_same_logits(model, pretrained, encoder, batch)

    state = model.state_dict()
    base = "cls.predictions." if name.startswith("Bert") else "lm_head."
    torch.save({n: t for n, t in state.items() if n != base + "bias"}, tmp_path / "pytorch_model.bin")
    assert_same_logits(model, pretrained, encoder, batch)

    torch.save(state | {base + "decoder.weight": torch.ones(VOCABULARY, 32)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin: .* output matrix of its own"):
        pretrained.head()
    torch.save({n: t for n, t in state.items() if "decoder" not in n}, tmp_path / "pytorch_model.bin")
    edit_json(tmp_path / "config.json", tie_word_embeddings=False)
    with pytest.raises(UserError, match="output matrix of its own"):
        read_pretrained(tmp_path).head()


def test_layouts_of_weights(bert: Path, tmp_path: Path) -> None:
    expected, model = read_pretrained(bert).state()[0], make_model("BertForMaskedLM")
    state = model.state_dict()

    def shard(directory: Path) -> None:
        model.save_pretrained(directory, max_shard_size="20KB")
        assert len(list(directory.glob("model-*.safetensors"))) > 2

    def torch_file(directory: Path) -> None:
        torch.save(state, directory / "pytorch_model.bin")

    def old_torch_file(directory: Path) -> None:
        torch.save(state, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)

    def torch_shards(directory: Path) -> None:
        names, files = sorted(state), ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
        for part, file in enumerate(files):
            torch.save({name: state[name] for name in names[part::2]}, directory / file)
        where = {name: files[i % 2] for i, name in enumerate(names)}
        (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))

    for write in (shard, torch_file, old_torch_file, torch_shards):
        directory = tmp_path / write.__name__
        directory.mkdir()
        shutil.copy(bert / "config.json", directory)
        write(directory)
        found = read_pretrained(directory).state()[0]
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected), write.__name__


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_floating_point_numbers_become_float32(copy: Path, bert: Path, dtype: torch.dtype) -> None:
    rewrite(copy, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    expected, found = (read_pretrained(path).state()[0] for path in (bert, copy))
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name].to(dtype).float()), name


@pytest.mark.parametrize("prefix", ["", "roberta.", "model."])
def test_old_names_and_prefixes(copy: Path, bert: Path, prefix: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {}
        for name, tensor in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            renamed[prefix + name.removeprefix("bert.") if name.startswith("bert.") else name] = tensor
        buffers = {"position_ids": torch.arange(POSITIONS)[None], "token_type_ids": torch.zeros(1, 2).long()}
        return renamed | {f"{prefix}embeddings.{name}": tensor for name, tensor in buffers.items()}

    rewrite(copy, change)
    pretrained, expected = read_pretrained(copy), read_pretrained(bert).state()[0]
    state, unused = pretrained.state()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert f"{prefix}embeddings.position_ids" in unused and "cls.predictions.transform.LayerNorm.gamma" in unused
    assert_same_logits(make_model("BertForMaskedLM"), pretrained, load(copy)[1], make_batch(0))
