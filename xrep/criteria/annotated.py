"""Cross-entropy of annotations: the label of a text, the tag of each word, or the ends of an answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.criterion import Criterion, Loss, Planned, Term, percentage
from xrep.data.batch import Batch
from xrep.data.rows import IGNORED
from xrep.models.model import ClassifyingModel
from xrep.tasks.task import ExampleKind


class AnnotationCriterion(Criterion):
    """Base class of the cross-entropy of a classifier's outputs."""

    needs = ClassifyingModel

    @dataclass(kw_only=True)
    class Config:
        pass


class Classification(AnnotationCriterion):
    """Mean cross-entropy of the labels of texts, or of pairs that are read as one sequence.

    The metric ``accuracy`` is the percentage of texts whose label has the largest logit.
    """

    reads = (ExampleKind.LABELLED_TEXTS,)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"classification": len(batch)})

    def forward(self, model: ClassifyingModel, planned: Planned) -> Loss:
        batch = planned.batch
        return _loss("classification", model(batch.tokens).float(), batch.labels)


class Tagging(AnnotationCriterion):
    """Mean cross-entropy of the tags of words, each predicted from the first subword of its word.

    The metric ``accuracy`` is the percentage of words whose tag has the largest logit.
    """

    reads = (ExampleKind.TAGGED_WORDS,)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"tagging": int((batch.labels != IGNORED).sum())})

    def forward(self, model: ClassifyingModel, planned: Planned) -> Loss:
        batch = planned.batch
        # Tokens without a tag stay in the sums, because their number is not known without waiting for a GPU.
        return _loss("tagging", model(batch.tokens).float().flatten(0, 1), batch.labels.flatten())


class Span(AnnotationCriterion):
    """Mean cross-entropy of the first and of the last token of the answer, among the tokens of its row.

    A row whose window of the context has no answer points at its first token. The metric ``exact`` is the percentage of
    rows in which both ends have the largest logits.
    """

    reads = (ExampleKind.QUESTIONS,)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"span": len(batch)})

    def forward(self, model: ClassifyingModel, planned: Planned) -> Loss:
        batch = planned.batch
        logits = model(batch.tokens).float().masked_fill(~batch.tokens.mask.unsqueeze(-1), -torch.inf)
        ends = [F.cross_entropy(logits[..., end], batch.labels[:, end], reduction="sum") for end in (0, 1)]
        exact = (logits.detach().argmax(dim=1) == batch.labels).all(dim=1)
        return Loss({"span": Term((ends[0] + ends[1]) / 2)}, {"exact": percentage(exact)})


def _loss(name: str, logits: Tensor, labels: Tensor) -> Loss:
    """Return the cross-entropy of logits [N, L], summed over the labels [N] that are not IGNORED."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    counted = labels != IGNORED
    right = (logits.detach().argmax(dim=1) == labels) & counted
    accuracy = 100 * right.sum() / counted.sum().clamp(min=1)
    return Loss({name: Term(loss)}, {"accuracy": accuracy})
