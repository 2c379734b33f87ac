"""Export of an encoder to directories that transformers, sentence-transformers or xrep can load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, naming
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.exported import write_huggingface, write_sentence_transformers
from xrep.models.averaging import average_last
from xrep.models.directory import (
    CONFIG,
    MANIFEST,
    TOKENIZER,
    Checkpoint,
    Snapshot,
    load_model,
    open_checkpoint,
    write_checkpoint,
)
from xrep.models.projection import MeanOfSpaces
from xrep.nn.pooling import Pooling
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import Tokenizers, open_tokenizers, tokenizer_of

Format = Literal["sentence-transformers", "hf"]
_POOLED = {"mean": "the mean of its token vectors", "max": "their maximum", "cls": "the vector of the first token"}


def export_path(
    path: str | Path,
    directory: str | Path,
    format: Format | Literal["xrep"],
    average: int | None = None,
    *,
    pooling: Pooling | None = None,
    no_projection: bool = False,
) -> list[Path]:
    """Write the encoder of a checkpoint, or a pretrained one, to ``directory``.

    Args:
        path: A checkpoint, or what ``SentenceEncoder.load`` accepts; with ``average``, the directory of a run.
        format: ``xrep`` is a checkpoint of an encoder or a translation model, without the parts that only training
            needs. The others are those of ``export``; for a translation model, ``hf`` is its encoder alone.
        average: Average the weights of this many of the newest checkpoints of the run; None averages nothing.
        pooling: Pooling to use instead of that with which the encoder was trained.
        no_projection: Whether to leave out the projection (frozen_source, table 8, '[CLS] without MLP').

    Returns:
        The directories written.

    Raises:
        UserError: If there is no encoder, too few checkpoints, or no projection or pooling, or as ``export``.
    """
    if (pooling or no_projection) and format != "sentence-transformers":
        problem = f"`pooling` and `no_projection` are for the format sentence-transformers, not for {format}"
        raise UserError(problem, cure="leave `format` out")
    checkpoint, mean, directory = None, None, Path(directory)
    if average is not None:
        if average < 1:
            raise UserError(f"`average` must be at least 1, not {average}")
        checkpoint, mean = average_last(path, average)
        path = checkpoint.path
    if format == "xrep":
        return [_write_checkpoint(checkpoint or open_checkpoint(path), mean, directory)]
    if Path(path, MANIFEST).is_file() and (checkpoint := checkpoint or open_checkpoint(path)).translates:
        return [_write_its_encoder(checkpoint, mean, directory, format)]
    encoder = SentenceEncoder.load(path, device="cpu")
    if mean is not None:
        encoder.model.load_state_dict(mean)
    if pooling is not None:
        encoder.model.pooling = dict.fromkeys(encoder.model.pooling, pooling)
    if no_projection:
        if not encoder.model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without `no_projection`")
        encoder.model.projections.clear()
    return export(encoder, directory, format)


def _write_checkpoint(checkpoint: Checkpoint, tensors: dict[str, Tensor] | None, directory: Path) -> Path:
    """Write a checkpoint with the model alone and, if they are available, the hashes of its training sentences."""
    check_new_directory(directory)
    hashes = checkpoint.training_hashes
    snapshot = Snapshot(
        step=checkpoint.step,
        config_yaml=(checkpoint.path / CONFIG).read_text(encoding="utf-8"),
        text=checkpoint.text,
        save_tokenizers=lambda folder: shutil.copytree(checkpoint.path / TOKENIZER, folder),
        architecture=checkpoint.manifest["architecture"],
        model=checkpoint.tensors() if tensors is None else tensors,
        files={} if hashes is None else {hashes.name: hashes},
    )
    write_checkpoint(directory.absolute(), snapshot)
    return directory


def _write_its_encoder(
    checkpoint: Checkpoint, tensors: dict[str, Tensor] | None, directory: Path, format: Format
) -> Path:
    """Write the encoder of a translation model as a directory of transformers."""
    if format != "hf":
        problem = "a translation model, which sentence-transformers does not have"
        cure = "set `format` to xrep, or to hf for its encoder alone"
        raise UserError(problem, path=checkpoint.path, cure=cure)
    model = load_model(checkpoint)
    if tensors is not None:
        model.load_state_dict(tensors)
    text, tokenizers = checkpoint.text, open_tokenizers(checkpoint.path / TOKENIZER)
    lines = [
        "# The encoder of a translation model",
        "",
        f"Trained with xrep to translate from {', '.join(text.source_languages)}; the decoder is left out."
        f" It gives a vector for each token. Load with `transformers.{model.encoder.library_class}`.",
    ]
    with naming(directory), directory_aside(directory) as aside:
        write_huggingface(aside, model.encoder, **_read_by(text, tokenizers, "source"))
        _write_readme(aside, lines)
    return directory


def _read_by(text: TextSpec, tokenizers: Tokenizers, side: str) -> dict[str, Any]:
    """Return what the writers of ``xrep.interop.exported`` need to know about the text of a side."""
    vocabulary, tokenizer, length = text.vocabulary(side), tokenizer_of(tokenizers, side), text.max_length
    return {
        "max_length": length,
        "bos_id": vocabulary.bos_id,
        "eos_id": vocabulary.eos_id,
        "save_tokenizer": lambda folder: save_as_huggingface(tokenizer, folder, length),
    }


def _write_readme(directory: Path, lines: list[str]) -> None:
    (directory / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def export(encoder: SentenceEncoder, directory: str | Path, format: Format) -> list[Path]:
    """Write an encoder as directories of sentence-transformers or transformers.

    An encoder with one tower is written to ``directory`` itself, one with two towers to its folders ``source`` and
    ``target``; a README says which languages each reads. The directories contain no code. xrep can read them again,
    with exactly the same weights.

    ``sentence-transformers`` has pooling, projection and normalisation; ``hf`` is the transformer alone.

    Returns:
        The directories written.

    Raises:
        UserError: If ``directory`` is not empty, or the encoder has no counterpart in those libraries.
    """
    towers = list(encoder.model.encoders)
    folders = towers if len(towers) > 1 else ["."]
    with naming(directory), directory_aside(directory) as aside:
        for tower, folder in zip(towers, folders, strict=True):
            _write_tower(encoder, tower, aside / folder, format)
        _write_readme(aside, _readme(encoder, towers, format))
    return [Path(directory, folder) for folder in folders]


def _write_tower(encoder: SentenceEncoder, tower: str, path: Path, format: Format) -> None:
    model = encoder.model
    settings = {"layers": model.config.pooled_layer, **_read_by(encoder.text, encoder.tokenizers, tower)}
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


def _readme(encoder: SentenceEncoder, towers: list[str], format: Format) -> list[str]:
    model = encoder.model
    # If a projection was left out, vectors of the two towers cannot be compared.
    comparable = len(model.projections) == len(model.architecture()["projections"])
    sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in towers))
    library = "sentence_transformers.SentenceTransformer"
    if format == "hf":
        classes = dict.fromkeys(tower.library_class for tower in model.encoders.values())
        library = " or ".join(f"transformers.{name}" for name in classes)
    lines = [
        "# A cross-lingual sentence encoder",
        "",
        f"Trained with xrep; sentences become vectors of {sizes} numbers. Load with `{library}`"
        " or `xrep.SentenceEncoder.load`.",
        "",
    ]
    if len(towers) == 1:
        languages = f" It was trained on: {', '.join(encoder.languages)}." if encoder.languages else ""
        lines.append(f"One encoder reads every language.{languages}")
    else:
        space = "; vectors of both lie in one space" if comparable else ""
        lines.append(f"It has a tower for each side of its language pairs{space}:")
        read = {"source": encoder.text.source_languages, "target": encoder.text.target_languages}
        lines += [f"- `{tower}/` reads {', '.join(read[tower])}" for tower in towers]
    if format == "hf":
        steps = [" or ".join(_POOLED[pooling] for pooling in dict.fromkeys(model.pooling.values())), "padding left out"]
        if len(model.projections):
            steps.append("then a projection, which this format cannot hold (sentence-transformers can)")
        if model.config.normalize:
            steps.append("brought to length 1")
        lines += ["", f"The sentence vector is {', '.join(steps)}."]
    return lines
