"""Directories of transformers, sentence-transformers, ONNX Runtime and OpenVINO, written from a sentence encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.graphs import FILES, INPUTS, Runtime, check_runtime, write_graph
from xrep.inference.model_card import FROZEN_TYPES, Card, write_card
from xrep.interop.exported import write_huggingface, write_router, write_sentence_transformers
from xrep.interop.sentence_modules import Prompts
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces
from xrep.nn.encoder import lacks_types
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import Tokenizers, tokenizer_of

Format = Literal["sentence-transformers", "hf", Runtime]
_POOLED = {"mean": "the mean of its token vectors", "max": "their maximum", "cls": "the vector of the first token"}


def write_encoder(
    model: DualEncoder,
    tokenizers: Tokenizers,
    text: TextSpec,
    directory: Path,
    format: Format,
    *,
    place: str,
    prompts: Prompts,
    card: Card,
    fingerprint: Callable[[], str],
) -> dict[Path, str]:
    """Write an encoder as ``SentenceEncoder.save`` describes; ``place`` is what its card names to load it."""
    graphs: Runtime | None = format if format == "onnx" or format == "openvino" else None
    if graphs is not None:
        check_runtime(graphs)
    languages = {tower: text.languages_of(tower) for tower in model.encoders}
    folders = {tower: tower if len(languages) > 1 else "." for tower in languages}
    with naming(directory), directory_aside(directory) as aside:
        opens = format != "hf"  # whether sentence-transformers does
        for tower, folder in folders.items():
            about = read_by(text, tokenizers, tower)
            if graphs is None:
                _write_tower(model, tower, aside / folder, format, prompts, about)
            else:
                opens = _write_graph_tower(model, tower, aside / folder, graphs, prompts, about) and opens
        if opens and len(languages) > 1:
            routes = {code: folders[tower] for tower, codes in languages.items() for code in codes}
            write_router(aside, routes, prompts)
        if format == "sentence-transformers":
            loaded = {directory: _encoding_line(place, languages)}
        else:
            classes = {tower: encoder.library_class for tower, encoder in model.encoders.items()}
            loaded = {
                directory / folder: opening_line(graphs or classes[tower], str(Path(place, folder)), languages[tower])
                for tower, folder in folders.items()
            }
        sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in languages))
        details = _description(model, languages, format)
        if graphs is None and any(lacks_types(encoder) for encoder in model.encoders.values()):
            details += FROZEN_TYPES
        if graphs is not None:
            details += _graph_lines(graphs, text.max_length, prompts, place if opens else None)
        write_card(
            aside,
            Path(place).name,
            f"A cross-lingual sentence encoder, trained with xrep. Sentences become vectors of {sizes} numbers.",
            list(loaded.values()),
            card,
            details=details,
            library="transformers" if format == "hf" else format,
            pipeline="feature-extraction" if format == "hf" else "sentence-similarity",
            languages=text.languages,
            fingerprint=fingerprint,
        )
    return loaded


def opening_line(name: str, place: str, languages: list[str]) -> str:
    """Return the line of Python that opens a transformer of a class, or a graph of a runtime, with this ``name``."""
    reads = f"  # reads {', '.join(languages)}" if languages else ""
    if name not in FILES:
        return f"import transformers; transformers.{name}.from_pretrained({json.dumps(place)}){reads}"
    file = json.dumps(str(Path(place, FILES[name])))
    if name == "onnx":
        return f"import onnxruntime; onnxruntime.InferenceSession({file}){reads}"
    return f'import openvino; openvino.compile_model({file}, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}}){reads}'


def _encoding_line(place: str, languages: dict[str, list[str]]) -> str:
    """Return the line of Python that opens a directory of sentence-transformers and encodes."""
    task, others = "", ""
    if len(languages) > 1:
        first, *rest = [code for codes in languages.values() for code in codes]
        task, others = f', task="{first}"', f"  # or {', '.join(rest)}"
    opened = f"from sentence_transformers import SentenceTransformer; SentenceTransformer({json.dumps(place)})"
    return f'{opened}.encode(["..."]{task}){others}'


def read_by(text: TextSpec, tokenizers: Tokenizers, side: str) -> dict[str, Any]:
    """Return what the writers of ``xrep.interop.exported`` need to know about the text of a side."""
    vocabulary, tokenizer, length = text.vocabulary(side), tokenizer_of(tokenizers, side), text.max_length
    return {
        "max_length": length,
        "bos_id": vocabulary.bos_id,
        "eos_id": vocabulary.eos_id,
        "save_tokenizer": lambda folder: save_as_huggingface(tokenizer, folder, length),
    }


def _write_tower(
    model: DualEncoder, tower: str, path: Path, format: Format, prompts: Prompts, text: dict[str, Any]
) -> None:
    settings = {"layers": model.config.pooled_layer, **text}
    if format == "hf":
        write_huggingface(path, model.encoders[tower], **settings)
        return
    projection = model.projections[tower] if tower in model.projections else None
    if isinstance(projection, MeanOfSpaces):
        problem = "its vectors are means of projection spaces, which sentence-transformers does not have"
        raise UserError(problem, cure="set `no_projection` to leave them out, or set `format` to xrep")
    write_sentence_transformers(
        path,
        model.encoders[tower],
        pooling=model.pooling[tower],
        projection=projection,
        activation="none" if projection is None else projection.shape.activation,
        normalize=model.config.normalize,
        prompts=prompts,
        **settings,
    )


def _write_graph_tower(
    model: DualEncoder, tower: str, path: Path, runtime: Runtime, prompts: Prompts, text: dict[str, Any]
) -> bool:
    """Write the graph of a tower, with what sentence-transformers needs to open it; return whether it can."""
    try:
        _write_tower(model, tower, path, "sentence-transformers", prompts, {**text, "weights": False})
        opens = True
    except UserError:  # it has no counterpart there (pre-norm, projection spaces), which does not matter to a graph
        text["save_tokenizer"](path)
        opens = False
    write_graph(model, tower, path, runtime)
    return opens


def _graph_lines(runtime: Runtime, max_length: int, prompts: Prompts, place: str | None) -> list[str]:
    """Return what the card says of graphs; ``place`` is the directory if sentence-transformers opens it."""
    outputs = "`sentence_embedding`, a vector for each sentence, and `last_hidden_state`, one for each token"
    lines = [
        "",
        f"The inputs of the graph are {' and '.join(f'`{name}`' for name in INPUTS)}, int64 [sentences, tokens], of"
        f" sentences of at most {max_length} tokens, padded at the end. The outputs are {outputs}. The tokenizer is"
        " beside the graph: `transformers.AutoTokenizer` opens the directory, and `tokenizers` its `tokenizer.json`.",
    ]
    if prompts.text:
        lines += ["", f"The text {json.dumps(prompts.text, ensure_ascii=False)} belongs in front of each sentence."]
    if runtime == "openvino":
        lines += ["", "Without the precision hint, OpenVINO computes in bfloat16 on processors that multiply it."]
    if place is not None:
        opened = f'SentenceTransformer({json.dumps(place)}, backend="{runtime}")'
        lines += ["", f"With `pip install 'sentence-transformers[{runtime}]'`, `{opened}` opens the directory, too."]
    return lines


def _description(model: DualEncoder, languages: dict[str, list[str]], format: Format) -> list[str]:
    # If a projection was left out, vectors of the two towers cannot be compared.
    comparable = len(model.projections) == len(model.architecture()["projections"])
    lines = [""]
    if len(languages) == 1:
        known = ", ".join(*languages.values())
        lines.append(f"One encoder reads every language.{f' It was trained on: {known}.' if known else ''}")
    else:
        space = "; vectors of both lie in one space" if comparable else ""
        lines.append(f"It has a tower for each side of its language pairs{space}:")
        lines += [f"- `{tower}/` reads {', '.join(codes)}" for tower, codes in languages.items()]
    if format == "hf":
        steps = [" or ".join(_POOLED[pooling] for pooling in dict.fromkeys(model.pooling.values())), "padding left out"]
        if len(model.projections):
            steps.append("then a projection, which this format cannot hold (sentence-transformers can)")
        if model.config.normalize:
            steps.append("brought to length 1")
        lines += ["", f"The sentence vector is {', '.join(steps)}."]
    elif format == "sentence-transformers":
        lines += ["", "`xrep.SentenceEncoder.load` reads it, too."]
    return lines
