"""Export of an encoder to a directory that Hugging Face's transformers or sentence-transformers load."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.interop.pretrained import CONFIG, TYPES, tensor_names
from xrep.interop.sentence_modules import DENSE_ACTIVATIONS, MODULES, OPTIONS, POOLING_FLAGS, PROMPTS
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.nn.pooling import Pooling
from xrep.nn.weights import SAFETENSORS, save_tensors

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}


def write_huggingface(
    directory: str | Path,
    encoder: TransformerEncoder,
    *,
    max_length: int,
    bos_id: int,
    eos_id: int,
    layers: int | None = None,
    save_tokenizer: Callable[[Path], None] | None = None,
) -> None:
    """Write a directory that ``transformers.AutoModel.from_pretrained`` loads, in float32.

    The directory appears only when it is complete. An encoder whose positions begin at 0 becomes a BertModel; one whose
    positions begin at pad id + 1 becomes an XLMRobertaModel, which has the same layout as RobertaModel.
    ``read_pretrained`` and ``encoder_state`` read every tensor back bit for bit.

    Args:
        directory: path of a new directory, or of an empty one.
        max_length: longest sentence in tokens.
        layers: number of layers to write, counted from the first: if vectors are taken from layer k, the exported
            encoder has k layers, and 0 writes only the embeddings. None: all layers.
        save_tokenizer: called with the temporary folder, to write the tokenizer's files before the folder is renamed.

    Raises:
        UserError: the directory is not empty, Hugging Face has no counterpart of the encoder (pre-norm, other
            positions), or sentences may be longer than its positions.
        ValueError: the encoder has fewer layers than ``layers``.
    """
    directory = Path(directory).expanduser().resolve()
    with naming(directory), directory_aside(directory) as aside:
        _write_encoder(aside, encoder, max_length, bos_id, eos_id, layers)
        if save_tokenizer is not None:
            save_tokenizer(aside)


def write_sentence_transformers(
    directory: str | Path,
    encoder: TransformerEncoder,
    *,
    pooling: Pooling,
    projection: nn.Linear | None = None,
    activation: Literal["none", "tanh"] = "none",
    normalize: bool,
    max_length: int,
    bos_id: int,
    eos_id: int,
    layers: int | None = None,
    save_tokenizer: Callable[[Path], None] | None = None,
) -> None:
    """Write a directory that ``sentence_transformers.SentenceTransformer`` loads.

    It has the files of ``write_huggingface`` at its root, and the modules that follow the transformer.

    Args:
        projection: linear layer on pooled vectors, [H] to [D], followed by ``activation``.
        normalize: whether a last module scales vectors to length 1.
        others: as for ``write_huggingface``.

    Raises:
        UserError, ValueError: as for ``write_huggingface``.
    """
    hidden_size = encoder.shape.hidden_size
    # All versions read these flags; the newest versions write a single key pooling_mode, which older ones do not read.
    flags = {flag: mode == pooling for flag, mode in POOLING_FLAGS.items()}
    chain: list[tuple[str, dict[str, Any]]] = [("Pooling", {"word_embedding_dimension": hidden_size, **flags})]
    if projection is not None:
        function = {value: key for key, value in DENSE_ACTIVATIONS.items()}[activation]
        dense = {
            "in_features": projection.in_features,
            "out_features": projection.out_features,
            "bias": projection.bias is not None,
            "activation_function": f"torch.nn.modules.{'activation' if activation == 'tanh' else 'linear'}.{function}",
        }
        chain.append(("Dense", dense))
    if normalize:
        chain.append(("Normalize", {}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    directory = Path(directory).expanduser().resolve()
    with naming(directory), directory_aside(directory) as aside:
        _write_encoder(aside, encoder, max_length, bos_id, eos_id, layers)
        for number, (kind, config) in enumerate(chain, start=1):
            folder = f"{number}_{kind}"
            # All versions read these names, although the newest versions write other ones.
            of_kind = f"sentence_transformers.models.{kind}"
            modules.append({"idx": number, "name": str(number), "path": folder, "type": of_kind})
            (aside / folder).mkdir()
            _write_json(aside / folder / CONFIG, config)
            if kind == "Dense" and projection is not None:
                tensors = {f"linear.{name}": tensor.float() for name, tensor in projection.state_dict().items()}
                save_tensors(tensors, aside / folder / SAFETENSORS)
        _write_json(aside / OPTIONS, {"max_seq_length": max_length, "do_lower_case": False})
        _write_json(aside / PROMPTS, {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"})
        _write_json(aside / MODULES, modules)
        if save_tokenizer is not None:
            save_tokenizer(aside)


def _write_encoder(
    directory: Path, encoder: TransformerEncoder, max_length: int, bos_id: int, eos_id: int, layers: int | None
) -> None:
    shape = encoder.shape
    if layers is not None:
        if not 0 <= layers <= shape.layers:
            raise ValueError(f"layers must lie in [0, {shape.layers}], not {layers}")
        shape = replace(shape, layers=layers)
    _write_json(directory / CONFIG, _config(shape, encoder, max_length, bos_id, eos_id))
    state, tensors = encoder.state_dict(), {}
    for ours, theirs in tensor_names(shape).items():
        for name, part in zip(theirs, state[ours].float().chunk(len(theirs)), strict=True):
            tensors[name] = part.clone()
    if not shape.type_vocabulary_size:
        tensors[TYPES] = torch.zeros(1, shape.hidden_size)
    save_tensors(tensors, directory / SAFETENSORS)


def _config(
    shape: EncoderShape, encoder: TransformerEncoder, max_length: int, bos_id: int, eos_id: int
) -> dict[str, Any]:
    bert = shape.position_offset == 0
    if shape.norm != "post":
        problem = "an encoder that normalises before its sublayers has no counterpart among Hugging Face's models"
        raise UserError(problem, cure="train one with --norm post")
    if not bert and shape.position_offset != shape.pad_id + 1:
        problem = (
            f"positions begin at {shape.position_offset}, Hugging Face's at 0 or at pad id + 1, {shape.pad_id + 1}"
        )
        raise UserError(problem, cure="train an encoder with one of these")
    if max_length > shape.max_positions:
        problem = f"sentences of {max_length} tokens, but the encoder has {shape.max_positions} positions"
        raise UserError(problem, cure=f"lower the longest sentence to {shape.max_positions}")
    attention_dropout = encoder.layers[0].attention.dropout if len(encoder.layers) else 0.0
    return {
        "architectures": ["BertModel" if bert else "XLMRobertaModel"],
        "model_type": "bert" if bert else "xlm-roberta",
        "vocab_size": shape.vocabulary_size,
        "pad_token_id": shape.pad_id,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feedforward_size,
        "max_position_embeddings": shape.max_positions + shape.position_offset,
        "position_embedding_type": "absolute",
        "type_vocab_size": shape.type_vocabulary_size or 1,
        "layer_norm_eps": shape.norm_epsilon,
        "hidden_act": ACTIVATIONS[shape.activation],
        "hidden_dropout_prob": encoder.dropout.p,
        "attention_probs_dropout_prob": attention_dropout,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "xrep": {"type_vocabulary_size": shape.type_vocabulary_size, "max_length": max_length},
    }


def _write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
