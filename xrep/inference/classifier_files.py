"""Classifiers as directories of transformers: export, and loading."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from xrep.data.batching import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.files import directory_aside, naming
from xrep.inference.encoder_files import opening_line
from xrep.inference.model_card import Card, frozen_types
from xrep.interop.classifiers import CLASSES, read_classifier, write_classifier
from xrep.models.classifier import Classifier
from xrep.models.directory import TOKENIZER, Checkpoint, fingerprint, load_model
from xrep.models.start import find_start
from xrep.text.pretrained_tokenizer import maximum_length, save_as_huggingface
from xrep.text.sides import SHARED, Tokenizers, open_tokenizers
from xrep.text.tokenizer import Tokenizer

HEAD = ("dense.", "output.")
PIPELINES = {"label": "text-classification", "tags": "token-classification", "span": "question-answering"}
"""The Hub's name of what a classifier does, for each kind of annotation."""


def export_classifier(checkpoint: Checkpoint, directory: Path, format: str, card: Card) -> dict[Path, str]:
    """Write the classifier of a checkpoint as a directory that transformers loads, and xrep reads back bit by bit.

    Args:
        format: ``hf``; other formats have no classifiers.
        card: What the model card says besides.

    Raises:
        UserError: ``directory`` is not empty, or the format or transformers has no counterpart.
    """
    if format != "hf":
        problem, cure = f"a classifier, which {format} does not have", "set `format` to hf or xrep"
        raise UserError(problem, path=checkpoint.path, cure=cure)
    model = load_model(checkpoint)
    if not isinstance(model, Classifier):
        raise UserError("its model comes from a plugin", path=checkpoint.path, cure="set `format` to xrep")
    if model.annotation.kind == "label" and model.config.pooling != "cls":
        problem = f"its labels are predicted from the {model.config.pooling} of token vectors, transformers reads [CLS]"
        raise UserError(problem, path=checkpoint.path, cure="set `format` to xrep")
    tokenizer = open_tokenizers(checkpoint.path / TOKENIZER)[SHARED]
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(HEAD)}
    with naming(directory), directory_aside(directory) as aside:
        write_classifier(aside, model.encoder, model.annotation, head)
        save_as_huggingface(tokenizer, aside, checkpoint.text.max_length)
        labels = ", ".join(model.annotation.labels) or "answers to questions"
        loading = opening_line(f"AutoModel{CLASSES[model.annotation.kind]}", str(directory), [])
        about, details = f"A classifier, trained with xrep; it predicts {labels}.", frozen_types(model.encoder)
        kind, identity = (
            ("transformers", PIPELINES[model.annotation.kind]),
            partial(fingerprint, model, checkpoint.text),
        )
        card.write(aside, directory.name, about, [loading], details, kind, checkpoint.text.languages, identity)
    return {directory: loading}


def load_classifier(directory: Path) -> tuple[Classifier, TextSpec, Tokenizers]:
    """Load a classifier from a directory of transformers.

    Raises:
        UserError: There is no classifier of BERT, RoBERTa or XLM-R in it, or a file is damaged.
    """
    head = read_classifier(directory)
    start, tokenizer = find_start(str(directory)), Tokenizer.load(directory)
    length = min(maximum_length(directory) or start.shape.max_positions, start.shape.max_positions)
    text = TextSpec(vocabularies={SHARED: Vocabulary.of(tokenizer)}, max_length=length, annotation=head.annotation)
    model = Classifier(Classifier.Config(encoder=str(directory)), text)
    missing, unexpected = model.load_state_dict(head.tensors, strict=False)
    if unexpected or any(name.startswith(HEAD) for name in missing):
        raise UserError("its head has other tensors", path=directory, cure="fetch the directory again")
    return model.eval(), text, {SHARED: tokenizer}
