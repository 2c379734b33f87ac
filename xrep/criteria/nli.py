"""Natural language inference: a classifier on the vectors of premise and hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.criteria.criterion import Criterion, Loss, Planned, Term, percentage
from xrep.data.batch import Batch, TextSpec
from xrep.models.model import SentenceModel
from xrep.nn.layers import Linear
from xrep.tasks.task import ExampleKind
from xrep.text.nli import LABELS

FEATURES = ("premise", "hypothesis", "difference", "product")


class Nli(Criterion):
    """Cross-entropy of three classes, predicted from features of the two sentence vectors u and v.

    The features are [u, v, |u - v|, u * v] as in CMLM (4.3), whose classifier is linear.

    Use:
        - Needs: pairs with labels entailment, neutral and contradiction (task nli).
        - Choose it: as a second part of a run, to give a contrastive objective similarity of meaning (dual momentum
            contrast).
        - Related: nli_triplet contrasts the sentences of such data, with harder negatives.
        - Left open: dual momentum contrast (appendix B) uses a two-layer MLP "on top of the sentence representations"
            and does not say what it concatenates. Here it reads the same four features, and ``features`` chooses among
            them (sentence-BERT uses the first three).

    Example:
        ```sh
        xrep-train nli/ --task nli --criterion nli --towers shared --head mlp
        ```
    """

    reads = (ExampleKind.LABELLED_PAIRS,)

    @dataclass(kw_only=True)
    class Config:
        features: list[str] = field(default_factory=lambda: ["premise", "hypothesis", "difference", "product"])
        """Features that the classifier reads: premise u, hypothesis v, difference |u - v| and product u * v."""
        scale_vectors: bool = True
        """Scale vectors to length √D first, so that their components are about 1: a classifier learns more slowly from
        vectors of length 1. Off: vectors stay as the model gives them. The papers do not say what they do."""
        head: Literal["linear", "mlp"] = "linear"
        """Classifier. linear: one layer (CMLM). mlp: two layers with ReLU between them (dual momentum contrast)."""
        head_size: Count = 256
        """Number of hidden units of the mlp."""
        head_dropout: Annotated[float, "[0, 1)"] = 0.1
        """Dropout of the hidden units of the mlp."""

        def problems(self) -> list[str]:
            names = self.features
            if not names or len(set(names)) != len(names) or set(names) - {*FEATURES}:
                known = ", ".join(FEATURES)
                return [f"features must be some of {known}, each once, not {', '.join(names) or 'none'}"]
            return []

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__(config)
        width = len(config.features) * model.output_size
        self.hidden: nn.Module = nn.Identity()
        if config.head == "mlp":
            self.hidden = nn.Sequential(Linear(width, config.head_size), nn.ReLU(), nn.Dropout(config.head_dropout))
            width = config.head_size
        self.output = Linear(width, len(LABELS))

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"nli": len(batch)})

    def forward(self, model: SentenceModel, planned: Planned) -> Loss:
        batch = planned.batch
        scores = self.output(self.hidden(self.features(*sentence_vectors(model, batch))))
        loss = F.cross_entropy(scores, batch.labels, reduction="sum")
        return Loss({"nli": Term(loss)}, {"accuracy": percentage(scores.argmax(dim=1) == batch.labels)})

    def predict(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Return the class of each pair of vectors [B, D], as the model gives them: int64 [B], places in ``LABELS``."""
        return self.output(self.hidden(self.features(premise, hypothesis))).argmax(dim=1)

    def features(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Return the classifier's input, [B, F·D], for vectors [B, D]."""
        if self.config.scale_vectors:
            premise, hypothesis = (F.normalize(side, dim=1) * side.size(1) ** 0.5 for side in (premise, hypothesis))
        features = premise, hypothesis, (premise - hypothesis).abs(), premise * hypothesis
        return torch.cat([features[FEATURES.index(name)] for name in self.config.features], dim=1)


def sentence_vectors(model: SentenceModel, batch: Batch) -> tuple[Tensor, ...]:
    """Return the vectors [B, D] of each column of a batch; every tower reads its sentences in one pass."""
    assert batch.places is not None
    vectors = torch.cat(model.encode_pair(batch.source, batch.target))
    return tuple(vectors.index_select(0, places) for places in batch.places.unbind(1))
