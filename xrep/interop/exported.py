"""Export of an encoder to a directory that Hugging Face's transformers or sentence-transformers load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from xrep.errors import UserError
from xrep.files import directory_aside, naming, write_json
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
from xrep.nn.bert import CONFIG, FAMILIES
from xrep.nn.encoder import Encoder
from xrep.nn.pooling import Pooling
from xrep.nn.weights import SAFETENSORS, read_json, save_tensors


def write_huggingface(
    directory: str | Path,
    encoder: Encoder,
    *,
    max_length: int,
    bos_id: int | None,
    eos_id: int,
    layers: int | None = None,
    weights: bool = True,
    save_tokenizer: Callable[[Path], None] | None = None,
    modules: Sequence[tuple[str, dict[str, Any], dict[str, Tensor]]] | None = None,
    prompts: Prompts | None = None,
) -> None:
    """Write a directory that ``transformers.AutoModel.from_pretrained`` loads, in float32.

    The directory appears only when it is complete. ``read_pretrained`` and ``Pretrained.state`` read every tensor back
    bit for bit.

    Args:
        directory: Path of a new directory, or of an empty one.
        max_length: Longest sentence in tokens.
        bos_id: Token in front of a sentence; None if there is none.
        layers: Number of layers to write, counted from the first: if vectors are taken from layer k, the exported
            encoder has k layers, and 0 writes only the embeddings. None: all layers.
        weights: Whether to write the weights; a graph beside the configuration may have them already.
        save_tokenizer: Called with the temporary folder, to write the tokenizer's files before the folder is renamed.
        modules: Class, configuration and tensors of each module of sentence-transformers after the transformer; None
            writes the transformer alone.
        prompts: Texts in front of sentences, which only sentence-transformers adds.

    Raises:
        UserError: The directory is not empty, Hugging Face has no counterpart of the encoder (pre-norm, other
            positions), or sentences may be longer than its positions.
        ValueError: The encoder has fewer layers than ``layers``.
    """
    shape = encoder.shape
    if layers is not None and not 0 <= layers <= shape.layers:
        raise ValueError(f"layers must lie in [0, {shape.layers}], not {layers}")
    if max_length > shape.max_positions:
        problem = f"sentences of {max_length} tokens, but the encoder has {shape.max_positions} positions"
        raise UserError(problem, cure=f"lower the longest sentence to {shape.max_positions}")
    config, tensors = encoder.to_huggingface(shape.layers if layers is None else layers)
    directory = Path(os.path.expanduser(directory)).resolve()
    with naming(directory), directory_aside(directory) as aside:
        write_json(aside / CONFIG, {**config, "bos_token_id": bos_id, "eos_token_id": eos_id})
        if weights:
            save_tensors(tensors, aside / SAFETENSORS)
        if modules is not None:
            _write_modules(aside, modules, prompts or Prompts())
            options: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": False}
            # Without the option, transformers draws a pooler and warns that it is new. The backend onnx refuses it.
            if weights and config["model_type"] in FAMILIES:
                options["model_args"] = {"add_pooling_layer": False}
            write_json(aside / OPTIONS, options)
        if save_tokenizer is not None:
            save_tokenizer(aside)


def write_sentence_transformers(
    directory: str | Path,
    encoder: Encoder,
    *,
    pooling: Pooling,
    projection: nn.Linear | None = None,
    activation: DenseActivation = "none",
    normalize: bool,
    **shared: Any,
) -> None:
    """Write a directory that ``sentence_transformers.SentenceTransformer`` loads.

    It has the files of ``write_huggingface`` at its root, and the modules that follow the transformer.

    Args:
        projection: Linear layer on pooled vectors, [H] to [D], followed by ``activation``.
        normalize: Whether a last module scales vectors to length 1.
        shared: As for ``write_huggingface``, which also says what is raised.
    """
    # All versions read these flags; the newest versions write a single key pooling_mode, which older ones do not read.
    flags = {flag: mode == pooling for flag, mode in POOLING_FLAGS.items()}
    modules = [("Pooling", {"word_embedding_dimension": encoder.shape.hidden_size, **flags}, {})]
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
    write_huggingface(directory, encoder, modules=modules, **shared)


def _write_modules(
    directory: Path,
    modules: Sequence[tuple[str, dict[str, Any], dict[str, Tensor]]],
    prompts: Prompts,
) -> None:
    chain = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, (kind, config, tensors) in enumerate(modules, start=1):
        folder = f"{number}_{kind}"
        # All versions read these names, although the newest versions write other ones.
        of_kind = f"sentence_transformers.models.{kind}"
        chain.append({"idx": number, "name": str(number), "path": folder, "type": of_kind})
        (directory / folder).mkdir()
        write_json(directory / folder / CONFIG, config)
        if tensors:
            save_tensors(tensors, directory / folder / SAFETENSORS)
    _write_root(directory, chain, prompts)


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
        chain = {
            str(Path(tower, entry["path"])): entry["type"] for entry in read_json(directory / tower / MODULES, list)
        }
        types |= chain
        structure[language] = list(chain)
    parameters = {"default_route": None, "allow_empty_key": False}
    write_json(directory / ROUTER, {"types": types, "structure": structure, "parameters": parameters})
    _write_root(
        directory, [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}], prompts
    )


def _write_root(directory: Path, modules: list[dict[str, Any]], prompts: Prompts) -> None:
    options = {"prompts": prompts.texts, "default_prompt_name": prompts.default, "similarity_fn_name": "cosine"}
    write_json(directory / PROMPTS, options)
    write_json(directory / MODULES, modules)
