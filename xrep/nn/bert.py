"""BERT's format of Hugging Face directories: how ``config.json`` and the tensors there map to a ``TransformerEncoder``.

BERT and RoBERTa (with XLM-R and CamemBERT) are the same post-norm transformer; RoBERTa's positions begin at pad id + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.nn.shape import Activation, EncoderShape
from xrep.nn.weights import Weights, check_entries, read_json

HF_CONFIG = "config.json"
FAMILIES = ("bert", "roberta", "camembert", "xlm-roberta")
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
EXPORTED_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
# Options that change the computation, with the values for which they do not. The first two are for BERT's family alone.
INERT: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_encoder_decoder": (None, False),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None, {}),
    "auto_map": (None, {}),
}
SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
PREFIXES = ("", "bert.", "roberta.", "model.")
WORDS, TYPES = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"


def obstacle(config: Mapping[str, Any]) -> str | None:
    """Return what in a ``config.json`` keeps ``TransformerEncoder`` from computing the model; None if nothing does."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        return f"a model of type {model_type!r}; xrep's own encoder reads {', '.join(FAMILIES)}"
    if str(config.get("hidden_act", "gelu")) not in ACTIVATIONS:
        return f"hidden_act is {config['hidden_act']!r}; xrep's own encoder has {', '.join(ACTIVATIONS)}"
    return None


def check_inert(config: Mapping[str, Any], path: Path, keys: Iterable[str] = INERT) -> None:
    """Refuse a ``config.json`` with options that would change the computation unnoticed.

    Raises:
        UserError: It has one of ``keys`` with another value than in ``INERT``.
    """
    for key in keys:
        if config.get(key) not in INERT[key]:
            problem = f"{key} is {config[key]!r}, which xrep's encoders cannot do"
            raise UserError(problem, path=path, cure="use a plain encoder of this family")


def read_shape(path: Path) -> EncoderShape:
    """Read the shape from a ``config.json``.

    Raises:
        UserError: The file is damaged, or ``TransformerEncoder`` cannot compute the model.
    """
    config = read_json(path)
    if problem := obstacle(config):
        raise UserError(problem, path=path, cure="use another encoder")
    check_inert(config, path)
    check_entries(config, SIZES, path)
    is_bert = config["model_type"] == "bert"
    values = {"pad_token_id": 0 if is_bert else 1, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    values |= {key: value for key, value in config.items() if value is not None}
    pad_id, types, ours = values["pad_token_id"], values["type_vocab_size"], config.get("xrep")
    offset = 0 if is_bert else pad_id + 1
    if isinstance(ours, dict) and ours.get("type_vocabulary_size") == 0 and types == 1:
        types = 0  # xrep wrote the file, which has one row because transformers cannot do without
    return EncoderShape(
        vocabulary_size=values["vocab_size"],
        pad_id=pad_id,
        hidden_size=values["hidden_size"],
        layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        feedforward_size=values["intermediate_size"],
        max_positions=values["max_position_embeddings"] - offset,
        position_offset=offset,
        type_vocabulary_size=types,
        norm_epsilon=values["layer_norm_eps"],
        activation=ACTIVATIONS[str(values["hidden_act"])],
    )


def tensor_names(shape: EncoderShape) -> dict[str, tuple[str, ...]]:
    """Map each tensor name of a ``TransformerEncoder`` to the Hugging Face tensors that it joins along the rows."""
    names: dict[str, tuple[str, ...]] = {
        "token_embedding.weight": (WORDS,),
        "position_embedding.weight": ("embeddings.position_embeddings.weight",),
    }
    if shape.type_vocabulary_size:
        names["type_embedding.weight"] = (TYPES,)
    parts = {
        "attention.qkv": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "feedforward_in": ("intermediate.dense",),
        "feedforward_out": ("output.dense",),
        "feedforward_norm": ("output.LayerNorm",),
    }
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = (f"embeddings.LayerNorm.{kind}",)
        for layer in range(shape.layers):
            for ours, theirs in parts.items():
                joined = tuple(f"encoder.layer.{layer}.{name}.{kind}" for name in theirs)
                names[f"layers.{layer}.{ours}.{kind}"] = joined
    return names


def read_state(directory: Path, shape: EncoderShape) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state of a ``TransformerEncoder`` of this shape, in float32, as far as the directory has it.

    Returns:
        The state, and the names of the tensors in the directory that it does not use: buffers, poolers, heads of
        language models, higher layers.

    Raises:
        UserError: There are no weights of an encoder, or they are damaged.
    """
    weights = Weights(directory)
    named = named_tensors(weights)
    state, used = dict[str, Tensor](), set[str]()
    for ours, theirs in tensor_names(shape).items():
        if all(name in named for name in theirs):
            parts = [weights[named[name]] for name in theirs]
            state[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
            used.update(named[name] for name in theirs)
    if not shape.type_vocabulary_size and TYPES in named:
        types = weights[named[TYPES]]
        if types.any():  # another program trained it: every token has type 0, so the row is added to the positions
            state["position_embedding.weight"] = state["position_embedding.weight"] + types
            used.add(named[TYPES])
    return state, sorted(weights.keys() - used)


def named_tensors(weights: Weights) -> dict[str, str]:
    """Map current Hugging Face names, without the prefix of the encoder, to names in the file. Raises UserError if no
    encoder is in it, or several are."""
    prefixes = [name.removesuffix(WORDS) for name in weights if name.endswith(WORDS)]
    if len(prefixes) != 1 or prefixes[0] not in PREFIXES:
        problem = f"no encoder in it: no tensor {WORDS}, alone or after {', '.join(PREFIXES[1:])}"
        if prefixes:
            problem = f"which tensors are the encoder's? {', '.join(prefix + WORDS for prefix in sorted(prefixes))}"
        raise UserError(problem, path=weights.path, cure="use the weights of a single BERT or RoBERTa")
    # Early conversions have TensorFlow's names for the two tensors of a normalisation.
    plain = {name: name.removeprefix(prefixes[0]).replace("Norm.gamma", "Norm.weight") for name in weights}
    return {ours.replace("Norm.beta", "Norm.bias"): name for name, ours in plain.items()}


def config_of(shape: EncoderShape, dropout: float, attention_dropout: float) -> dict[str, Any]:
    """Return the ``config.json`` of a ``BertModel``, or an ``XLMRobertaModel`` if positions begin at pad id + 1.

    ``XLMRobertaModel`` has the same layout as ``RobertaModel``.

    Raises:
        UserError: Transformers has no counterpart of the encoder (pre-norm, other positions).
    """
    bert = shape.position_offset == 0
    if shape.norm != "post":
        problem = "an encoder that normalises before its sublayers has no counterpart among Hugging Face's models"
        raise UserError(problem, cure="train one with `norm` post")
    if not bert and shape.position_offset != shape.pad_id + 1:
        problem = (
            f"positions begin at {shape.position_offset}, Hugging Face's at 0 or at pad id + 1, {shape.pad_id + 1}"
        )
        raise UserError(problem, cure="train an encoder with one of these")
    return {
        "architectures": ["BertModel" if bert else "XLMRobertaModel"],
        "model_type": "bert" if bert else "xlm-roberta",
        "vocab_size": shape.vocabulary_size,
        "pad_token_id": shape.pad_id,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_size,
        "max_position_embeddings": shape.max_positions + shape.position_offset,
        "position_embedding_type": "absolute",
        "type_vocab_size": shape.type_vocabulary_size or 1,
        "layer_norm_eps": shape.norm_epsilon,
        "hidden_act": EXPORTED_ACTIVATIONS[shape.activation],
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": attention_dropout,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "xrep": {"type_vocabulary_size": shape.type_vocabulary_size},
    }


def tensors_of(shape: EncoderShape, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a ``TransformerEncoder`` of this shape under the names of Hugging Face, in float32."""
    tensors = {
        name: part.clone()
        for ours, theirs in tensor_names(shape).items()
        for name, part in zip(theirs, state[ours].float().chunk(len(theirs)), strict=True)
    }
    if not shape.type_vocabulary_size:
        tensors[TYPES] = torch.zeros(1, shape.hidden_size)
    return tensors
