"""Export of an encoder to directories that other libraries or xrep can load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from xrep.config import to_yaml
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, naming, write_json
from xrep.inference.encoder_files import Format, opening_line, read_by
from xrep.inference.model_card import README, Card, frozen_types, python_lines
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.classifiers import CLASSES, write_classifier
from xrep.interop.exported import write_huggingface
from xrep.interop.sentence_modules import PROMPTS
from xrep.models.averaging import average_last
from xrep.models.classifier import Classifier
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
from xrep.nn.layers import quantise_layers
from xrep.nn.pooling import Pooling
from xrep.text.sides import open_tokenizers, save_tokenizers

PIPELINES = {"label": "text-classification", "tags": "token-classification", "span": "question-answering"}
"""The Hub's name of what a classifier does, for each kind of annotation."""


def export_path(
    path: str | Path,
    directory: str | Path,
    format: Format | Literal["xrep", "int8"],
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
        format: One of ``SentenceEncoder.save``, of which ``hf`` also writes the encoder of a translation model, or a
            checkpoint of any model: ``xrep`` leaves out what only training needs, ``int8`` has the weights of
            transformer layers in int8, a quarter as large, and a pretrained encoder can become one, too.
        average: Average the weights of this many of the newest checkpoints of the run; None averages nothing.
        pooling, no_projection: Pooling instead of that with which the encoder was trained, and whether to leave out the
            projection (frozen_source, table 8, '[CLS] without MLP').
        layer, license, results: As in ``SentenceEncoder.load`` and ``SentenceEncoder.save``.

    Returns:
        The directories written, each with a line of Python that loads it.

    Raises:
        UserError: There is no encoder, no projection, or too few checkpoints, or as ``SentenceEncoder.save``.
    """
    if (pooling or no_projection) and format in ("hf", "xrep", "int8"):
        problem = f"`pooling` and `no_projection` are for the format sentence-transformers and graphs, not for {format}"
        raise UserError(problem, cure="leave `format` out")
    if layer is not None and format in ("xrep", "int8"):
        raise UserError("`layer` is for the formats of other libraries", cure="leave `format` out")
    checkpoint, directory = None, Path(directory)
    if average is not None:
        if average < 1:
            raise UserError(f"`average` must be at least 1, not {average}")
        checkpoint = average_last(path, average)
        path = checkpoint.path
    elif format == "xrep" or Path(path, MANIFEST).is_file():
        checkpoint = open_checkpoint(path)
    card = Card.of(path, license, results)
    if checkpoint is not None and checkpoint.is_quantised and format != "xrep":
        raise UserError(f"in int8, which cannot become {format}", path=path, cure="export the original, or to xrep")
    if format == "xrep" or format == "int8":
        check_new_directory(directory)
        with TemporaryDirectory() as folder:
            exported = _snapshot(path, checkpoint, format, Path(folder))
            return _write_checkpoint(*exported, directory, card, Path(folder))
    if checkpoint is not None and (checkpoint.translates or checkpoint.text.annotation is not None):
        return _write_for_transformers(checkpoint, directory, format, card)
    encoder = SentenceEncoder.load(path, device="cpu")
    if average is not None and checkpoint is not None:
        encoder.model.load_state_dict(checkpoint.tensors())
    if pooling is not None:
        encoder.model.pooling = dict.fromkeys(encoder.model.pooling, pooling)
    if no_projection:
        if not encoder.model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without `no_projection`")
        encoder.model.projections.clear()
    if layer is not None:
        encoder.model.pool_layer(layer)
    return encoder.write(directory, str(directory), format, card)


def _snapshot(
    path: str | Path, checkpoint: Checkpoint | None, format: str, folder: Path
) -> tuple[Snapshot, Callable[[], str]]:
    """Return a checkpoint without what training alone needs, or else a pretrained encoder in int8 as a checkpoint, and
    a function that returns the fingerprint of its model; ``folder`` is for its files."""
    if checkpoint is None:
        encoder = SentenceEncoder.load(path, device="cpu")
        quantise_layers(encoder.model)
        write_json(folder / PROMPTS, {"prompts": encoder.prompts, "default_prompt_name": encoder.default_prompt_name})
        options = replace(encoder.model.config, encoder=None, source_encoder=None, target_encoder=None)
        snapshot = Snapshot(
            step=0,
            config_yaml=to_yaml({"model": {"name": "dual_encoder", **asdict(options)}}),
            text=encoder.text,
            save_tokenizers=partial(save_tokenizers, encoder.tokenizers),
            architecture=encoder.model.architecture(),
            model=encoder.model.state_dict(),
            files={PROMPTS: folder / PROMPTS},
            precision="int8",
        )
        return snapshot, encoder.fingerprint
    files = (checkpoint.training_hashes, checkpoint.path / PROMPTS)
    snapshot = Snapshot(
        step=checkpoint.step,
        config_yaml=(checkpoint.path / CONFIG).read_text(encoding="utf-8"),
        text=checkpoint.text,
        save_tokenizers=partial(shutil.copytree, checkpoint.path / TOKENIZER),
        architecture=checkpoint.manifest["architecture"],
        model=checkpoint.tensors(quantised=True),
        files={file.name: file for file in files if file is not None and file.is_file()},
        precision="int8" if checkpoint.is_quantised else "float32",
    )
    if format == "xrep":
        return snapshot, lambda: fingerprint(load_model(checkpoint), checkpoint.text)
    model = load_model(checkpoint)
    quantise_layers(model)
    return replace(snapshot, model=model.state_dict(), precision="int8"), partial(fingerprint, model, checkpoint.text)


def _write_checkpoint(
    snapshot: Snapshot, fingerprint: Callable[[], str], directory: Path, card: Card, folder: Path
) -> dict[Path, str]:
    """Write what ``_snapshot`` returns, with a model card."""
    kind, pipeline = "SentenceEncoder", "sentence-similarity"
    if "decoder" in snapshot.architecture:
        kind, pipeline = "Translator", "translation"
    if snapshot.text.annotation is not None:
        kind, pipeline = "SentenceClassifier", PIPELINES[snapshot.text.annotation.kind]
    loading = f"import xrep; xrep.{kind}.load({json.dumps(str(directory))})"
    quantised = " The weights of its transformer layers are in int8." if snapshot.precision == "int8" else ""
    paragraphs = [f"A model of xrep.{quantised}", python_lines(loading)]
    card.write(folder, directory.name, paragraphs, ("xrep", pipeline), snapshot.text.languages, fingerprint)
    write_checkpoint(directory.absolute(), replace(snapshot, files={README: folder / README, **snapshot.files}))
    return {directory: loading}


def _write_for_transformers(checkpoint: Checkpoint, directory: Path, format: Format, card: Card) -> dict[Path, str]:
    """Write a classifier, which xrep reads back bit by bit, or the encoder of a translation model for transformers."""
    text, annotation = checkpoint.text, checkpoint.text.annotation
    if format != "hf":
        what, cure = "a translation model", "set `format` to xrep, or to hf for its encoder alone"
        if annotation is not None:
            what, cure = "a classifier", "set `format` to hf or xrep"
        raise UserError(f"{what}, which {format} does not have", path=checkpoint.path, cure=cure)
    model = load_model(checkpoint)
    reading = read_by(text, open_tokenizers(checkpoint.path / TOKENIZER), "source")
    if annotation is None:
        languages, pipeline = text.source_languages, "feature-extraction"
        loading = opening_line(model.encoder.library_class, str(directory), languages)
        about = f"The encoder of a model trained with xrep to translate from {', '.join(languages)}; the decoder is"
        about += " left out. It gives a vector for each token."
    else:
        if not isinstance(model, Classifier):
            raise UserError("its model comes from a plugin", path=checkpoint.path, cure="set `format` to xrep")
        if annotation.kind == "label" and model.config.pooling != "cls":
            read = f"predicted from the {model.config.pooling} of token vectors, transformers reads [CLS]"
            raise UserError(f"its labels are {read}", path=checkpoint.path, cure="set `format` to xrep")
        languages, pipeline = text.languages, PIPELINES[annotation.kind]
        loading = opening_line(f"AutoModel{CLASSES[annotation.kind]}", str(directory), [])
        predicted = ", ".join(annotation.labels) or "answers to questions"
        about = f"A classifier, trained with xrep; it predicts {predicted}."
    with naming(directory), directory_aside(directory) as aside:
        if annotation is None:
            write_huggingface(aside, model.encoder, **reading)
        else:
            write_classifier(aside, model.encoder, annotation, model.state_dict())
            reading["save_tokenizer"](aside)
        paragraphs = [about, python_lines(loading), *frozen_types(model.encoder)]
        identity = partial(fingerprint, model, text)
        card.write(aside, directory.name, paragraphs, ("transformers", pipeline), languages, identity)
    return {directory: loading}
