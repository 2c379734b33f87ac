"""Directories of other libraries that our encoders cannot compute: one line names the entry, tensor or module."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.nn.small_models import edit_json, refusal
from xrep.errors import UserError
from xrep.interop.pretrained import masked_language_head, read_pretrained

POOLING, DENSE, BERT = "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
ENTRIES: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"model_type": "unknown"}, "a model of type 'unknown', which the installed transformers does not"),
    ("config.json", {"is_decoder": True}, "is_decoder is True"),
    ("config.json", {"auto_map": {"AutoModel": "model.Model"}}, "auto_map is {'AutoModel'"),
    ("config.json", {"quantization_config": {"bits": 4}}, "quantization_config is {'bits'"),
    ("config.json", {"hidden_act": "no-such"}, "transformers cannot build this model: KeyError"),
    ("config.json", {"hidden_size": ...}, "hidden_size is None, not a whole number of at least 1"),
    ("config.json", {"num_attention_heads": 5}, "hidden_size 32, num_attention_heads 5"),
    ("config.json", {"layer_norm_eps": 0}, "layer_norm_eps 0"),
    ("config.json", {"pad_token_id": 60}, "vocab_size is 60, not a whole number of at least 61"),
    ("config.json", {"model_type": "roberta", "max_position_embeddings": 1}, "max_position_embeddings is 1"),
    ("config.json", {"hidden_size": 64}, "the module Dense takes vectors of 32 numbers, the transformer gives 64"),
    (POOLING, {"pooling_mode": ["cls", "mean"]}, "Pooling has the mode cls + mean, xrep has mean, max"),
    (POOLING, {"pooling_mode": ..., "pooling_mode_lasttoken": True}, "Pooling has the mode lasttoken"),
    (DENSE, {"activation_function": "mine.Tanh"}, "the activation mine.Tanh, xrep has Identity and Tanh"),
    (DENSE, {"use_residual": True}, "the module Dense has use_residual True"),
    (DENSE, {"in_features": 31}, "the module Dense should have the tensors"),
    (BERT, {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
    (PROMPTS, {"default_prompt_name": "q"}, "there is no prompt 'q', the default"),
]
MODULE = "sentence_transformers.models."
CHAINS = [
    ("Transformer Pooling LSTM", f"xrep has no counterpart of the module {MODULE}LSTM (2_LSTM)"),
    ("Transformer Pooling Normalize Dense", "Transformer -> Pooling -> Normalize -> Dense, but xrep reads"),
    ("Transformer Pooling Dense Dense", "modules Transformer -> Pooling -> Dense -> Dense"),
    ("Transformer", "modules Transformer, but xrep reads"),
    ("", "modules (none), but xrep reads"),
]
QUERY, NORM = "encoder.layer.1.attention.self.query.weight", "embeddings.LayerNorm.bias"
LAST, POSITIONS = "encoder.layer.3.output.dense.bias", "embeddings.position_embeddings.weight"
WEIGHTS: list[tuple[dict[str, Any], str]] = [
    ({QUERY: None, NORM: None}, f"2 tensors missing: {NORM}, {QUERY}"),
    ({"ranker.weight": torch.ones(2)}, "1 tensor of no known use: ranker.weight"),
    ({LAST: torch.ones(32)}, f"1 tensor of no known use: {LAST}"),
    ({QUERY: torch.ones(32, 31)}, f"{QUERY} is float32 [32, 31], not floating-point [32, 32]"),
    ({POSITIONS: torch.ones(25, 32)}, f"{POSITIONS} is float32 [25, 32], not floating-point [24, 32]"),
    ({QUERY: torch.ones(32, 32, dtype=torch.int8)}, f"{QUERY} is int8 [32, 32]"),
    ({"roberta.embeddings.word_embeddings.weight": torch.ones(2)}, "which tensors are"),
    ({"embeddings.word_embeddings.weight": None}, "no encoder in it"),
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


def test_chains_of_modules(copy: Path) -> None:
    path = copy / "modules.json"
    good = json.loads(path.read_text())
    for names, message in CHAINS:
        kinds = enumerate(names.split())
        path.write_text(json.dumps([{"path": f"{i}_{kind}" if i else "", "type": MODULE + kind} for i, kind in kinds]))
        refused(lambda: read_pretrained(copy), path, message, "name that folder without modules.json" if names else "")
    for outside in ("../elsewhere", "/etc"):
        path.write_text(json.dumps([good[0], {**good[1], "path": outside}, *good[2:]]))
        refused(lambda: read_pretrained(copy), path, f"it names '{outside}', outside of its directory")


@pytest.mark.parametrize("changes, message", WEIGHTS, ids=str)
def test_weights(copy: Path, changes: dict[str, Any], message: str) -> None:
    file = copy / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)
    refused(lambda: read_pretrained(copy).state(), file, message)


def test_layers_and_heads_that_are_not_there(copy: Path) -> None:
    pretrained = read_pretrained(copy)
    for layers in (0, 4):
        refused(lambda n=layers: pretrained.state(n), f"has 3 layers, not {layers}; set `pretrained_layers` to 1 to 3")
    refused(lambda: masked_language_head(pretrained), "no masked language head: no tensor cls.predictions.* or lm_head")
