"""Contrastive learning on triplets: supervised SimCSE with hard negatives."""

from __future__ import annotations

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
    Config = InBatch

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        return Encoded(sentence_vectors(model, planned.batch))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        anchor, positive, negative = vectors
        options = self.config.options(planned)
        result = triplet_infonce(anchor, positive, negative, self.config.temperature, **options)
        return Loss({self.term: Term(result.loss.sum())}, {"accuracy": percentage(result.correct)})
