"""Export of an encoder to directories that other libraries or xrep can load."""

from __future__ import annotations

import json
import shutil
import timeit
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from xrep.config import to_yaml
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside, naming
from xrep.inference.ctranslate import export_ctranslate2
from xrep.inference.encoder_files import Format, opening_line
from xrep.inference.model_card import README, write_card
from xrep.inference.sentence_encoder import SentenceEncoder, encoder_of
from xrep.inference.settings import ExportOptions
from xrep.inference.smaller import trim_vocabulary
from xrep.inference.static import distil
from xrep.interop.sentence_modules import PROMPTS
from xrep.models.averaging import average_last
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
from xrep.models.kinds import PRETRAINED, kind_of, model_class
from xrep.models.model import Model, SentenceModel
from xrep.nn.layers import is_quantised, quantise_layers
from xrep.text.sides import open_tokenizers, save_tokenizers, tokenizer_of


def export_path(
    path: str | Path,
    directory: str | Path,
    format: Any,
    *,
    note: Callable[[str], object] = lambda line: None,
    **changes: Any,
) -> dict[Path, str]:
    """Write a model to ``directory``: of a checkpoint, of what ``SentenceEncoder.load`` accepts or, with ``average``,
    of the directory of a run. The ``format`` and the ``changes`` are ``ExportOptions``; ``note`` gets lines that say
    what a smaller vocabulary saves.

    Returns:
        The directories written, each with a line of Python that loads it.

    Raises:
        UserError: There is no encoder, no projection, or too few checkpoints, or as ``SentenceEncoder.save``.
    """
    options, directory = ExportOptions(format=format, **changes), Path(directory)
    format, average, pooling, layer = options.format, options.average, options.pooling, options.layer
    if (pooling or options.no_projection) and format in ("hf", "xrep", "int8", "ctranslate2"):
        problem = f"`pooling` and `no_projection` are for the format sentence-transformers and graphs, not for {format}"
        raise UserError(problem, cure="leave `format` out")
    if layer is not None and format in ("xrep", "int8", "ctranslate2"):
        raise UserError("`layer` is for encoders in the formats of other libraries", cure="leave `format` out")
    if options.precision == "int8" and format != "ctranslate2":
        cure = "set `format` to ctranslate2, or to int8 without `precision`"
        raise UserError(f"`precision` is for the format ctranslate2, not for {format}", cure=cure)
    checkpoint, facts = None, {"license": options.license, "results": options.results}
    if average is not None:
        checkpoint = average_last(path, average)
    elif Path(path, MANIFEST).is_file():
        checkpoint = open_checkpoint(path)
    if checkpoint is not None and checkpoint.is_quantised and (format != "xrep" or options.vocabulary_from):
        becomes = "smaller" if options.vocabulary_from else format
        raise UserError(f"in int8, which cannot become {becomes}", path=path, cure="export the original, or to xrep")
    is_encoder = checkpoint is None or issubclass(model_class(checkpoint.path) or SentenceModel, SentenceModel)
    for name, given in (("vocabulary_from", options.vocabulary_from), ("layer", layer is not None)):
        if given and not is_encoder:
            raise UserError(f"`{name}` is for sentence encoders", path=path, cure="leave it out")
    if (format == "xrep" or format == "int8") and not options.vocabulary_from:
        return _write_checkpoint(path, checkpoint, None, directory, format, **facts)
    if format == "ctranslate2":
        return export_ctranslate2(path, checkpoint, directory, options.precision, **facts)
    if checkpoint is not None and not is_encoder:
        return _write_for_transformers(checkpoint, directory, format, **facts)
    check_new_directory(directory)  # before work that may take long
    encoder = SentenceEncoder.load(path, device="cpu") if checkpoint is None else encoder_of(checkpoint)
    counts, before = None, _sizes(encoder)
    if format == "static":
        encoder.prompts, encoder.default_prompt_name = {}, None  # which a static encoder does not have
    if options.vocabulary_from:
        encoder, counts = trim_vocabulary(encoder, options.vocabulary_from, options.keep)
    if pooling is not None:
        encoder.model.use_pooling(pooling)
    if options.no_projection:
        if not encoder.model.projections:
            raise UserError("has no projection to leave out", path=path, cure="export it without `no_projection`")
        encoder.model.leave_out_projections()
    if layer is not None:
        encoder.model.use_layer(layer)
    if format == "static":
        encoder = distil(encoder, options.static_size, counts)
    after = _sizes(encoder)
    if format == "xrep" or format == "int8":
        written = _write_checkpoint(path, checkpoint, encoder, directory, format, **facts)
    else:
        kind: Format = "sentence-transformers" if format == "static" else format
        written = encoder.save(directory, kind, **facts)
    if options.vocabulary_from:
        note(f"{before} -> {after}")
        if kind_of(directory) in (*PRETRAINED, SentenceModel.kind) and format != "int8":
            note(f"time to load: {_seconds(encoder.path):.2f} s -> {_seconds(directory):.2f} s")
    return written


def _sizes(encoder: SentenceEncoder) -> str:
    """Return the sizes of an encoder's vocabularies and weights as a text."""
    pieces = " + ".join(f"{vocabulary.size:,}" for vocabulary in encoder.text.vocabularies.values())
    return f"{pieces} subwords, {4e-6 * sum(part.numel() for part in encoder.model.parameters()):.1f} MB in float32"


def _seconds(path: str | Path) -> float:
    """Return how long the fastest of three loads takes."""
    return min(timeit.repeat(lambda: SentenceEncoder.load(path, device="cpu"), number=1, repeat=3))


def _write_checkpoint(
    path: str | Path,
    checkpoint: Checkpoint | None,
    encoder: SentenceEncoder | None,
    directory: Path,
    format: Literal["xrep", "int8"],
    **facts: Any,
) -> dict[Path, str]:
    """Write a checkpoint without what training alone needs or, if it is None, the pretrained encoder at ``path`` as
    one; with the model and the tokenizers of ``encoder``, unless that is None."""
    check_new_directory(directory)
    with TemporaryDirectory() as name:
        folder = Path(name)
        if checkpoint is None:
            encoder = encoder or SentenceEncoder.load(path, device="cpu")
            path, model, identity = Path(encoder.path), encoder.model, encoder.fingerprint
            text = encoder.text if encoder.text.languages else replace(encoder.text, source_languages=encoder.languages)
            options = replace(model.config, encoder=None, source_encoder=None, target_encoder=None)
            config = to_yaml({"model": {"name": "dual_encoder", **asdict(options)}})
            save, kept = partial(save_tokenizers, encoder.tokenizers), [path / PROMPTS]
        else:
            path = checkpoint.check(PROMPTS).path
            model, text = (encoder.model, encoder.text) if encoder else (load_model(checkpoint), checkpoint.text)
            identity = partial(fingerprint, model, text)
            config = checkpoint.file(CONFIG).read_text(encoding="utf-8")
            kept = [*checkpoint.training_hashes, path / PROMPTS]
            tokenizers = encoder and partial(save_tokenizers, encoder.tokenizers)
            save = tokenizers or partial(shutil.copytree, checkpoint.tokenizer)
        if format == "int8":
            quantise_layers(model)
        loading = model.opening.format(path=json.dumps(str(directory)))
        quantised = " The weights of its transformer layers are in int8." if is_quantised(model) else ""
        facts |= {"name": directory.name, "path": path, "fingerprint": identity, "lines": [loading]}
        write_card(folder, ("xrep", model.pipeline), text.languages, **facts, about=f"A model of xrep.{quantised}")
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


def _write_for_transformers(checkpoint: Checkpoint, directory: Path, format: str, **facts: Any) -> dict[Path, str]:
    """Write a model that is no sentence encoder as it writes itself for transformers."""
    path, text, named = checkpoint.path, checkpoint.text, checkpoint.model_options["name"]
    written_part = (model_class(path) or Model).in_transformers
    if format != "hf" or written_part is None:
        cure = "set `format` to xrep" + ("" if written_part is None else f", or to hf for {written_part}")
        raise UserError(f"its model {named!r} cannot be exported to {format}", path=path, cure=cure)
    model: Model = load_model(checkpoint)
    tokenizer = tokenizer_of(open_tokenizers(checkpoint.tokenizer), "source")
    facts |= {"name": directory.name, "path": path, "fingerprint": partial(fingerprint, model, text)}
    with naming(directory), directory_aside(directory) as aside:
        try:
            written = model.write_for_transformers(aside, tokenizer, text.max_length)
        except UserError as error:
            raise UserError(error.problem, path=error.path or path, cure=error.cure) from None
        loading = opening_line(written.opening, str(directory), written.languages)
        kind, languages = ("transformers", written.pipeline), written.languages or text.languages
        write_card(aside, kind, languages, [written.encoder], **facts, about=written.about, lines=[loading])
    return {directory: loading}
