"""Directories of transformers, sentence-transformers, ONNX Runtime and OpenVINO, written from a sentence encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.graphs import FILES, INPUTS, Runtime, write_graph
from xrep.inference.model_card import Card, frozen_types, python_lines
from xrep.interop.exported import write_huggingface, write_router, write_sentence_transformers
from xrep.interop.sentence_modules import Prompts
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces
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
    languages = {tower: text.languages_of(tower) for tower in model.encoders}
    folders = {tower: tower if len(languages) > 1 else "." for tower in languages}
    routes = {code: folders[tower] for tower in languages for code in languages[tower] if len(languages) > 1}
    with naming(directory), directory_aside(directory) as aside:
        opens = format != "hf"  # whether sentence-transformers does
        for tower, folder in folders.items():
            opens &= _write_tower(model, tower, aside / folder, format, prompts, read_by(text, tokenizers, tower))
        if opens and len(languages) > 1:
            write_router(aside, routes, prompts)
        loaded = {directory: _encoding_line(place, list(routes))}
        if format != "sentence-transformers":
            names = {tower: format if format in FILES else model.encoders[tower].library_class for tower in languages}
            loaded = {
                directory / folder: opening_line(names[tower], str(Path(place, folder)), languages[tower])
                for tower, folder in folders.items()
            }
        sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in languages))
        about = f"A cross-lingual sentence encoder, trained with xrep. Sentences become vectors of {sizes} numbers."
        details = _details(model, text, format, prompts, place if opens else None)
        kind = ("transformers", "feature-extraction") if format == "hf" else (format, "sentence-similarity")
        paragraphs = [about, python_lines(*loaded.values()), *details]
        card.write(aside, Path(place).name, paragraphs, kind, text.languages, fingerprint)
    return loaded


def opening_line(name: str, place: str, languages: list[str]) -> str:
    """Return the line of Python that opens a transformer of a class, or a graph of a runtime, with this ``name``."""
    file = json.dumps(str(Path(place, FILES.get(name, ""))))
    line = {
        "onnx": f"import onnxruntime; onnxruntime.InferenceSession({file})",
        "openvino": f'import openvino; openvino.compile_model({file}, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})',
    }.get(name, f"import transformers; transformers.{name}.from_pretrained({json.dumps(place)})")
    return f"{line}  # reads {', '.join(languages)}" if languages else line


def _encoding_line(place: str, tasks: list[str]) -> str:
    """Return the line of Python that opens a directory of sentence-transformers and encodes."""
    task, others = (f', task="{tasks[0]}"', f"  # or {', '.join(tasks[1:])}") if tasks else ("", "")
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
) -> bool:
    """Write a tower, and return whether sentence-transformers can open it."""
    encoder, settings = model.encoders[tower], {"layers": model.config.pooled_layer, **text}
    if format == "hf":
        write_huggingface(path, encoder, **settings)
        return False
    projection, opens = model.projections[tower] if tower in model.projections else None, True
    settings |= {"pooling": model.pooling[tower], "normalize": model.config.normalize, "projection": projection}
    try:
        if isinstance(projection, MeanOfSpaces):
            problem = "its vectors are means of projection spaces, which sentence-transformers does not have"
            raise UserError(problem, cure="set `no_projection` to leave them out, or set `format` to xrep")
        settings["activation"] = "none" if projection is None else projection.shape.activation
        write_sentence_transformers(path, encoder, prompts=prompts, weights=format not in FILES, **settings)
    except UserError:  # pre-norm and projection spaces do not matter to a graph
        if format == "sentence-transformers":
            raise
        text["save_tokenizer"](path)
        opens = False
    if format != "sentence-transformers":
        write_graph(model, tower, path, format)
    return opens


def _details(model: DualEncoder, text: TextSpec, format: Format, prompts: Prompts, place: str | None) -> list[str]:
    """Return paragraphs of the card; ``place`` is the directory, if sentence-transformers opens it."""
    languages = {tower: ", ".join(text.languages_of(tower)) for tower in model.encoders}
    known = "".join(f" It was trained on: {codes}." for codes in languages.values() if codes)
    paragraphs = [f"One encoder reads every language.{known}"]
    if len(languages) > 1:
        # If a projection was left out, vectors of the two towers cannot be compared.
        is_comparable = len(model.projections) == len(model.architecture()["projections"])
        space = "; vectors of both lie in one space" if is_comparable else ""
        towers = [f"\n- `{tower}/` reads {codes}" for tower, codes in languages.items()]
        paragraphs = [f"It has a tower for each side of its language pairs{space}:{''.join(towers)}"]
    if format == "sentence-transformers":
        paragraphs += ["`xrep.SentenceEncoder.load` reads it, too."]
    if format == "hf":
        steps = [" or ".join(_POOLED[pooling] for pooling in dict.fromkeys(model.pooling.values())), "padding left out"]
        steps += ["then a projection, which only sentence-transformers can hold"] * (len(model.projections) > 0)
        steps += ["brought to length 1"] * model.config.normalize
        paragraphs += [f"The sentence vector is {', '.join(steps)}."]
    if format not in FILES:
        return paragraphs + frozen_types(*model.encoders.values())
    paragraphs += [
        f"The inputs of the graph are {' and '.join(f'`{name}`' for name in INPUTS)}, int64 [sentences, tokens], of"
        f" sentences of at most {text.max_length} tokens, padded at the end. The outputs are `sentence_embedding`, a"
        " vector for each sentence, and `last_hidden_state`, one for each token. The tokenizer is beside the graph:"
        " `transformers.AutoTokenizer` opens the directory, and `tokenizers` its `tokenizer.json`."
    ]
    if prompts.text:
        paragraphs += [f"The text {json.dumps(prompts.text, ensure_ascii=False)} belongs in front of each sentence."]
    if format == "openvino":
        paragraphs += ["Without the precision hint, OpenVINO computes in bfloat16 on processors that multiply it."]
    if place is not None:
        opened = f'SentenceTransformer({json.dumps(place)}, backend="{format}")'
        paragraphs += [f"With `pip install 'sentence-transformers[{format}]'`, `{opened}` opens the directory, too."]
    return paragraphs
