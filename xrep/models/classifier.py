"""Classifier: an encoder and a head that predicts a label of a text, a tag of each word, or an answer in a context."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch, Vocabulary
from xrep.errors import UserError
from xrep.interop.classifiers import read_classifier
from xrep.models.model import ClassifyingModel, Origin
from xrep.models.start import EncoderOptions, check_vocabulary, encoder_shape, load_start, shape_from
from xrep.nn.encoder import Encoder, TransformerEncoder, initialise
from xrep.nn.layers import Linear
from xrep.nn.pooling import Pooling, pool
from xrep.text.sides import SHARED, Tokenizers
from xrep.text.tokenizer import Tokenizer

SPAN_OUTPUTS = 2
"""Outputs of each token in question answering: how well an answer begins there, and how well it ends there."""


class Classifier(ClassifyingModel):
    """An encoder with a linear head, as in BERT (Devlin et al., 2019) and XLM-R.

    - ``label``: the [CLS] vector (``pooling``) of a text, or of a pair that is read as one sequence (HiCTL 3.2, DAP
      4.6), passes a dense layer with tanh and dropout before the linear layer.
    - ``tags``: the linear layer reads every token vector; the first subword of a word stands for it.
    - ``span``: two outputs of each token, the beginning and the end of the answer.

    Args:
        architecture: The result of ``architecture`` of a saved model, to build it again without its pretrained
            directory.

    Raises:
        UserError: The text has no annotation, sequences may be longer than the position table, or a pretrained
            directory cannot be read or does not fit the text.
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions):
        pooling: Pooling = "cls"
        """What the label of a text is predicted from: the vector of [CLS], which HiCTL and DAP read, or the mean or the
        maximum of the token vectors, which suits an encoder that was trained with it and is frozen (CMLM)."""

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.text, self.origins = config, text, dict[str, Origin]()
        if text.annotation is None:
            cure = "choose the `task` classification, tagging or question_answering"
            raise UserError("a classifier needs annotated text", cure=cure)
        self.annotation = text.annotation
        vocabulary = text.vocabulary(SHARED)
        start = config.starts.get(SHARED) if architecture is None else None
        if architecture is None:
            architecture = {"encoder": encoder_shape(config, vocabulary, start).as_dict()}
        self._architecture = architecture
        shape = shape_from(architecture["encoder"])
        if text.max_length > shape.max_positions:
            problem = f"sequences may have {text.max_length} subwords, the model has {shape.max_positions} positions"
            raise UserError(problem, cure="lower `max_length`")
        check_vocabulary(shape, vocabulary, SHARED)
        self.encoder = Encoder.build(shape, **config.rates)
        outputs = SPAN_OUTPUTS if self.annotation.kind == "span" else len(self.annotation.labels)
        self.dense = Linear(shape.hidden_size, shape.hidden_size) if self.annotation.kind == "label" else None
        self.output = Linear(shape.hidden_size, outputs)
        self.dropout = nn.Dropout(config.dropout)
        for layer in filter(None, (self.dense, self.output)):
            initialise(layer, 0.02)
        if start is not None:
            self.origins["encoder"] = load_start(self.encoder, start, config.pretrained_layers)

    def architecture(self) -> dict[str, Any]:
        return self._architecture

    def forward(self, tokens: TokenBatch) -> Tensor:
        if self.dense is None:
            return self.output(self.dropout(self.encoder(tokens)))
        if self.config.pooling == "cls" and isinstance(self.encoder, TransformerEncoder):
            vectors = self.encoder(tokens, first_only=True).squeeze(1)
        else:
            vectors = pool(self.encoder(tokens), tokens.mask, self.config.pooling)
        return self.output(self.dropout(torch.tanh(self.dense(self.dropout(vectors)))))


def load_classifier(directory: Path) -> tuple[Classifier, TextSpec, Tokenizers]:
    """Load a classifier from a directory of transformers; a UserError if there is none of BERT, RoBERTa or XLM-R in it,
    or a file is damaged."""
    head = read_classifier(directory)
    config, tokenizer = Classifier.Config(encoder=str(directory)), Tokenizer.load(directory)
    vocabularies, longest = {SHARED: Vocabulary.of(tokenizer)}, config.starts[SHARED].max_length
    text = TextSpec(vocabularies=vocabularies, max_length=longest, annotation=head.annotation)
    model = Classifier(config, text)
    missing, unexpected = model.load_state_dict(head.tensors, strict=False)
    if unexpected or any(name.startswith(("dense.", "output.")) for name in missing):
        raise UserError("its head has other tensors", path=directory, cure="fetch the directory again")
    return model.eval(), text, {SHARED: tokenizer}
