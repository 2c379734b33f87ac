"""The way out: an encoder as directories that transformers and sentence-transformers load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.nn.exported import write_huggingface, write_sentence_transformers
from xrep.sentence_encoder import SentenceEncoder
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import tokenizer_of

Format = Literal["sentence-transformers", "hf"]
LIBRARIES = {"sentence-transformers": "sentence_transformers.SentenceTransformer", "hf": "transformers.AutoModel"}


def export(encoder: SentenceEncoder, directory: str | Path, kind: Format) -> list[Path]:
    """Write an encoder of one tower to ``directory``, one of two towers to its folders ``source`` and ``target``, with
    a README that says which is which. Nothing of it runs code; xrep reads the directories back, weights bit by bit.

    Args:
        kind: ``sentence-transformers`` has pooling, projection and normalisation; ``hf`` is the transformer alone.

    Returns:
        The directories written.

    Raises:
        UserError: something is there already, or the encoder has no counterpart in those libraries.
    """
    directory = Path(directory)
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError("something is there already", path=directory, cure="name a new directory")
    towers = list(encoder.model.encoders)
    if len(towers) == 1:
        _write_tower(encoder, towers[0], directory, kind)
        written = [directory]
    else:
        written = [directory / tower for tower in towers]
        try:
            for tower, path in zip(towers, written, strict=True):
                _write_tower(encoder, tower, path, kind)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    with write_aside(directory / "README.md") as aside:
        aside.write_text(_readme(encoder, towers, kind), encoding="utf-8")
    return written


def _write_tower(encoder: SentenceEncoder, tower: str, path: Path, kind: Format) -> None:
    model, vocabulary = encoder.model, encoder.text.vocabulary(tower)
    length = encoder.text.max_length
    tokenizer = tokenizer_of(encoder.tokenizers, tower)
    shared = {
        "max_length": length,
        "bos_id": vocabulary.bos_id,
        "eos_id": vocabulary.eos_id,
        "layers": model.config.pooled_layer,
        "save_tokenizer": lambda folder: save_as_huggingface(tokenizer, folder, length),
    }
    if kind == "hf":
        write_huggingface(path, model.encoders[tower], **shared)
        return
    projection = model.projections[tower] if tower in model.projections else None
    write_sentence_transformers(
        path,
        model.encoders[tower],
        pooling=model.pooling,
        projection=projection,
        activation="none" if projection is None else projection.shape.activation,
        normalize=model.config.normalize,
        **shared,
    )


def _readme(encoder: SentenceEncoder, towers: list[str], kind: Format) -> str:
    model = encoder.model
    lines = [
        "# A cross-lingual sentence encoder",
        "",
        f"Trained with xrep; sentences become vectors of {encoder.output_size} numbers. Load with `{LIBRARIES[kind]}`"
        " or `xrep.SentenceEncoder.load`.",
        "",
    ]
    if len(towers) == 1:
        languages = f" It was trained on: {', '.join(encoder.languages)}." if encoder.languages else ""
        lines.append(f"One encoder reads every language.{languages}")
    else:
        lines.append("It has a tower for each side of its language pairs; vectors of both lie in one space:")
        lines += [f"- `{tower}/` reads {', '.join(getattr(encoder.text, f'{tower}_languages'))}" for tower in towers]
    if kind == "hf":
        pooled = {
            "mean": "the mean of its token vectors",
            "max": "their maximum",
            "cls": "the vector of the first token",
        }
        steps = [f"{pooled[model.pooling]}, padding left out"]
        if len(model.projections):
            steps.append("then a projection, which this format cannot hold (sentence-transformers can)")
        if model.config.normalize:
            steps.append("brought to length 1")
        lines += ["", f"The sentence vector is {', '.join(steps)}."]
    return "\n".join(lines) + "\n"
