"""BERT's format of Hugging Face directories: how ``config.json`` and the tensors there map to a ``TransformerEncoder``.

BERT and RoBERTa (with XLM-R and CamemBERT) are the same post-norm transformer; RoBERTa's positions begin at pad id + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.nn.shape import Activation, EncoderShape
from xrep.nn.weights import AGAIN, Weights, read_json, some

CONFIG = "config.json"
FAMILIES = ("bert", "roberta", "camembert", "xlm-roberta")
# A configuration without model_type names a class instead.
ARCHITECTURES = {"Bert": "bert", "Roberta": "roberta", "Camembert": "camembert", "XLMRoberta": "xlm-roberta"}
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
PREFIXES = ("", "bert.", "roberta.", "model.")
WORDS, TYPES = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
BESIDE_ENCODER = re.compile(
    r"embeddings\.(position_ids|token_type_ids)|pooler\..*|cls\.(predictions|seq_relationship)\..*|lm_head\..*|"
    r"(classifier|qa_outputs)\..*"  # heads of classifiers
)
TOGETHER = f"check that {CONFIG} and the weights belong together"


def obstacle(config: Mapping[str, Any]) -> str | None:
    """Return what in a ``config.json`` keeps ``TransformerEncoder`` from computing the model; None if nothing does."""
    model_type = _model_type(config)
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
    is_bert = _model_type(config) == "bert"
    defaults = {"pad_token_id": 0 if is_bert else 1, "type_vocab_size": 2}

    def size(key: str, minimum: int) -> int:
        value = defaults.get(key) if config.get(key) is None else config[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            problem = f"{key} is {value!r}, not a whole number of at least {minimum}"
            raise UserError(problem, path=path, cure=AGAIN)
        return value

    pad_id, types, ours = size("pad_token_id", 0), size("type_vocab_size", 1), config.get("xrep")
    offset = 0 if is_bert else pad_id + 1
    if isinstance(ours, dict) and ours.get("type_vocabulary_size") == 0 and types == 1:
        types = 0  # xrep wrote the file, which has one row because transformers cannot do without
    heads, hidden_size, epsilon = size("num_attention_heads", 1), size("hidden_size", 1), config.get("layer_norm_eps")
    epsilon = 1e-12 if epsilon is None else epsilon
    if hidden_size % heads or not isinstance(epsilon, float) or not 0 < epsilon < 1:
        problem = f"hidden_size {hidden_size}, num_attention_heads {heads}, layer_norm_eps {epsilon!r}: no such encoder"
        raise UserError(problem, path=path, cure=AGAIN)
    return EncoderShape(
        vocabulary_size=size("vocab_size", pad_id + 1),
        pad_id=pad_id,
        hidden_size=hidden_size,
        layers=size("num_hidden_layers", 0),
        heads=heads,
        feedforward_size=size("intermediate_size", 1),
        max_positions=size("max_position_embeddings", offset + 1) - offset,
        position_offset=offset,
        type_vocabulary_size=types,
        norm_epsilon=epsilon,
        activation=ACTIVATIONS[str(config.get("hidden_act", "gelu"))],
    )


def _model_type(config: Mapping[str, Any]) -> str:
    if config.get("model_type"):
        return str(config["model_type"])
    classes = config.get("architectures")
    name = re.match(r"(\w+?)(Model|For[A-Z])", str(classes[0] if isinstance(classes, list) and classes else ""))
    return str(ARCHITECTURES.get(name[1]) if name else None)


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


def read_state(
    directory: Path, shape: EncoderShape, expected: Mapping[str, torch.Size]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state of a ``TransformerEncoder`` of this shape, in float32.

    Args:
        expected: Shape of each tensor of the state.

    Returns:
        The state, and the names of the tensors in the directory that it does not use: buffers, poolers, heads of
        language models, higher layers.

    Raises:
        UserError: Weights are missing, damaged or of another shape, or tensors have no known use.
    """
    weights = Weights(directory)
    named, prefix = named_tensors(weights)
    wanted = tensor_names(shape)
    used = {name for names in wanted.values() for name in names}
    above = {name for names in tensor_names(read_shape(directory / CONFIG)).values() for name in names}
    known = {name for name in named if name in used | above or BESIDE_ENCODER.fullmatch(name)}
    known |= named.keys() & ({TYPES} if not shape.type_vocabulary_size else set())
    strange = weights.keys() - {named[name] for name in known}
    refuse(weights.path, [prefix + name for name in used - named.keys()], strange)
    state = dict[str, Tensor]()
    for ours, theirs in wanted.items():
        rows, *rest = expected[ours]
        parts = [checked(weights, named[name], (rows // len(theirs), *rest)) for name in theirs]
        state[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
    if not shape.type_vocabulary_size and TYPES in named:
        types = checked(weights, named[TYPES], (1, shape.hidden_size))
        if types.any():  # another program trained it: every token has type 0, so the row is added to the positions
            state["position_embedding.weight"] = state["position_embedding.weight"] + types
            used.add(TYPES)
    return state, sorted(named[name] for name in named.keys() - used)


def named_tensors(weights: Weights) -> tuple[dict[str, str], str]:
    """Map current Hugging Face names, without the prefix of the encoder, to names in the file; also return the prefix.

    Tensors that neither have the prefix nor belong to a head are left out.
    """
    prefixes = [name.removesuffix(WORDS) for name in weights if name.endswith(WORDS)]
    if len(prefixes) != 1 or prefixes[0] not in PREFIXES:
        problem = f"no encoder in it: no tensor {WORDS}, alone or after {', '.join(PREFIXES[1:])}"
        if prefixes:
            problem = f"which tensors are the encoder's? {', '.join(prefix + WORDS for prefix in sorted(prefixes))}"
        raise UserError(problem, path=weights.path, cure="use the weights of a single BERT or RoBERTa")
    named: dict[str, str] = {}
    for name in weights:
        if not name.startswith(prefixes[0]) and not BESIDE_ENCODER.fullmatch(name):
            continue
        plain = name.removeprefix(prefixes[0])
        # Early conversions have TensorFlow's names for the two tensors of a normalisation.
        plain = re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], plain)
        if plain in named:
            raise UserError(f"one tensor under two names: {named[plain]} and {name}", path=weights.path, cure=TOGETHER)
        named[plain] = name
    return named, prefixes[0]


def refuse(path: Path, missing: Iterable[str], strange: Iterable[str]) -> None:
    """Raise a UserError that lists missing and unknown tensors, if there are any."""
    kinds = {"missing": list(missing), "of no known use": list(strange)}
    problems = [f"{len(names)} tensors {kind}: {some(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise UserError("; ".join(problems).replace("1 tensors", "1 tensor"), path=path, cure=TOGETHER)


def checked(weights: Weights, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor, which must be of this shape and floating-point."""
    tensor = weights[name]
    if tensor.shape != shape or tensor.dtype != torch.float32:
        kind = str(tensor.dtype).removeprefix("torch.")
        problem = f"{name} is {kind} {list(tensor.shape)}, not floating-point {list(shape)}"
        raise UserError(problem, path=weights.path, cure=TOGETHER)
    return tensor


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
