"""Classifiers from directories of transformers."""

from __future__ import annotations

from pathlib import Path

from xrep.data.batching import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.interop.classifiers import read_classifier
from xrep.models.classifier import Classifier
from xrep.models.start import find_start
from xrep.text.pretrained_tokenizer import maximum_length
from xrep.text.sides import SHARED, Tokenizers
from xrep.text.tokenizer import Tokenizer

HEAD = ("dense.", "output.")
"""Beginnings of the names of the tensors that a classifier has above its encoder."""


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
