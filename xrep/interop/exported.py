"""Export of an encoder to a directory that Hugging Face's transformers or sentence-transformers load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from torch import nn

from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.interop.sentence_modules import DENSE_ACTIVATIONS, MODULES, OPTIONS, POOLING_FLAGS, PROMPTS
from xrep.nn.bert import CONFIG
from xrep.nn.encoder import Encoder
from xrep.nn.pooling import Pooling
from xrep.nn.weights import SAFETENSORS, save_tensors


def write_huggingface(
    directory: str | Path,
    encoder: Encoder,
    *,
    max_length: int,
    bos_id: int | None,
    eos_id: int,
    layers: int | None = None,
    save_tokenizer: Callable[[Path], None] | None = None,
) -> None:
    """Write a directory that ``transformers.AutoModel.from_pretrained`` loads, in float32.

    The directory appears only when it is complete. ``read_pretrained`` and ``encoder_state`` read every tensor back bit
    for bit.

    Args:
        directory: Path of a new directory, or of an empty one.
        max_length: Longest sentence in tokens.
        bos_id: Token in front of a sentence; None if there is none.
        layers: Number of layers to write, counted from the first: if vectors are taken from layer k, the exported
            encoder has k layers, and 0 writes only the embeddings. None: all layers.
        save_tokenizer: Called with the temporary folder, to write the tokenizer's files before the folder is renamed.

    Raises:
        UserError: The directory is not empty, Hugging Face has no counterpart of the encoder (pre-norm, other
            positions), or sentences may be longer than its positions.
        ValueError: The encoder has fewer layers than ``layers``.
    """
    directory = Path(os.path.expanduser(directory)).resolve()
    with naming(directory), directory_aside(directory) as aside:
        _write_encoder(aside, encoder, max_length, bos_id, eos_id, layers)
        if save_tokenizer is not None:
            save_tokenizer(aside)


def write_sentence_transformers(
    directory: str | Path,
    encoder: Encoder,
    *,
    pooling: Pooling,
    projection: nn.Linear | None = None,
    activation: Literal["none", "tanh"] = "none",
    normalize: bool,
    max_length: int,
    bos_id: int | None,
    eos_id: int,
    layers: int | None = None,
    save_tokenizer: Callable[[Path], None] | None = None,
) -> None:
    """Write a directory that ``sentence_transformers.SentenceTransformer`` loads.

    It has the files of ``write_huggingface`` at its root, and the modules that follow the transformer.

    Args:
        projection: Linear layer on pooled vectors, [H] to [D], followed by ``activation``.
        normalize: Whether a last module scales vectors to length 1.
        others: As for ``write_huggingface``.

    Raises:
        UserError, ValueError: As for ``write_huggingface``.
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
    directory = Path(os.path.expanduser(directory)).resolve()
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
    directory: Path, encoder: Encoder, max_length: int, bos_id: int | None, eos_id: int, layers: int | None
) -> None:
    shape = encoder.shape
    if layers is not None and not 0 <= layers <= shape.layers:
        raise ValueError(f"layers must lie in [0, {shape.layers}], not {layers}")
    if max_length > shape.max_positions:
        problem = f"sentences of {max_length} tokens, but the encoder has {shape.max_positions} positions"
        raise UserError(problem, cure=f"lower the longest sentence to {shape.max_positions}")
    config, tensors = encoder.to_huggingface(shape.layers if layers is None else layers)
    _write_json(directory / CONFIG, {**config, "bos_token_id": bos_id, "eos_token_id": eos_id})
    save_tensors(tensors, directory / SAFETENSORS)


def _write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
