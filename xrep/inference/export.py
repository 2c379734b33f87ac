"""Export of an encoder to directories that other libraries or xrep can load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import Tensor

from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, naming
from xrep.inference.classifier_files import PIPELINES, export_classifier
from xrep.inference.encoder_files import Format, opening_line, read_by
from xrep.inference.model_card import README, Card, write_card
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.exported import write_huggingface
from xrep.models.averaging import average_last
from xrep.models.directory import (
    CONFIG,
    MANIFEST,
    TOKENIZER,
    Checkpoint,
    Snapshot,
    fingerprint,
    load_model,
    open_checkpoint,
    write_checkpoint,
)
from xrep.nn.pooling import Pooling
from xrep.text.sides import open_tokenizers


def export_path(
    path: str | Path,
    directory: str | Path,
    format: Format | Literal["xrep"],
    average: int | None = None,
    *,
    pooling: Pooling | None = None,
    no_projection: bool = False,
    layer: int | None = None,
    license: str | None = None,
    results: Sequence[str | Path] = (),
) -> dict[Path, str]:
    """Write the encoder of a checkpoint, or a pretrained one, to ``directory``.

    Args:
        path: A checkpoint, or what ``SentenceEncoder.load`` accepts; with ``average``, the directory of a run.
        format: ``xrep`` is a checkpoint of an encoder or a translation model, without the parts that only training
            needs. The others are those of ``SentenceEncoder.save``; of a translation model, ``hf`` is the encoder.
        average: Average the weights of this many of the newest checkpoints of the run; None averages nothing.
        pooling: Pooling to use instead of that with which the encoder was trained.
        no_projection: Whether to leave out the projection (frozen_source, table 8, '[CLS] without MLP').
        layer: Layer whose token vectors are pooled, as in ``SentenceEncoder.load``; the layers above are left out.
        license, results: What the model card says besides, as in ``SentenceEncoder.save``.

    Returns:
        The directories written, each with a line of Python that loads it.

    Raises:
        UserError: If there is no encoder, too few checkpoints, or no projection or pooling, or as
            ``SentenceEncoder.save``.
    """
    if (pooling or no_projection) and format in ("hf", "xrep"):
        problem = f"`pooling` and `no_projection` are for the format sentence-transformers and graphs, not for {format}"
        raise UserError(problem, cure="leave `format` out")
    if layer is not None and format == "xrep":
        raise UserError("`layer` is for the formats of other libraries", cure="leave `format` out")
    checkpoint, mean, directory = None, None, Path(directory)
    if average is not None:
        if average < 1:
            raise UserError(f"`average` must be at least 1, not {average}")
        checkpoint, mean = average_last(path, average)
        path = checkpoint.path
    card = Card.of(path, license, results)
    if format == "xrep":
        return _write_checkpoint(checkpoint or open_checkpoint(path), mean, directory, card)
    if Path(path, MANIFEST).is_file() and (checkpoint := checkpoint or open_checkpoint(path)).translates:
        return _write_its_encoder(checkpoint, mean, directory, format, card)
    if checkpoint is not None and checkpoint.text.annotation is not None:
        return export_classifier(checkpoint, mean, directory, format, card)
    encoder = SentenceEncoder.load(path, device="cpu")
    if mean is not None:
        encoder.model.load_state_dict(mean)
    if pooling is not None:
        encoder.model.pooling = dict.fromkeys(encoder.model.pooling, pooling)
    if no_projection:
        if not encoder.model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without `no_projection`")
        encoder.model.projections.clear()
    if layer is not None:
        encoder.model.pool_layer(layer)
    return encoder.save(directory, format, license=license, results=results)


def _write_checkpoint(
    checkpoint: Checkpoint, tensors: dict[str, Tensor] | None, directory: Path, card: Card
) -> dict[Path, str]:
    """Write a checkpoint with the model alone and, if they are available, the hashes of its training sentences."""
    check_new_directory(directory)
    hashes, annotation = checkpoint.training_hashes, checkpoint.text.annotation
    kind, pipeline = "SentenceEncoder", "sentence-similarity"
    if checkpoint.translates:
        kind, pipeline = "Translator", "translation"
    if annotation is not None:
        kind, pipeline = "SentenceClassifier", PIPELINES[annotation.kind]
    loading = f"import xrep; xrep.{kind}.load({json.dumps(str(directory))})"
    with TemporaryDirectory() as folder:
        write_card(
            Path(folder),
            directory.name,
            ["A model of xrep.", "", "```python", loading, "```"],
            card,
            library="xrep",
            pipeline=pipeline,
            languages=checkpoint.text.languages,
            fingerprint=lambda: fingerprint(_loaded(checkpoint, tensors), checkpoint.text),
        )
        snapshot = Snapshot(
            step=checkpoint.step,
            config_yaml=(checkpoint.path / CONFIG).read_text(encoding="utf-8"),
            text=checkpoint.text,
            save_tokenizers=lambda folder: shutil.copytree(checkpoint.path / TOKENIZER, folder),
            architecture=checkpoint.manifest["architecture"],
            model=checkpoint.tensors() if tensors is None else tensors,
            files={README: Path(folder, README), **({} if hashes is None else {hashes.name: hashes})},
        )
        write_checkpoint(directory.absolute(), snapshot)
    return {directory: loading}


def _loaded(checkpoint: Checkpoint, tensors: dict[str, Tensor] | None) -> Any:
    """Return the model of a checkpoint, with other weights if they are given."""
    model = load_model(checkpoint)
    if tensors is not None:
        model.load_state_dict(tensors)
    return model


def _write_its_encoder(
    checkpoint: Checkpoint, tensors: dict[str, Tensor] | None, directory: Path, format: Format, card: Card
) -> dict[Path, str]:
    """Write the encoder of a translation model as a directory of transformers."""
    if format != "hf":
        problem = f"a translation model, which {format} does not have"
        cure = "set `format` to xrep, or to hf for its encoder alone"
        raise UserError(problem, path=checkpoint.path, cure=cure)
    model = _loaded(checkpoint, tensors)
    text, tokenizers = checkpoint.text, open_tokenizers(checkpoint.path / TOKENIZER)
    loading = opening_line(model.encoder.library_class, str(directory), text.source_languages)
    lines = [
        f"The encoder of a model trained with xrep to translate from {', '.join(text.source_languages)}; the decoder is"
        " left out. It gives a vector for each token.",
        "",
        "```python",
        loading,
        "```",
    ]
    with naming(directory), directory_aside(directory) as aside:
        write_huggingface(aside, model.encoder, **read_by(text, tokenizers, "source"))
        write_card(
            aside,
            directory.name,
            lines,
            card,
            library="transformers",
            pipeline="feature-extraction",
            languages=text.source_languages,
            fingerprint=lambda: fingerprint(model, text),
        )
    return {directory: loading}
