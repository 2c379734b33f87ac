"""Directories of transformers, read into our encoder: every layer, the heads, and all errors."""

from __future__ import annotations

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
    assert_same,
    edit_json,
    hidden_states,
    load,
    make_batch,
    make_model,
    refusal,
    save,
)
from xrep.errors import UserError
from xrep.interop.pretrained import masked_language_head, read_pretrained
from xrep.kernels.linear_cross_entropy import linear_cross_entropy

CLASSES = {
    "BertModel": 0,
    "BertForMaskedLM": 0,
    "BertForPreTraining": 0,
    "RobertaModel": 2,
    "RobertaForMaskedLM": 2,
    "CamembertModel": 2,
    "XLMRobertaModel": 2,
    "XLMRobertaForMaskedLM": 2,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("BertForMaskedLM"), tmp_path_factory.mktemp("bert"))


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(bert, tmp_path / "copy"))


def rewrite(directory: Path, change: Any) -> None:
    tensors = load_file(directory / "model.safetensors")
    save_file(change(tensors), directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name, offset", CLASSES.items())
def test_every_layer_is_theirs(name: str, offset: int, tmp_path: Path) -> None:
    model = make_model(name)
    pretrained, encoder, unused = load(save(model, tmp_path))
    shape = pretrained.shape
    pad_id = model.config.pad_token_id
    assert (shape.position_offset, shape.pad_id, shape.max_positions) == (offset, pad_id, POSITIONS)
    assert (pretrained.path, pretrained.pooling, pretrained.normalize) == (tmp_path, None, None)
    batch = make_batch(pad_id)
    assert_same(encoder, hidden_states(model, batch), batch)
    # The unused tensors are those outside of embeddings and layers.
    names = load_file(tmp_path / "model.safetensors").keys()
    assert unused == sorted(n for n in names if "embeddings." not in n and "encoder.layer." not in n)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "relu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    model = make_model("BertForMaskedLM", hidden_act=activation)
    batch = make_batch(0)
    pretrained, encoder, _ = load(save(model, tmp_path))
    assert_same(encoder, hidden_states(model, batch), batch)
    assert_same_logits(model, pretrained, encoder, batch)


def test_a_bare_config_means_what_transformers_takes_it_for(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    kept = {key: config[key] for key in (*sizes, "max_position_embeddings", "architectures")}
    (copy / "config.json").write_text(json.dumps(kept))
    model = make_model("BertForMaskedLM", layer_norm_eps=1e-12)
    batch = make_batch(0)
    assert_same(load(copy)[1], hidden_states(model, batch), batch)
    edit_json(copy / "config.json", architectures=["XLMRobertaForMaskedLM"])
    pretrained = read_pretrained(copy)
    assert (pretrained.shape.pad_id, pretrained.shape.position_offset) == (1, 2)


def assert_same_logits(model: Any, pretrained: Any, encoder: Any, batch: Any) -> None:
    head = masked_language_head(pretrained).eval()
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


@pytest.mark.parametrize("name", [name for name in CLASSES if "For" in name])
def test_masked_language_heads(name: str, tmp_path: Path) -> None:
    options = {"hidden_act": "relu"} if name == "RobertaForMaskedLM" else {}  # its head has GELU
    model = make_model(name, **options)
    pretrained, encoder, _ = load(save(model, tmp_path))
    assert_same_logits(model, pretrained, encoder, make_batch(model.config.pad_token_id))


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

    for wrong, message in (("decoder.weight", "output matrix of its own"), ("decoder.bias", "two biases")):
        changed = {n: t + 1 if n == base + wrong else t for n, t in state.items()}
        torch.save(changed, tmp_path / "pytorch_model.bin")
        with pytest.raises(UserError) as error:
            masked_language_head(pretrained)
        refusal(error, "pytorch_model.bin", message)


def test_directories_without_a_usable_head(copy: Path, tmp_path: Path) -> None:
    plain = save(make_model("XLMRobertaModel"), tmp_path / "plain")
    with pytest.raises(UserError) as error:
        masked_language_head(read_pretrained(plain))
    refusal(error, "model.safetensors", "no masked language head: no tensor cls.predictions.* or lm_head.*")
    edit_json(copy / "config.json", tie_word_embeddings=False)
    with pytest.raises(UserError) as error:
        masked_language_head(read_pretrained(copy))
    refusal(error, "output matrix of its own")
    edit_json(copy / "config.json", tie_word_embeddings=True)
    rewrite(copy, lambda tensors: {n: t for n, t in tensors.items() if n != "cls.predictions.transform.dense.bias"})
    with pytest.raises(UserError) as error:
        masked_language_head(read_pretrained(copy))
    refusal(error, "1 tensor missing: cls.predictions.transform.dense.bias")
    rewrite(copy, lambda tensors: {**tensors, "cls.predictions.extra": torch.ones(2)})
    with pytest.raises(UserError) as error:
        masked_language_head(read_pretrained(copy))
    refusal(error, "1 tensor missing", "1 tensor of no known use: cls.predictions.extra")


@pytest.mark.parametrize("layers", [1, 2])
def test_the_first_layers(bert: Path, layers: int) -> None:
    model, batch = make_model("BertForMaskedLM"), make_batch(0)
    _, encoder, unused = load(bert, layers)
    assert_same(encoder, hidden_states(model, batch)[: layers + 1], batch)
    above = {n for n in unused if "encoder.layer." in n}
    assert len(above) == (LAYERS - layers) * 16 and f"bert.encoder.layer.{LAYERS - 1}.output.dense.bias" in above


@pytest.mark.parametrize("layers", [0, LAYERS + 1, -1])
def test_as_many_layers_as_there_are(bert: Path, layers: int) -> None:
    with pytest.raises(UserError) as error:
        read_pretrained(bert).state(layers)
    refusal(error, bert, f"has 3 layers, not {layers}; set `pretrained_layers` to 1 to 3")


def test_layouts_of_weights(bert: Path, tmp_path: Path) -> None:
    expected = read_pretrained(bert).state()[0]
    model = make_model("BertForMaskedLM")
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


def test_safetensors_come_first(copy: Path) -> None:
    (copy / "pytorch_model.bin").write_bytes(b"not read")
    load(copy)


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


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "model type": (
        {"model_type": "unknown"},
        "a model of type 'unknown', which the installed transformers does not have",
    ),
    "no type": ({"model_type": ..., "architectures": ["T5EncoderModel"]}, "a model of type 'None'"),
    "relative": ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    "decoder": ({"is_decoder": True}, "is_decoder is True"),
    "cross-attention": ({"add_cross_attention": True}, "add_cross_attention is True"),
    "code": ({"auto_map": {"AutoModel": "model.Model"}}, "auto_map is {'AutoModel'"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits'"),
    "pruned": ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    "activation": ({"hidden_act": "no-such"}, "transformers cannot build this model: KeyError"),
    "no size": ({"hidden_size": ...}, "hidden_size is None, not a whole number of at least 1"),
    "truth": ({"num_hidden_layers": True}, "num_hidden_layers is True"),
    "text": ({"vocab_size": "60"}, "vocab_size is '60'"),
    "heads": ({"num_attention_heads": 5}, "hidden_size 32, num_attention_heads 5"),
    "epsilon": ({"layer_norm_eps": 0}, "layer_norm_eps 0"),
    "pad": ({"pad_token_id": 60}, "vocab_size is 60, not a whole number of at least 61"),
    "positions": ({"model_type": "roberta", "max_position_embeddings": 1}, "max_position_embeddings is 1"),
}


@pytest.mark.parametrize("changes, message", CONFIGS.values(), ids=CONFIGS)
def test_refused_configs(copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_json(copy / "config.json", **changes)
    with pytest.raises(UserError) as error:
        read_pretrained(copy)
    refusal(error, copy / "config.json", message)


@pytest.mark.parametrize("content", ["{", "[]", "\xff", '{"model_type": ["bert"]}'])
def test_damaged_configs(copy: Path, content: str) -> None:
    (copy / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError) as error:
        read_pretrained(copy)
    refusal(error, copy / "config.json")


def test_any_value_is_read_or_refused(copy: Path) -> None:
    good = json.loads((copy / "config.json").read_text())
    keys = {*good, "position_embedding_type", "auto_map", "pruned_heads", "xrep"}
    for key in sorted(keys):
        for value in (None, "x", -1, 2.5, True, [], [3], {}, {"type_vocabulary_size": "x"}, 10**30):
            (copy / "config.json").write_text(json.dumps({**good, key: value}))
            try:
                read_pretrained(copy)
            except UserError as error:
                assert "\n" not in str(error)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_pretrained(tmp_path)
    refusal(error, tmp_path, "no config.json: not the directory of a pretrained encoder")


def without(*names: str) -> Any:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names}


def with_tensor(name: str, tensor: torch.Tensor) -> Any:
    return lambda tensors: {**tensors, name: tensor}


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
NORM = "bert.embeddings.LayerNorm.bias"
WEIGHTS: dict[str, tuple[Any, str]] = {
    "missing": (without(QUERY, NORM), f"2 tensors missing: {NORM}, {QUERY}"),
    "strange": (with_tensor("ranker.weight", torch.ones(2)), "1 tensor of no known use: ranker.weight"),
    "strange inside": (
        with_tensor("bert.encoder.layer.1.attention.self.distance_embedding.weight", torch.ones(2)),
        "1 tensor of no known use: bert.encoder.layer.1.attention.self.distance_embedding.weight",
    ),
    "one layer more": (with_tensor("bert.encoder.layer.3.output.dense.bias", torch.ones(32)), "encoder.layer.3.output"),
    "without prefix": (
        lambda tensors: {name.removeprefix("bert.") if name == QUERY else name: t for name, t in tensors.items()},
        f"1 tensor missing: {QUERY}; 1 tensor of no known use: {QUERY.removeprefix('bert.')}",
    ),
    "shape": (with_tensor(QUERY, torch.ones(32, 31)), f"{QUERY} is float32 [32, 31], not floating-point [32, 32]"),
    "positions": (
        with_tensor("bert.embeddings.position_embeddings.weight", torch.ones(25, 32)),
        "position_embeddings.weight is float32 [25, 32], not floating-point [24, 32]",
    ),
    "integers": (with_tensor(QUERY, torch.ones(32, 32, dtype=torch.int8)), f"{QUERY} is int8 [32, 32]"),
    "eight bits": (with_tensor(QUERY, torch.ones(32, 32).to(torch.float8_e4m3fn)), f"{QUERY} is float8_e4m3fn"),
    "twice": (with_tensor("bert.embeddings.LayerNorm.gamma", torch.ones(32)), "one tensor under two names"),
    "two encoders": (with_tensor("roberta.embeddings.word_embeddings.weight", torch.ones(2)), "which tensors are"),
    "no encoder": (without("bert.embeddings.word_embeddings.weight"), "no encoder in it"),
}  # fmt: skip


@pytest.mark.parametrize("change, message", WEIGHTS.values(), ids=WEIGHTS)
def test_refused_weights(copy: Path, change: Any, message: str) -> None:
    rewrite(copy, change)
    with pytest.raises(UserError) as error:
        read_pretrained(copy).state()
    refusal(error, copy / "model.safetensors", message)
