"""Encoders that the library transformers computes: vectors equal its own, and everything else works as with ours."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interop.foreign_models import FAMILIES, POSITIONS, SENTENCES, library_vectors, write_model
from tests.nn.small_models import edit_json, transformers
from tests.support.closeness import assert_near
from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.pretrained import read_pretrained
from xrep.nn.encoder import Encoder
from xrep.nn.shape import UNLIMITED

pytestmark = pytest.mark.slow  # its models take seconds to import
STACKS = {"modernbert": "layers", "deberta-v2": "encoder.layer", "t5": "encoder.block", "qwen3": "layers"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {family: write_model(folder / family, family) for family in FAMILIES}


def load(path: Path, layers: int | None = None) -> Encoder:
    pretrained = read_pretrained(path)
    encoder = Encoder.build(pretrained.shape.first_layers(layers, path), dropout=0.0, attention_dropout=0.0)
    encoder.load_state_dict(pretrained.state(layers)[0])
    return encoder.eval()


def random_batch() -> TokenBatch:
    lengths = torch.tensor([7, 3, 5])
    tokens = torch.randint(5, 40, (3, 7), generator=torch.Generator().manual_seed(0))
    return token_batch(tokens.masked_fill(torch.arange(7) >= lengths[:, None], 0), lengths)


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_those_of_the_library(models: dict[str, Path], family: str) -> None:
    encoder = SentenceEncoder.load(models[family], device="cpu")
    assert encoder.model.encoders["shared"].shape.type == "transformers"
    expected = library_vectors(models[family], SENTENCES).numpy()
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-5)
    half = SentenceEncoder.load(models[family], device="cpu", dtype="bfloat16")
    assert {buffer.dtype for buffer in half.model.buffers()} <= {torch.float32, torch.int64}
    assert (half.encode(SENTENCES) * expected).sum(1).min() > 0.999


@pytest.mark.parametrize("family", FAMILIES)
def test_shape_and_names(models: dict[str, Path], family: str) -> None:
    shape = read_pretrained(models[family]).shape
    assert (shape.hidden_size, shape.layers, shape.heads, shape.feedforward_size) == (32, 2, 2, 48)
    assert shape.max_positions == (UNLIMITED if family == "t5" else POSITIONS) and shape.pad_id == 0
    assert json.loads(json.dumps(shape.as_dict())) == shape.as_dict()
    names = list(load(models[family]).state_dict())
    stored = load_file(models[family] / "model.safetensors")
    assert len(names) == len(set(names)) == len(stored)
    assert sum(name.startswith("layers.1.") for name in names) == sum(f"{STACKS[family]}.1." in name for name in stored)
    assert [name for name in names if name.startswith("token_embedding.")] == ["token_embedding.weight"]


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_padding_and_empty_batches(models: dict[str, Path], family: str) -> None:
    batch, encoder = random_batch(), load(models[family])
    with torch.no_grad():
        states = [encoder(batch, layer) for layer in (0, 1, 2)]
        assert all(torch.equal(state[~batch.mask], torch.zeros_like(state[~batch.mask])) for state in states)
        assert torch.equal(states[2], encoder(batch)) and not torch.allclose(states[1], states[2])
        alone = encoder(batch.rows(1, 2), 1)
        assert_near(alone, states[1][1:2, :3])
    empty = encoder(batch.rows(0, 0))
    assert empty.shape == (0, 7, 32)
    empty.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    with pytest.raises(ValueError, match="hidden_layer"):
        encoder(batch, 3)
    cut = load(models[family], 1)
    assert len(cut.layers) == cut.shape.layers == 1
    if family == "deberta-v2":  # the others normalise after the last layer
        with torch.no_grad():
            torch.testing.assert_close(cut(batch), states[1])
    with pytest.raises(UserError, match="has 2 layers, not 3"):
        load(models[family], 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_activation_checkpointing_and_copies(models: dict[str, Path], family: str) -> None:
    encoder, batch = load(models[family]).train(), random_batch()
    copied = copy.deepcopy(encoder)
    copied.set_activation_checkpointing(True)
    for each in (encoder, copied):
        each(batch).square().sum().backward()
    for (name, ours), theirs in zip(encoder.named_parameters(), copied.parameters(), strict=True):
        assert ours is not theirs and torch.allclose(ours.grad, theirs.grad, atol=1e-6), name
    assert any(getattr(part, "gradient_checkpointing", False) for part in copied.modules())
    with torch.no_grad():
        copied.token_embedding.weight.zero_()
        assert not torch.equal(copied(batch), encoder(batch))


def test_dropout_rates_are_those_of_the_model(models: dict[str, Path], tmp_path: Path) -> None:
    transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2).save_pretrained(tmp_path)
    for path in (models["deberta-v2"], tmp_path):
        encoder = Encoder.build(read_pretrained(path).shape, dropout=0.3, attention_dropout=0.2)
        assert {part.p for part in encoder.modules() if hasattr(part, "p")} == {0.3, 0.2}


@pytest.mark.parametrize("family", ["XLMRobertaXL", "IBert", "Longformer"])
def test_positions_that_begin_behind_that_of_padding(family: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    options = {"attention_window": [4, 4]} if family == "Longformer" else {}
    config = getattr(transformers, f"{family}Config")(**sizes, **options, max_position_embeddings=20, pad_token_id=1)
    config.save_pretrained(tmp_path)
    shape = read_pretrained(tmp_path).shape
    assert shape.max_positions == 18
    assert len(Encoder.build(shape.first_layers(1, tmp_path), dropout=0.0, attention_dropout=0.0).layers) == 1


@pytest.mark.parametrize("kind", ["hf", "sentence-transformers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_export_and_back(models: dict[str, Path], tmp_path: Path, family: str, kind: str) -> None:
    target = tmp_path / family
    export_path(models[family], target, kind)
    expected = library_vectors(models[family], SENTENCES)
    if kind == "hf":
        np.testing.assert_allclose(library_vectors(target, SENTENCES), expected, atol=1e-5)
    else:
        library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
        vectors = library.SentenceTransformer(str(target), device="cpu").encode(SENTENCES)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(SentenceEncoder.load(target, device="cpu").encode(SENTENCES), expected, atol=1e-5)
    stored, written = (load_file(path / "model.safetensors") for path in (models[family], target))
    assert stored.keys() == written.keys() and all(torch.equal(stored[name], written[name]) for name in stored)


def test_ids_of_a_smaller_vocabulary(tmp_path: Path) -> None:
    """The library accepts no list of ids with None in it."""
    edit_json(write_model(tmp_path, "qwen3") / "config.json", eos_token_id=[3, 9], sep_token_id=9)
    config: dict[str, Any] = vars(read_pretrained(tmp_path).shape.with_rows([0, 3]))["config"]
    assert (config["vocab_size"], config["eos_token_id"], config["sep_token_id"]) == (2, [1], None)


def test_bert_stays_with_ours_unless_told_otherwise(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel, XLMRobertaXLConfig, XLMRobertaXLModel

    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 34}
    BertModel(BertConfig(**sizes)).eval().save_pretrained(tmp_path / "bert")
    ours, theirs = (read_pretrained(tmp_path / "bert", kind) for kind in ("auto", "transformers"))
    assert (ours.shape.type, theirs.shape.type) == ("transformer", "transformers")
    states = []
    for pretrained in (ours, theirs):
        encoder = Encoder.build(pretrained.shape, dropout=0.0, attention_dropout=0.0).eval()
        encoder.load_state_dict(pretrained.state()[0])
        states.append(encoder(random_batch()))
    torch.testing.assert_close(*states, atol=1e-5, rtol=0)
    with pytest.raises(UserError, match="unknown encoder 'transformerz'; did you mean 'transformer'"):
        read_pretrained(tmp_path / "bert", "transformerz")
    XLMRobertaXLModel(XLMRobertaXLConfig(**sizes, pad_token_id=1)).save_pretrained(tmp_path / "xl")
    shape = read_pretrained(tmp_path / "xl").shape  # norms before sublayers, which only the library computes
    assert (shape.type, shape.max_positions, shape.pad_id) == ("transformers", 32, 1)


def test_without_the_library_the_extra_is_named(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "transformers" else find(name))
    with pytest.raises(UserError, match=r"a model of type 'modernbert'.*pip install 'xrep\[hf\]'"):
        read_pretrained(models["modernbert"])


def test_directories_that_do_not_fit(models: dict[str, Path], tmp_path: Path) -> None:
    copied = shutil.copytree(models["modernbert"], tmp_path / "m")
    for change, message in (
        ({"hidden_size": 24}, "transformers cannot load these weights: "),
        ({"model_type": "vit"}, "transformers has no encoder that gives token vectors"),
    ):
        edit_json(copied / "config.json", **change)
        with pytest.raises(UserError, match=message):
            load(copied)


def test_tensors_that_do_not_fit_are_named(models: dict[str, Path], tmp_path: Path) -> None:
    copied = shutil.copytree(models["t5"], tmp_path / "m")
    whole = load_file(copied / "model.safetensors") | {"lm_head.weight": torch.zeros(3, 3)}
    norm = "encoder.final_layer_norm.weight"
    save_file({name: tensor for name, tensor in whole.items() if name != norm}, copied / "model.safetensors")
    with pytest.raises(UserError, match=f"1 tensors missing: {norm}"):
        load(copied)
    save_file(whole, copied / "model.safetensors")
    assert read_pretrained(copied).state()[1] == ["lm_head.weight"]


def test_no_code_of_a_directory_runs(models: dict[str, Path], tmp_path: Path) -> None:
    """Entries that would make transformers fetch kernels are left out."""
    path = shutil.copytree(models["modernbert"], tmp_path / "m")
    edit_json(path / "config.json", attn_implementation="evil/kernels")
    encoder = SentenceEncoder.load(path, device="cpu")
    np.testing.assert_allclose(encoder.encode(SENTENCES), library_vectors(models["modernbert"], SENTENCES), atol=1e-5)
    assert "attn_implementation" not in encoder.model.encoders["shared"].shape.config
