"""Directories of other libraries that our encoders cannot compute: one line names the entry, tensor or module."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.nn.small_models import edit_json, refusal
from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.interop.pretrained import read_pretrained
from xrep.models.dual_encoder import DualEncoder
from xrep.text.huggingface import read_huggingface

POOLING, DENSE, BERT = "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
ENTRIES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"model_type": "unknown"}, "a model of type 'unknown', which the installed transformers does not"),
    ("config.json", {"is_decoder": True}, "is_decoder is True"),
    ("config.json", {"auto_map": {"AutoModel": "model.Model"}}, "auto_map is {'AutoModel'"),
    ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits'"),
    ("config.json", {"hidden_act": "no-such"}, "transformers cannot build this model: KeyError"),
    ("config.json", {"hidden_size": ...}, "no hidden_size"),
    (POOLING, {"pooling_mode": ["cls", "mean"]}, "Pooling has the mode cls + mean, xrep has mean, max"),
    (POOLING, {"pooling_mode": ..., "pooling_mode_weightedmean_tokens": True}, "Pooling has the mode weightedmean"),
    (DENSE, {"activation_function": "mine.Tanh"}, "the activation mine.Tanh, xrep has Identity and Tanh"),
    (DENSE, {"use_residual": True}, "the module Dense has use_residual True"),
    (BERT, {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
    (BERT, {"processing_kwargs": {"text": {"max_length": 9}}}, "the module Transformer has processing_kwargs {'text'"),
    (PROMPTS, {"default_prompt_name": "q"}, "there is no prompt 'q', the default"),
    (PROMPTS, {"truncate_dim": 8}, "sentence-transformers would cut its vectors to 8 numbers, and xrep would not"),
]
MODULE = "sentence_transformers.models."
CHAINS = [
    ("Transformer Pooling LSTM", f"xrep has no counterpart of the module {MODULE}LSTM (2_LSTM)"),
    ("Transformer Pooling Normalize Dense", "Transformer -> Pooling -> Normalize -> Dense, but xrep reads"),
    ("", "modules (none), but xrep reads"),
]


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def refused(read: Callable[[], object], *parts: object) -> None:
    with pytest.raises(UserError) as error:
        read()
    refusal(error, *parts)


@pytest.mark.parametrize("file, changes, message", ENTRIES, ids=str)
def test_entries(copy: Path, file: str, changes: dict[str, Any], message: str) -> None:
    edit_json(copy / file, **changes)
    refused(lambda: read_pretrained(copy), copy / Path(file).parent, message)


def test_a_tokenizer_that_cuts_at_the_left(copy: Path) -> None:
    edit_json(copy / "tokenizer_config.json", truncation_side="left")
    refused(
        lambda: read_huggingface(copy),
        copy / "tokenizer_config.json",
        "cuts texts at the left",
        "set truncation_side to right",
    )


def test_chains_of_modules(copy: Path) -> None:
    path = copy / "modules.json"
    good = json.loads(path.read_text())
    for names, message in CHAINS:
        kinds = enumerate(names.split())
        path.write_text(json.dumps([{"path": f"{i}_{kind}" if i else "", "type": MODULE + kind} for i, kind in kinds]))
        refused(lambda: read_pretrained(copy), path, message, "name that folder without modules.json" if names else "")
    path.write_text(json.dumps([good[0], {**good[1], "path": "../elsewhere"}, *good[2:]]))
    refused(lambda: read_pretrained(copy), path, "it names '../elsewhere', outside of its directory")


def test_weights_that_do_not_fit(copy: Path) -> None:
    """torch says which tensors are missing or of another size; what is not used is noted."""
    file, query = copy / "model.safetensors", "encoder.layer.1.attention.self.query.weight"
    vocabulary = Vocabulary(size=60, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    text = TextSpec(vocabularies={"shared": vocabulary}, max_length=9)
    make = lambda: DualEncoder(DualEncoder.Config(encoder=str(copy), towers="shared"), text)  # noqa: E731
    whole = load_file(file)
    save_file(whole | {"ranker.weight": torch.ones(2)}, file)
    assert "pooler.dense.weight, ranker.weight" in make().origins["encoders.shared"].details
    for changes, message in (
        ({query: None}, 'Missing key(s) in state_dict: "layers.1.attention.qkv.weight"'),
        ({query: torch.ones(31, 32)}, "size mismatch for layers.1.attention.qkv.weight"),
        ({query: torch.ones(32, 31)}, "Sizes of tensors must match"),
        ({"embeddings.word_embeddings.weight": None}, "no encoder in it"),
    ):
        save_file({name: tensor for name, tensor in (whole | changes).items() if tensor is not None}, file)
        refused(make, copy, message)


def test_layers_and_heads_that_are_not_there(copy: Path) -> None:
    pretrained = read_pretrained(copy)
    for layers in (0, 4):
        refused(lambda n=layers: pretrained.state(n), f"has 3 layers, not {layers}; set `pretrained_layers` to a num")
    assert pretrained.head() is None
