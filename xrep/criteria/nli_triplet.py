"""Contrastive learning on triplets: supervised SimCSE with hard negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.in_batch import InBatch
from xrep.criteria.nli import sentence_vectors
from xrep.kernels.triplet_infonce import triplet_infonce
from xrep.models.model import SentenceModel
from xrep.tasks.task import ExampleKind


class NliTriplet(ContrastiveCriterion):
    """Each anchor finds the sentence that it entails; its negatives are all other positives and all contradictions.

    This is equation 5 of Gao et al., 2021 (supervised SimCSE); frozen_source uses it for fine-tuning (section 4.2.3).

    Use:
        - Needs: inference data with an entailed and a contradicting sentence of each premise (task nli, form triplets).
        - Choose it: to fine-tune an encoder for semantic similarity.
        - Related: simcse needs no labels; nli trains a classifier; translation_ranking has translations for positives.

    Example:
        ```sh
        xrep-train nli/ --task nli --form triplets --criterion nli_triplet --towers shared
        ```
    """

    reads = (ExampleKind.TRIPLETS,)
    exchanges = True
    term = "nli_triplet"

    @dataclass(kw_only=True)
    class Config(InBatch):
        hard_negative_weight: Annotated[float, "(0, 1000000]"] = 1.0
        """alpha: weight of the anchor's own contradiction, relative to the other negatives (Gao et al., 2021: 1 is the
        best of 0.5, 1 and 2)."""

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        return Encoded(sentence_vectors(model, planned.batch))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        config, options = self.config, self.config.options(planned)
        (anchor, positive, negative), weight = vectors, config.hard_negative_weight
        result = triplet_infonce(anchor, positive, negative, config.temperature, weight=weight, **options)
        return Loss({self.term: Term(result.loss.sum())}, {"accuracy": percentage(result.correct)})
