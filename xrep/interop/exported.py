"""Export of an encoder to a directory that Hugging Face's transformers or sentence-transformers load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from xrep.errors import UserError
from xrep.files import write_json
from xrep.interop.sentence_modules import (
    DENSE_ACTIVATIONS,
    MODULES,
    OPTIONS,
    POOLING_FLAGS,
    PROMPTS,
    ROUTER,
    DenseActivation,
    Prompts,
)
from xrep.nn.bert import FAMILIES, HF_CONFIG
from xrep.nn.encoder import Encoder
from xrep.nn.pooling import Pooling
from xrep.nn.static import STATIC_TABLE, StaticEncoder
from xrep.nn.weights import SAFETENSORS, read_json, save_tensors
from xrep.text.huggingface import JSON_FILE, save_as_huggingface
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer


def write_huggingface(
    directory: Path,
    encoder: Encoder,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    layers: int | None = None,
    weights: bool = True,
) -> None:
    """Write into a folder what ``transformers.AutoModel.from_pretrained`` loads, in float32.

    ``read_pretrained`` and ``Start.state`` read every tensor back bit for bit. Nothing is written if the encoder
    has no counterpart.

    Args:
        max_length: Longest sentence in tokens.
        layers: Number of layers to write, counted from the first: if vectors are taken from layer k, the exported
            encoder has k layers, and 0 writes only the embeddings. None: all layers.
        weights: Whether to write the weights; a graph beside the configuration may have them already.

    Raises:
        UserError: Hugging Face has no counterpart of the encoder (pre-norm, other positions), or sentences may be
            longer than its positions.
    """
    shape = encoder.shape
    if max_length > shape.max_positions:
        problem = f"sentences of {max_length} tokens, but the encoder has {shape.max_positions} positions"
        raise UserError(problem, cure=f"lower the longest sentence to {shape.max_positions}")
    config, tensors = encoder.to_huggingface(shape.layers if layers is None else layers)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / HF_CONFIG, {**config, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id})
    if weights:
        save_tensors(tensors, directory / SAFETENSORS)
    save_as_huggingface(tokenizer, directory, max_length)


def write_sentence_transformers(
    directory: Path,
    encoder: Encoder,
    tokenizer: Tokenizer,
    *,
    pooling: Pooling,
    projection: nn.Linear | None = None,
    activation: DenseActivation = "none",
    normalize: bool,
    prompts: Prompts | None = None,
    max_length: int,
    weights: bool = True,
    **shared: Any,
) -> None:
    """Write into a folder what ``sentence_transformers.SentenceTransformer`` loads: the files of ``write_huggingface``,
    and the modules that follow the transformer.

    Args:
        projection: Linear layer on pooled vectors, [H] to [D], followed by ``activation``.
        normalize: Whether a last module scales vectors to length 1.
        prompts: Texts in front of sentences.
        max_length, weights, shared: As for ``write_huggingface``, which also says what is raised.
    """
    modules, first = list[tuple[str, dict[str, Any], dict[str, Any]]](), "Transformer"
    if isinstance(encoder, StaticEncoder):
        if not weights:
            raise UserError("sentence-transformers reads a static encoder from its weights")
        first = _write_static(directory, encoder, tokenizer, max_length)
    else:
        write_huggingface(directory, encoder, tokenizer, max_length=max_length, weights=weights, **shared)
        options: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
        # Without the option, transformers draws a pooler and warns that it is new. The backend onnx refuses it.
        if weights and read_json(directory / HF_CONFIG)["model_type"] in FAMILIES:
            options["model_args"] = {"add_pooling_layer": False}
        write_json(directory / OPTIONS, options)
        # All versions read these flags; the newest write a single key pooling_mode, which older ones do not read.
        flags = {flag: mode == pooling for flag, mode in POOLING_FLAGS.items()}
        modules.append(("Pooling", {"word_embedding_dimension": encoder.shape.hidden_size, **flags}, {}))
    if projection is not None:
        function = {value: key for key, value in DENSE_ACTIVATIONS.items()}[activation]
        dense = {
            "in_features": projection.in_features,
            "out_features": projection.out_features,
            "bias": projection.bias is not None,
            "activation_function": f"torch.nn.modules.{'activation' if activation == 'tanh' else 'linear'}.{function}",
        }
        tensors = {f"linear.{name}": tensor.float() for name, tensor in projection.state_dict().items()}
        modules.append(("Dense", dense, tensors))
    if normalize:
        modules.append(("Normalize", {}, {}))
    chain = [_module(0, "", first)]
    for number, (kind, config, tensors) in enumerate(modules, start=1):
        folder = directory / f"{number}_{kind}"
        chain.append(_module(number, folder.name, kind))
        folder.mkdir()
        write_json(folder / HF_CONFIG, config)
        if tensors:
            save_tensors(tensors, folder / SAFETENSORS)
    _write_root(directory, chain, prompts or Prompts())


def _write_static(directory: Path, encoder: StaticEncoder, tokenizer: Tokenizer, max_length: int) -> str:
    """Write the table and the tokenizer of a static encoder, and return the kind of module that reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    save_tensors({STATIC_TABLE: encoder.token_embedding.weight.float()}, directory / SAFETENSORS)
    save_as_huggingface(tokenizer, directory, max_length)
    # The module reads nothing else, and so cuts sentences only if the file of the tokenizer says it.
    longest = max_length - encoder.shape.leading - encoder.shape.trailing
    cut = {"direction": "Right", "max_length": longest, "strategy": "LongestFirst", "stride": 0}
    content = {**read_json(directory / JSON_FILE), "truncation": cut}
    if isinstance(tokenizer, SentencePieceTokenizer):  # whose text has no special tokens, even if it has their names
        content["added_tokens"] = []
    (directory / JSON_FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return "StaticEmbedding"


def write_router(directory: Path, towers: Mapping[str, str], prompts: Prompts) -> None:
    """Make one directory of sentence-transformers (5 or newer) of several that are its folders.

    It opens as one model, whose ``encode(sentences, task="de")`` uses the tower of the language and which refuses
    sentences without one. The folders remain directories that can be opened alone.

    Args:
        towers: The folder of each language.
    """
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for language, tower in towers.items():
        modules = read_json(directory / tower / MODULES, list)
        chain = {str(Path(tower, entry["path"])): entry["type"] for entry in modules}
        types |= chain
        structure[language] = list(chain)
    parameters = {"default_route": None, "allow_empty_key": False}
    write_json(directory / ROUTER, {"types": types, "structure": structure, "parameters": parameters})
    _write_root(directory, [_module(0, "", "Router")], prompts)


def _module(number: int, folder: str, kind: str) -> dict[str, Any]:
    # All versions read these names of classes, although the newest versions write other ones.
    return {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}


def _write_root(directory: Path, modules: list[dict[str, Any]], prompts: Prompts) -> None:
    options = {"prompts": prompts.texts, "default_prompt_name": prompts.default, "similarity_fn_name": "cosine"}
    write_json(directory / PROMPTS, options)
    write_json(directory / MODULES, modules)
