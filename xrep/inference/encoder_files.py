"""Directories of transformers and sentence-transformers, written from a sentence encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.model_card import Card, write_card
from xrep.interop.exported import write_huggingface, write_router, write_sentence_transformers
from xrep.interop.sentence_modules import Prompts
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import Tokenizers, tokenizer_of

Format = Literal["sentence-transformers", "hf"]
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
    languages = {tower: _languages(text, tower) for tower in model.encoders}
    folders = {tower: tower if len(languages) > 1 else "." for tower in languages}
    with naming(directory), directory_aside(directory) as aside:
        for tower, folder in folders.items():
            _write_tower(model, tower, aside / folder, format, prompts, read_by(text, tokenizers, tower))
        if format == "hf":
            classes = {tower: encoder.library_class for tower, encoder in model.encoders.items()}
            loaded = {
                directory / folders[tower]: opening_line(name, str(Path(place, folders[tower])), languages[tower])
                for tower, name in classes.items()
            }
        else:
            if len(languages) > 1:
                routes = {code: folders[tower] for tower, codes in languages.items() for code in codes}
                write_router(aside, routes, prompts)
            loaded = {directory: _encoding_line(place, languages)}
        write_card(
            aside,
            Path(place).name,
            _description(model, languages, format, list(loaded.values())),
            card,
            library="transformers" if format == "hf" else "sentence-transformers",
            pipeline="feature-extraction" if format == "hf" else "sentence-similarity",
            languages=text.languages,
            fingerprint=fingerprint,
        )
    return loaded


def _languages(text: TextSpec, tower: str) -> list[str]:
    return {"source": text.source_languages, "target": text.target_languages}.get(tower, text.languages)


def opening_line(library_class: str, place: str, languages: list[str]) -> str:
    """Return the line of Python that opens a transformer."""
    reads = f"  # reads {', '.join(languages)}" if languages else ""
    return f"import transformers; transformers.{library_class}.from_pretrained({json.dumps(place)}){reads}"


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


def _description(model: DualEncoder, languages: dict[str, list[str]], format: Format, loading: list[str]) -> list[str]:
    # If a projection was left out, vectors of the two towers cannot be compared.
    comparable = len(model.projections) == len(model.architecture()["projections"])
    sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in languages))
    lines = [
        f"A cross-lingual sentence encoder, trained with xrep. Sentences become vectors of {sizes} numbers.",
        "",
        "```python",
        *loading,
        "```",
        "",
    ]
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
    else:
        lines += ["", "`xrep.SentenceEncoder.load` reads it, too."]
    return lines
