"""Export of an encoder to directories that other libraries or xrep can load."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from xrep.config import to_yaml
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, naming
from xrep.inference.encoder_files import Format, opening_line
from xrep.inference.model_card import README, write_card
from xrep.inference.options import ExportOptions
from xrep.inference.sentence_encoder import SentenceEncoder, encoder_of
from xrep.interop.classifiers import CLASSES, write_classifier
from xrep.interop.exported import write_huggingface
from xrep.interop.sentence_modules import PROMPTS
from xrep.models.averaging import average_last
from xrep.models.classifier import Classifier
from xrep.models.directory import (
    CONFIG,
    MANIFEST,
    Checkpoint,
    Snapshot,
    fingerprint,
    load_model,
    open_checkpoint,
    write_checkpoint,
)
from xrep.nn.layers import is_quantised, quantise_layers
from xrep.text.huggingface import save_as_huggingface
from xrep.text.sides import open_tokenizers, save_tokenizers, tokenizer_of

LOADERS = {"sentence encoder": "SentenceEncoder", "translation model": "Translator", "classifier": "SentenceClassifier"}
"""The class of xrep that loads each kind of model."""
PIPELINES = {
    "sentence encoder": "sentence-similarity",
    "translation model": "translation",
    "label": "text-classification",
    "tags": "token-classification",
    "span": "question-answering",
}
"""The Hub's name of what each kind of model does, or a classifier of each kind of annotation."""


def export_path(path: str | Path, directory: str | Path, format: Any, **changes: Any) -> dict[Path, str]:
    """Write a model to ``directory``: of a checkpoint, of what ``SentenceEncoder.load`` accepts or, with ``average``,
    of the directory of a run. The ``format`` and the ``changes`` are ``ExportOptions``.

    Returns:
        The directories written, each with a line of Python that loads it.

    Raises:
        UserError: There is no encoder, no projection, or too few checkpoints, or as ``SentenceEncoder.save``.
    """
    options, directory = ExportOptions(format=format, **changes), Path(directory)
    format, average, pooling, layer = options.format, options.average, options.pooling, options.layer
    if (pooling or options.no_projection) and format in ("hf", "xrep", "int8"):
        problem = f"`pooling` and `no_projection` are for the format sentence-transformers and graphs, not for {format}"
        raise UserError(problem, cure="leave `format` out")
    if layer is not None and format in ("xrep", "int8"):
        raise UserError("`layer` is for the formats of other libraries", cure="leave `format` out")
    checkpoint, facts = None, {"license": options.license, "results": options.results}
    if average is not None:
        if average < 1:
            raise UserError(f"`average` must be at least 1, not {average}")
        checkpoint = average_last(path, average)
    elif format == "xrep" or Path(path, MANIFEST).is_file():
        checkpoint = open_checkpoint(path)
    if checkpoint is not None and checkpoint.is_quantised and format != "xrep":
        raise UserError(f"in int8, which cannot become {format}", path=path, cure="export the original, or to xrep")
    if format == "xrep" or format == "int8":
        return _write_checkpoint(path, checkpoint, directory, format, **facts)
    if checkpoint is None:
        encoder = SentenceEncoder.load(path, device="cpu")
    elif checkpoint.translates or checkpoint.text.annotation is not None:
        return _write_for_transformers(checkpoint, directory, format, **facts)
    else:
        encoder = encoder_of(checkpoint)
    if pooling is not None:
        encoder.model.pooling = dict.fromkeys(encoder.model.pooling, pooling)
    if options.no_projection:
        if not encoder.model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without `no_projection`")
        encoder.model.projections.clear()
    if layer is not None:
        encoder.model.use_layer(layer)
    return encoder.save(directory, format, **facts)


def _write_checkpoint(
    path: str | Path, checkpoint: Checkpoint | None, directory: Path, format: Literal["xrep", "int8"], **facts: Any
) -> dict[Path, str]:
    """Write a checkpoint without what training alone needs or, if it is None, the pretrained encoder at ``path`` as
    one."""
    check_new_directory(directory)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if checkpoint is None:
            encoder = SentenceEncoder.load(path, device="cpu")
            path, model, text, identity = Path(encoder.path), encoder.model, encoder.text, encoder.fingerprint
            options = replace(model.config, encoder=None, source_encoder=None, target_encoder=None)
            config = to_yaml({"model": {"name": "dual_encoder", **asdict(options)}})
            save, kept = partial(save_tokenizers, encoder.tokenizers), [path / PROMPTS]
        else:
            path, model, text = checkpoint.path, load_model(checkpoint), checkpoint.text
            identity = partial(fingerprint, model, text)
            config = checkpoint.file(CONFIG).read_text(encoding="utf-8")
            save, kept = partial(shutil.copytree, checkpoint.tokenizer), [*checkpoint.training_hashes, path / PROMPTS]
        if format == "int8":
            quantise_layers(model)
        loading = f"import xrep; xrep.{LOADERS[model.kind]}.load({json.dumps(str(directory))})"
        quantised = " The weights of its transformer layers are in int8." if is_quantised(model) else ""
        kind = "xrep", PIPELINES[model.kind if text.annotation is None else text.annotation.kind]
        facts |= {"name": directory.name, "path": path, "fingerprint": identity, "lines": [loading]}
        write_card(folder, kind, text.languages, **facts, about=f"A model of xrep.{quantised}")
        snapshot = Snapshot(
            step=0 if checkpoint is None else checkpoint.step,
            config_yaml=config,
            text=text,
            save_tokenizers=save,
            architecture=model.architecture(),
            model=model.state_dict(),
            files={file.name: file for file in (folder / README, *kept) if file.is_file()},
            precision="int8" if is_quantised(model) else "float32",
        )
        write_checkpoint(directory.absolute(), snapshot)
    return {directory: loading}


def _write_for_transformers(checkpoint: Checkpoint, directory: Path, format: Format, **facts: Any) -> dict[Path, str]:
    """Write a classifier, which xrep reads back bit by bit, or the encoder of a translation model for transformers."""
    path, text, annotation = checkpoint.path, checkpoint.text, checkpoint.text.annotation
    if format != "hf":
        what, cure = "a classifier", "set `format` to hf or xrep"
        if annotation is None:
            what, cure = "a translation model", "set `format` to xrep, or to hf for its encoder alone"
        raise UserError(f"{what}, which {format} does not have", path=path, cure=cure)
    model = load_model(checkpoint)
    tokenizer = tokenizer_of(open_tokenizers(checkpoint.tokenizer), "source")
    if annotation is None:
        languages, pipeline, opening = text.source_languages, "feature-extraction", model.encoder.library_class
        about = f"The encoder of a model trained with xrep to translate from {', '.join(languages)}; the decoder is"
        about += " left out. It gives a vector for each token."
    else:
        if not isinstance(model, Classifier):
            raise UserError("its model comes from a plugin", path=path, cure="set `format` to xrep")
        if annotation.kind == "label" and model.config.pooling != "cls":
            read = f"predicted from the {model.config.pooling} of token vectors, transformers reads [CLS]"
            raise UserError(f"its labels are {read}", path=path, cure="set `format` to xrep")
        languages, pipeline, opening = [], PIPELINES[annotation.kind], f"AutoModel{CLASSES[annotation.kind]}"
        predicted = ", ".join(annotation.labels) or "answers to questions"
        about = f"A classifier, trained with xrep; it predicts {predicted}."
    loading = opening_line(opening, str(directory), languages)
    facts |= {"name": directory.name, "path": path, "fingerprint": partial(fingerprint, model, text)}
    with naming(directory), directory_aside(directory) as aside:
        encoders, kind = [model.encoder], ("transformers", pipeline)
        write_card(aside, kind, languages or text.languages, encoders, **facts, about=about, lines=[loading])
        if annotation is None:
            write_huggingface(aside, model.encoder, tokenizer, max_length=text.max_length)
        else:
            write_classifier(aside, model.encoder, annotation, model.state_dict())
            save_as_huggingface(tokenizer, aside, text.max_length)
    return {directory: loading}
