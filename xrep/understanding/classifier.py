"""Classifier: an encoder and a head that predicts a label of a text, a tag of each word, or an answer in a context."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.files import write_json
from xrep.models.model import ForTransformers, Model
from xrep.models.start import StartOptions, build_encoder
from xrep.nn.bert import HF_CONFIG
from xrep.nn.encoder import TransformerEncoder, initialise
from xrep.nn.layers import Linear
from xrep.nn.pooling import Pooling, pool
from xrep.nn.weights import SAFETENSORS, Weights, read_json, save_tensors
from xrep.tasks.task import text_spec
from xrep.text.huggingface import save_as_huggingface
from xrep.text.sides import SHARED, Tokenizers, open_tokenizer
from xrep.text.tokenizer import Tokenizer

_FAMILIES = {"bert": ("Bert", "bert."), "xlm-roberta": ("XLMRoberta", "roberta."), "roberta": ("Roberta", "roberta.")}
"""The beginning of the names of each family's classes in transformers, and that of the names of its encoder's
tensors."""
_TWO_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}
"""The labels of a classifier of transformers whose configuration names none."""
_ONE_OF_SEVERAL = "single_label_classification"
"""What transformers calls the problem of these classifiers; a configuration need not name it."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What a classifier predicts. A task tells it to the model in ``TextSpec.facts``."""

    kind: Literal["label", "tags", "span"]
    """A label of each text (label), a tag of each word (tags), or the part of a text that answers a question (span)."""
    labels: list[str] = field(default_factory=list)
    """The labels or tags, in the order of their numbers."""
    texts: list[int] = field(default_factory=list)
    """How many texts have a label together: [1], [2] for pairs, or both; empty if it is not known."""

    @classmethod
    def of(cls, text: TextSpec) -> Annotation:
        """Return what is predicted of a text. Raises UserError if it is not annotated."""
        if "annotation" not in text.facts:
            cure = "choose the `task` classification, tagging or question_answering"
            raise UserError("a classifier needs annotated text", cure=cure)
        return cls(**text.facts["annotation"])

    def facts(self) -> dict[str, Any]:
        return {"annotation": asdict(self)}


class _Kind(NamedTuple):
    """What is said of classifiers of a kind of annotation: what they predict, the evaluations that measure them, the
    Hub's name of what they do, and the lines of xrep-predict (``form``) with their possible numbers of columns. The
    names of their classes in transformers end with ``library_class``, and ``layers`` are the names of our layers in
    transformers' BERT, where the dense one is the pooler."""

    predicts: str
    evaluations: str
    pipeline: str
    form: str
    columns: Container[int]
    library_class: str
    layers: Mapping[str, str]


ANNOTATIONS = {
    "label": _Kind("labels of texts", "xnli, pawsx or amazon", "text-classification", "text, or text<TAB>text", (1, 2),
                   "ForSequenceClassification", {"dense": "bert.pooler.dense", "output": "classifier"}),
    "tags": _Kind("tags of words", "pos or ner", "token-classification", "words", range(1, sys.maxsize),
                  "ForTokenClassification", {"output": "classifier"}),
    "span": _Kind("answers to questions", "qa", "question-answering", "question<TAB>context", (2,),
                  "ForQuestionAnswering", {"output": "qa_outputs"}),
}  # fmt: skip
_LABEL_LAYERS = {"dense": "classifier.dense", "output": "classifier.out_proj"}
"""The same layers of XLM-R's and RoBERTa's classifiers of texts, whose dense layer belongs to the head."""


class Classifier(Model):
    """An encoder with a linear head, as in BERT (Devlin et al., 2019) and XLM-R.

    - ``label``: the [CLS] vector (``pooling``) of a text, or of a pair that is read as one sequence (HiCTL 3.2, DAP
      4.6), passes a dense layer with tanh and dropout before the linear layer.
    - ``tags``: the linear layer reads every token vector; the first subword of a word stands for it.
    - ``span``: two outputs of each token, the beginning and the end of the answer.

    Attributes:
        annotation: What it predicts.

    Raises:
        UserError: The text has no annotation, sequences may be longer than the position table, or a pretrained
            directory cannot be read or does not fit the text.
    """

    kind = "classifier"
    example = "classifier"
    use = "predict by xrep-predict --path {path}"
    start = "train one from its encoder: xrep-train DATA --task classification --encoder {path}"
    in_transformers = "the encoder and its head"
    opening = "from xrep.understanding import SentenceClassifier; SentenceClassifier.load({path})"

    @dataclass(kw_only=True)
    class Config(StartOptions):
        pooling: Pooling = "cls"
        """What the label of a text is predicted from: the vector of [CLS], which HiCTL and DAP read, or the mean or the
        maximum of the token vectors, which suits an encoder that was trained with it and is frozen (CMLM)."""

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.text, self.annotation = config, text, Annotation.of(text)
        self.pipeline = ANNOTATIONS[self.annotation.kind].pipeline
        self.encoder, self.origins = build_encoder(config, text, SHARED, (architecture or {}).get("encoder"))
        self._architecture = architecture or {"encoder": self.encoder.shape.as_dict()}
        width = self.encoder.shape.hidden_size
        outputs = 2 if self.annotation.kind == "span" else len(self.annotation.labels)
        self.dense = Linear(width, width) if self.annotation.kind == "label" else None
        self.output = Linear(width, outputs)
        self.dropout = nn.Dropout(config.dropout)
        for layer in filter(None, (self.dense, self.output)):
            initialise(layer, 0.02)

    def architecture(self) -> dict[str, Any]:
        return self._architecture

    def forward(self, tokens: TokenBatch) -> Tensor:
        """Return the logits: [N, labels] of texts, [N, T, tags] of words, or [N, T, 2] of the answers' ends."""
        if self.dense is None:
            return self.output(self.dropout(self.encoder(tokens)))
        if self.config.pooling == "cls" and isinstance(self.encoder, TransformerEncoder):
            vectors = self.encoder(tokens, first_only=True).squeeze(1)
        else:
            vectors = pool(self.encoder(tokens), tokens.mask, self.config.pooling)
        return self.output(self.dropout(torch.tanh(self.dense(self.dropout(vectors)))))

    def write_for_transformers(self, directory: Path, tokenizer: Tokenizer, max_length: int) -> ForTransformers:
        annotation, kind = self.annotation, ANNOTATIONS[self.annotation.kind]
        if annotation.kind == "label" and self.config.pooling != "cls":
            read = f"predicted from the {self.config.pooling} of token vectors, transformers reads [CLS]"
            raise UserError(f"its labels are {read}", cure="set `format` to xrep")
        config, tensors = self.encoder.to_huggingface(self.encoder.shape.layers)
        family = config["model_type"]
        if family not in _FAMILIES:
            problem = f"classifiers above encoders of the family {family} cannot be exported"
            raise UserError(problem, cure="train one above BERT, RoBERTa or XLM-R, or use it with xrep")
        name, prefix = _FAMILIES[family]
        config["architectures"] = [name + kind.library_class]
        if annotation.labels:
            config["id2label"] = {str(number): label for number, label in enumerate(annotation.labels)}
            config["label2id"] = {label: number for number, label in enumerate(annotation.labels)}
            config["problem_type"] = _ONE_OF_SEVERAL
        named = {prefix + key: tensor for key, tensor in tensors.items()}
        for ours, theirs in _layers(family, annotation).items():
            named |= {f"{theirs}.{part}": own.float() for part, own in self.get_submodule(ours).state_dict().items()}
        write_json(directory / HF_CONFIG, config)
        save_tensors(named, directory / SAFETENSORS)
        save_as_huggingface(tokenizer, directory, max_length)
        about = f"A classifier, trained with xrep; it predicts {', '.join(annotation.labels) or kind.predicts}."
        opening = f"AutoModel{kind.library_class}"
        return ForTransformers(opening=opening, pipeline=self.pipeline, about=about, encoder=self.encoder)


def load_classifier(directory: Path) -> tuple[Classifier, Tokenizers]:
    """Load a classifier that transformers or ``Classifier.write_for_transformers`` saved. Raises UserError if there is
    none of BERT, RoBERTa or XLM-R in the directory, or a file is damaged."""
    path = directory / HF_CONFIG
    config = read_json(path)
    architectures, family = config.get("architectures"), str(config.get("model_type"))
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    kind: Any = next((own for own in ANNOTATIONS if str(name).endswith(ANNOTATIONS[own].library_class)), None)
    if kind is None or family not in _FAMILIES:
        problem = f"no classifier of BERT, RoBERTa or XLM-R (architectures: {name})"
        raise UserError(problem, path=path, cure="give one with a head for sequences, tokens or questions")
    try:
        named: Any = {} if kind == "span" else config.get("id2label", _TWO_LABELS)
        annotation = Annotation(kind=kind, labels=[str(named[str(number)]) for number in range(len(named))])
    except (KeyError, TypeError):
        problem = "id2label does not name its labels by 0, 1 and so on"
        raise UserError(problem, path=path, cure="write them so") from None
    if kind == "label" and (len(annotation.labels) < 2 or config.get("problem_type") not in (None, _ONE_OF_SEVERAL)):
        problem = "its labels are scores of their own (regression, or several labels at once)"
        raise UserError(problem, path=path, cure="give a classifier that chooses one of several labels")
    tokenizers, options = {SHARED: open_tokenizer(directory)}, Classifier.Config(encoder=str(directory))
    text = text_spec(tokenizers, options.starts[SHARED].max_length, facts=annotation.facts())
    model, weights = Classifier(options, text), Weights(directory)
    for ours, theirs in _layers(family, annotation).items():
        try:
            layer = {part: weights[f"{theirs}.{part}"] for part in ("weight", "bias")}
            model.get_submodule(ours).load_state_dict(layer)
        except (KeyError, RuntimeError):
            problem, cure = f"{theirs} is missing, or of another size", "fetch the directory again"
            raise UserError(problem, path=weights.path, cure=cure) from None
    return model.eval(), tokenizers


def _layers(family: str, annotation: Annotation) -> Mapping[str, str]:
    return _LABEL_LAYERS if family != "bert" and annotation.kind == "label" else ANNOTATIONS[annotation.kind].layers
