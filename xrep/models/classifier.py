"""Classifier: an encoder and a head that predicts a label of a text, a tag of each word, or an answer in a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xrep.data.batching import TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.models.model import ClassifyingModel
from xrep.models.start import check_vocabulary, encoder_shape, find_start, shape_from
from xrep.nn.encoder import Encoder, initialise
from xrep.nn.layers import Linear, Norm
from xrep.nn.pooling import Pooling, pool
from xrep.text.sides import SHARED

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
    class Config:
        encoder: str | None = None
        """Pretrained encoder to start from: RUN/best, or RUN/best/target of a run with two towers; a directory of
        Hugging Face or sentence-transformers, or a name in the local Hugging Face cache. The model uses its sizes and
        its tokenizer."""
        encoder_type: str = "auto"
        """Implementation of the encoder: transformer (xrep's own: BERT, RoBERTa, XLM-R), transformers (the library, pip
        install 'xrep[hf]', for any other encoder), or auto, which chooses xrep's own if it can."""
        pretrained_layers: int | None = None
        """Number of first layers of the pretrained encoder to use; none: all."""
        layers: int = 6
        """Number of transformer layers. This and the sizes below apply only to an encoder that is not pretrained."""
        hidden_size: int = 512
        """Width of the token vectors."""
        heads: int = 8
        """Number of attention heads."""
        feedforward_size: int = 2048
        """Width of the feed-forward networks."""
        norm: Norm = "post"
        """Position of layer normalisation: after each sublayer (post, as in BERT) or before it (pre)."""
        max_positions: int = 512
        """Maximum length of a sequence in subwords, including special tokens."""
        pooling: Pooling = "cls"
        """What the label of a text is predicted from: the vector of [CLS], which HiCTL and DAP read, or the mean or the
        maximum of the token vectors, which suits an encoder that was trained with it and is frozen (CMLM)."""
        dropout: float = 0.1
        """Dropout rate of embeddings, sublayer outputs and the input of the head."""
        attention_dropout: float = 0.1
        """Dropout rate of attention weights."""

        def problems(self) -> list[str]:
            sizes = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions", "pretrained_layers")
            given = {name: value for name in sizes if (value := getattr(self, name)) is not None}
            problems = [f"{name} must be at least 1, not {value}" for name, value in given.items() if value < 1]
            if not problems and not self.encoder and self.hidden_size % self.heads:
                problems.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
            rates = {name: getattr(self, name) for name in ("dropout", "attention_dropout")}
            return problems + [f"{name} must lie in [0, 1), not {x}" for name, x in rates.items() if not 0 <= x < 1]

        def tokenizers(self) -> dict[str, str]:
            """Return the folder of the pretrained encoder's tokenizer by side; empty if there is none.

            Raises:
                UserError: The pretrained encoder does not exist.
            """
            return {SHARED: str(find_start(self.encoder, self.encoder_type).tokenizer)} if self.encoder else {}

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.text, self.notes = config, text, list[str]()
        if text.annotation is None:
            cure = "choose the `task` classification, tagging or question_answering"
            raise UserError("a classifier needs annotated text", cure=cure)
        self.annotation = text.annotation
        vocabulary = text.vocabulary(SHARED)
        start = find_start(config.encoder, config.encoder_type) if config.encoder and architecture is None else None
        if architecture is None:
            architecture = {"encoder": encoder_shape(config, vocabulary, start).as_dict()}
        self._architecture = architecture
        shape = shape_from(architecture["encoder"])
        if text.max_length > shape.max_positions:
            problem = f"sequences may have {text.max_length} subwords, the model has {shape.max_positions} positions"
            raise UserError(problem, cure="lower `max_length`")
        check_vocabulary(shape, vocabulary, SHARED)
        self.encoder = Encoder.build(shape, dropout=config.dropout, attention_dropout=config.attention_dropout)
        outputs = SPAN_OUTPUTS if self.annotation.kind == "span" else len(self.annotation.labels)
        self.dense = Linear(shape.hidden_size, shape.hidden_size) if self.annotation.kind == "label" else None
        self.output = Linear(shape.hidden_size, outputs)
        self.dropout = nn.Dropout(config.dropout)
        for layer in filter(None, (self.dense, self.output)):
            initialise(layer, 0.02)
        if start is not None:
            state, unused = start.state(config.pretrained_layers)
            self.encoder.load_state_dict(state)
            left = f"; not used: {len(unused)} of its tensors" if unused else ""
            self.notes.append(f"encoder: {len(state)} tensors of {start.path}, encoder type {shape.type}{left}")

    def architecture(self) -> dict[str, Any]:
        """Return the sizes of the encoder as plain data, which is saved beside the weights."""
        return self._architecture

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Return the logits: [N, labels] of texts, [N, T, tags] of words, or [N, T, 2] of the answers' ends."""
        states = self.encoder(tokens)
        if self.dense is None:
            return self.output(self.dropout(states))
        vectors = pool(states, tokens.mask, self.config.pooling)
        return self.output(self.dropout(torch.tanh(self.dense(self.dropout(vectors)))))
