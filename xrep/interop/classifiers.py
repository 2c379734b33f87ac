"""Classifiers as transformers saves them: BERT and XLM-R with a head for texts, words or answers.

Source of the layouts: ``BertFor{SequenceClassification,TokenClassification,QuestionAnswering}`` and the same of XLM-R
in transformers. In BERT, the dense layer below the classes is the pooler; in XLM-R, it belongs to the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from xrep.data.batch import Annotation
from xrep.errors import UserError
from xrep.files import write_json
from xrep.nn.bert import CONFIG
from xrep.nn.encoder import Encoder
from xrep.nn.weights import SAFETENSORS, Weights, read_json, save_tensors

Kind = Literal["label", "tags", "span"]
CLASSES: dict[Kind, str] = {
    "label": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
PREFIXES = {"bert": ("Bert", "bert."), "xlm-roberta": ("XLMRoberta", "roberta.")}
"""The beginning of the names of each family's classes, and that of the names of its encoder's tensors."""
HEADS: dict[tuple[str, str], dict[str, str]] = {
    ("bert", "label"): {"dense": "bert.pooler.dense", "output": "classifier"},
    ("xlm-roberta", "label"): {"dense": "classifier.dense", "output": "classifier.out_proj"},
    ("bert", "tags"): {"output": "classifier"},
    ("xlm-roberta", "tags"): {"output": "classifier"},
    ("bert", "span"): {"output": "qa_outputs"},
    ("xlm-roberta", "span"): {"output": "qa_outputs"},
}
"""Layers of our head, and their names in transformers."""


@dataclass(frozen=True)
class Head:
    """What a directory says of its head: the annotation that it predicts, and its tensors under our names."""

    annotation: Annotation
    tensors: dict[str, Tensor]


def write_classifier(directory: Path, encoder: Encoder, annotation: Annotation, head: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors`` of a classifier for transformers.

    Args:
        head: The tensors ``dense.weight``, ``dense.bias`` (of labels), ``output.weight`` and ``output.bias``.

    Raises:
        UserError: Transformers has no counterpart of the encoder.
    """
    config, tensors = encoder.to_huggingface(encoder.shape.layers)
    family = config["model_type"]
    if family not in PREFIXES:
        problem = f"classifiers above encoders of the family {family} cannot be exported"
        raise UserError(problem, cure="train one above BERT, RoBERTa or XLM-R, or use it with xrep")
    name, prefix = PREFIXES[family]
    config["architectures"] = [name + CLASSES[annotation.kind]]
    if annotation.labels:
        config["id2label"] = {str(number): label for number, label in enumerate(annotation.labels)}
        config["label2id"] = {label: number for number, label in enumerate(annotation.labels)}
        config["problem_type"] = "single_label_classification"
    named = {prefix + key: tensor for key, tensor in tensors.items()}
    for ours, theirs in HEADS[family, annotation.kind].items():
        named |= {f"{theirs}.{part}": head[f"{ours}.{part}"].float() for part in ("weight", "bias")}
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / CONFIG, config)
    save_tensors(named, directory / SAFETENSORS)


def read_classifier(directory: Path) -> Head:
    """Read the head of a classifier that transformers or ``write_classifier`` saved. Raises UserError if there is no
    such classifier in the directory, or a file is damaged."""
    path = directory / CONFIG
    config = read_json(path)
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    family = str(config.get("model_type")).replace("roberta", "xlm-roberta").replace("xlm-xlm-", "xlm-")
    kind: Kind | None = next((own for own in CLASSES if str(name).endswith(CLASSES[own])), None)
    if kind is None or family not in PREFIXES:
        problem = f"no classifier of BERT, RoBERTa or XLM-R (architectures: {name})"
        raise UserError(problem, path=path, cure="give one with a head for sequences, tokens or questions")
    labels = [] if kind == "span" else _labels(config, path)
    weights, tensors = Weights(directory), dict[str, Tensor]()
    for ours, theirs in HEADS[family, kind].items():
        for part in ("weight", "bias"):
            if f"{theirs}.{part}" not in weights:
                raise UserError(f"no tensor {theirs}.{part}", path=weights.path, cure="fetch the weights again")
            tensors[f"{ours}.{part}"] = weights[f"{theirs}.{part}"].clone()
    return Head(Annotation(kind=kind, labels=labels), tensors)


def _labels(config: dict[str, Any], path: Path) -> list[str]:
    named = config.get("id2label")
    labels = [named.get(str(number)) for number in range(len(named))] if isinstance(named, dict) else []
    if not labels or not all(isinstance(label, str) for label in labels):
        raise UserError("id2label does not name its labels by 0, 1 and so on", path=path, cure="write them so")
    return [str(label) for label in labels]
