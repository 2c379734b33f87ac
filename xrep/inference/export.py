"""Export of an encoder to directories that transformers, sentence-transformers or xrep can load."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from xrep.errors import UserError
from xrep.files import check_new_directory, write_aside
from xrep.inference.classifier_files import export_classifier
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
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces
from xrep.nn.pooling import Pooling
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.sides import open_tokenizers, tokenizer_of

Format = Literal["sentence-transformers", "hf"]


def export_path(
    path: str | Path,
    directory: str | Path,
    kind: Format | Literal["xrep"],
    average: int | None = None,
    *,
    pooling: Pooling | None = None,
    projection: bool = True,
) -> list[Path]:
    """Write the encoder of a checkpoint, or a pretrained one, to ``directory``.

    Args:
        path: A checkpoint, or what ``SentenceEncoder.load`` accepts; with ``average``, the directory of a run.
        kind: ``xrep`` is a checkpoint of an encoder or a translation model, without the parts that only training needs.
            The others are those of ``export``; for a translation model, ``hf`` is its encoder alone.
        average: Average the weights of this many of the newest checkpoints of the run; None averages nothing.
        pooling: Pooling to use instead of that with which the encoder was trained.
        projection: Whether to keep the projection (False: frozen_source, table 8, '[CLS] without MLP').

    Returns:
        The directories written.

    Raises:
        UserError: If there is no encoder, there are too few checkpoints, ``directory`` is not empty, there is no
            projection to leave out, the format has no pooling, or as ``export``.
    """
    if (pooling or not projection) and kind != "sentence-transformers":
        problem = f"--pooling and --no-projection are for the format sentence-transformers, not for {kind}"
        raise UserError(problem, cure="leave --format out")
    checkpoint, mean = None, None
    if average is not None:
        if average < 1:
            raise UserError(f"--average must be at least 1, not {average}")
        checkpoint, mean = average_last(path, average)
        path = checkpoint.path
    if kind == "xrep":
        return [_write_checkpoint(checkpoint or open_checkpoint(path), mean, Path(directory))]
    if Path(path, MANIFEST).is_file() and (checkpoint := checkpoint or open_checkpoint(path)).translates:
        return [_write_its_encoder(checkpoint, mean, Path(directory), kind)]
    if checkpoint is not None and checkpoint.text.annotation is not None:
        return [export_classifier(checkpoint, mean, Path(directory), kind)]
    encoder = SentenceEncoder.load(path, device="cpu")
    if mean is not None:
        encoder.model.load_state_dict(mean)
    _change(encoder.model, path, pooling, projection)
    return export(encoder, directory, kind)


def _change(model: DualEncoder, path: str | Path, pooling: Pooling | None, projection: bool) -> None:
    if pooling is not None:
        model.pooling = dict.fromkeys(model.pooling, pooling)
    if not projection:
        if not model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without --no-projection")
        model.projections.clear()


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
    checkpoint: Checkpoint, tensors: dict[str, Tensor] | None, directory: Path, kind: Format
) -> Path:
    """Write the encoder of a translation model as a directory of transformers."""
    if kind != "hf":
        problem = "a translation model, which sentence-transformers does not have"
        cure = "give --format xrep, or --format hf for its encoder alone"
        raise UserError(problem, path=checkpoint.path, cure=cure)
    check_new_directory(directory)
    model = load_model(checkpoint)
    if tensors is not None:
        model.load_state_dict(tensors)
    text, tokenizer = checkpoint.text, tokenizer_of(open_tokenizers(checkpoint.path / TOKENIZER), "source")
    write_huggingface(
        directory,
        model.encoder,
        max_length=text.max_length,
        bos_id=text.vocabulary("source").bos_id,
        eos_id=text.vocabulary("source").eos_id,
        save_tokenizer=lambda folder: save_as_huggingface(tokenizer, folder, text.max_length),
    )
    with write_aside(directory / "README.md") as aside:
        lines = [
            "# The encoder of a translation model",
            "",
            f"Trained with xrep to translate from {', '.join(text.source_languages)}; the decoder is left out."
            f" It gives a vector for each token. Load with `transformers.{model.encoder.library_class}`.",
        ]
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def export(encoder: SentenceEncoder, directory: str | Path, kind: Format) -> list[Path]:
    """Write an encoder as directories of sentence-transformers or transformers.

    An encoder with one tower is written to ``directory`` itself, one with two towers to its folders ``source`` and
    ``target``; a README says which languages each reads. The directories contain no code. xrep can read them again,
    with exactly the same weights.

    Args:
        kind: ``sentence-transformers`` has pooling, projection and normalisation; ``hf`` is the transformer alone.

    Returns:
        The directories written.

    Raises:
        UserError: If ``directory`` is not empty, or the encoder has no counterpart in those libraries.
    """
    directory = Path(directory)
    check_new_directory(directory)
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
    shared: dict[str, Any] = {
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
    if isinstance(projection, MeanOfSpaces):
        problem = "its vectors are means of projection spaces, which sentence-transformers does not have"
        raise UserError(problem, path=path, cure="leave them out by --no-projection, or keep --format xrep")
    write_sentence_transformers(
        path,
        model.encoders[tower],
        pooling=model.pooling[tower],
        projection=projection,
        activation="none" if projection is None else projection.shape.activation,
        normalize=model.config.normalize,
        **shared,
    )


def _readme(encoder: SentenceEncoder, towers: list[str], kind: Format) -> str:
    model = encoder.model
    # If a projection was left out, vectors of the two towers cannot be compared.
    comparable = len(model.projections) == len(model.architecture()["projections"])
    sizes = " or ".join(str(size) for size in dict.fromkeys(model.width(tower) for tower in towers))
    classes = dict.fromkeys(tower.library_class for tower in model.encoders.values())
    library = "sentence_transformers.SentenceTransformer"
    if kind == "hf":
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
        lines += [f"- `{tower}/` reads {', '.join(getattr(encoder.text, f'{tower}_languages'))}" for tower in towers]
    if kind == "hf":
        pooled = {
            "mean": "the mean of its token vectors",
            "max": "their maximum",
            "cls": "the vector of the first token",
        }
        kinds = " or ".join(dict.fromkeys(pooled[kind] for kind in model.pooling.values()))
        steps = [f"{kinds}, padding left out"]
        if len(model.projections):
            steps.append("then a projection, which this format cannot hold (sentence-transformers can)")
        if model.config.normalize:
            steps.append("brought to length 1")
        lines += ["", f"The sentence vector is {', '.join(steps)}."]
    return "\n".join(lines) + "\n"
