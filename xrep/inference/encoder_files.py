"""Directories of transformers and sentence-transformers, written from a sentence encoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.interop.exported import write_huggingface, write_router, write_sentence_transformers
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import Tokenizers, tokenizer_of

Format = Literal["sentence-transformers", "hf"]
_POOLED = {"mean": "the mean of its token vectors", "max": "their maximum", "cls": "the vector of the first token"}


def write_encoder(
    model: DualEncoder, tokenizers: Tokenizers, text: TextSpec, directory: Path, format: Format
) -> dict[Path, str]:
    """Write an encoder as ``SentenceEncoder.save`` describes."""
    languages = {tower: _languages(text, tower) for tower in model.encoders}
    folders = {tower: tower if len(languages) > 1 else "." for tower in languages}
    with naming(directory), directory_aside(directory) as aside:
        for tower, folder in folders.items():
            _write_tower(model, tower, aside / folder, format, read_by(text, tokenizers, tower))
        if format == "hf":
            classes = {tower: model.encoders[tower].library_class for tower in languages}
            loaded = {directory / folders[tower]: opening_line(name, directory / folders[tower], languages[tower])
                      for tower, name in classes.items()}  # fmt: skip
        else:
            if len(languages) > 1:
                write_router(aside, {code: folders[tower] for tower, codes in languages.items() for code in codes})
            loaded = {directory: _encoding_line(directory, languages)}
        write_readme(aside, _readme(model, languages, format, list(loaded.values())))
    return loaded


def _languages(text: TextSpec, tower: str) -> list[str]:
    return {"source": text.source_languages, "target": text.target_languages}.get(tower, text.languages)


def opening_line(library_class: str, directory: Path, languages: list[str]) -> str:
    """Return the line of Python that opens a transformer."""
    reads = f"  # reads {', '.join(languages)}" if languages else ""
    return f"import transformers; transformers.{library_class}.from_pretrained({json.dumps(str(directory))}){reads}"


def _encoding_line(directory: Path, languages: dict[str, list[str]]) -> str:
    """Return the line of Python that opens a directory of sentence-transformers and encodes."""
    task, others = "", ""
    if len(languages) > 1:
        first, *rest = [code for codes in languages.values() for code in codes]
        task, others = f', task="{first}"', f"  # or {', '.join(rest)}"
    opened = f"from sentence_transformers import SentenceTransformer; SentenceTransformer({json.dumps(str(directory))})"
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


def write_readme(directory: Path, lines: list[str]) -> None:
    (directory / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _write_tower(model: DualEncoder, tower: str, path: Path, format: Format, text: dict[str, Any]) -> None:
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
        **settings,
    )


def _readme(model: DualEncoder, languages: dict[str, list[str]], format: Format, loading: list[str]) -> list[str]:
    # If a projection was left out, vectors of the two towers cannot be compared.
    comparable = len(model.projections) == len(model.architecture()["projections"])
    sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in languages))
    lines = [
        "# A cross-lingual sentence encoder",
        "",
        f"Trained with xrep; sentences become vectors of {sizes} numbers.",
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
