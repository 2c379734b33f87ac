"""Directories of transformers, sentence-transformers, ONNX Runtime and OpenVINO, written from a sentence encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.graphs import GRAPH_FILES, Runtime, write_graph
from xrep.inference.model_card import check_card, write_card
from xrep.interop.exported import write_huggingface, write_router, write_sentence_transformers
from xrep.interop.sentence_modules import Prompts
from xrep.models.projection import MeanOfSpaces
from xrep.text.huggingface import save_as_huggingface
from xrep.text.sides import tokenizer_of

Format = Literal["sentence-transformers", "hf", Runtime]


def write_encoder(encoder: Any, directory: Path, format: Format, address: str, **card: Any) -> dict[Path, str]:
    """Write a ``SentenceEncoder`` as its ``save`` describes; ``address`` is what its ``card`` names to load it."""
    model, text = encoder.model, encoder.text
    prompts = Prompts(texts=encoder.prompts, default=encoder.default_prompt_name)
    languages = {tower: text.languages_of(tower) for tower in model.encoders}
    folders = {tower: tower if len(languages) > 1 else "." for tower in languages}
    routes = {code: folders[tower] for tower in languages for code in languages[tower] if len(languages) > 1}
    is_graph, lines, opens = format in GRAPH_FILES, dict[Path, str](), format != "hf"
    check_card(encoder.fingerprint, card.get("license"), card.get("results", ()))
    with naming(directory), directory_aside(directory) as aside:
        for tower, folder in folders.items():
            opens &= _write_tower(encoder, tower, aside / folder, format, prompts)
            name = format if is_graph else model.encoders[tower].library_class
            lines[directory / folder] = opening_line(name, str(Path(address, folder)), languages[tower])
        if format == "sentence-transformers":
            lines = {directory: _encoding_line(address, list(routes))}
        if opens and len(languages) > 1:
            write_router(aside, routes, prompts)
        sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in languages))
        write_card(
            aside,
            ("transformers", "feature-extraction") if format == "hf" else (format, "sentence-similarity"),
            encoder.languages,
            [] if is_graph else model.encoders.values(),
            **card,
            name=Path(address).name,
            path=encoder.path,
            fingerprint=encoder.fingerprint,
            about=f"A cross-lingual sentence encoder, trained with xrep. Sentences become vectors of {sizes} numbers.",
            lines=lines.values(),
            towers=languages,
            format=format,
            model=model,
            max_length=text.max_length,
            prompt=json.dumps(prompts.text, ensure_ascii=False) if prompts.text else "",
            address=json.dumps(address) if opens else "",
        )
        if format == "onnx" or format == "openvino":  # last, because it takes longest
            for tower, folder in folders.items():
                write_graph(model, tower, aside / folder, format)
    return lines


def opening_line(name: str, address: str, languages: list[str]) -> str:
    """Return the line of Python that opens a transformer of a class, or a graph of a runtime, with this ``name``."""
    file = json.dumps(str(Path(address, GRAPH_FILES.get(name, ""))))
    line = {
        "onnx": f"import onnxruntime; onnxruntime.InferenceSession({file})",
        "openvino": f'import openvino; openvino.compile_model({file}, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})',
    }.get(name, f"import transformers; transformers.{name}.from_pretrained({file})")
    return f"{line}  # reads {', '.join(languages)}" if languages else line


def _encoding_line(address: str, tasks: list[str]) -> str:
    """Return the line of Python that opens a directory of sentence-transformers and encodes."""
    task, others = (f', task="{tasks[0]}"', f"  # or {', '.join(tasks[1:])}") if tasks else ("", "")
    opened = f"from sentence_transformers import SentenceTransformer; SentenceTransformer({json.dumps(address)})"
    return f'{opened}.encode(["..."]{task}){others}'


def _write_tower(encoder: Any, tower: str, path: Path, format: Format, prompts: Prompts) -> bool:
    """Write a tower, and return whether sentence-transformers can open it."""
    model, tokenizer = encoder.model, tokenizer_of(encoder.tokenizers, tower)
    tower_encoder, max_length = model.encoders[tower], encoder.text.max_length
    settings: dict[str, Any] = {"max_length": max_length, "layers": model.config.pooled_layer}
    if format == "hf":
        write_huggingface(path, tower_encoder, tokenizer, **settings)
        return False
    projection = model.projections[tower] if tower in model.projections else None
    settings |= {"pooling": model.pooling[tower], "normalize": model.config.normalize, "projection": projection}
    try:
        if isinstance(projection, MeanOfSpaces):
            problem = "its vectors are means of projection spaces, which sentence-transformers does not have"
            raise UserError(problem, cure="set `no_projection` to leave them out, or set `format` to xrep")
        settings["activation"] = "none" if projection is None else projection.shape.activation
        settings |= {"prompts": prompts, "weights": format not in GRAPH_FILES}
        write_sentence_transformers(path, tower_encoder, tokenizer, **settings)
    except UserError:  # pre-norm and projection spaces do not matter to a graph
        if format == "sentence-transformers":
            raise
        save_as_huggingface(tokenizer, path, max_length)
        return False
    return True
