"""Contrastive learning on triplets: supervised SimCSE with hard negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.nli import sentence_vectors
from xrep.data.batching import TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.triplet_infonce import triplet_infonce
from xrep.models.model import SentenceModel
from xrep.tasks.nli import NliBatch
from xrep.tasks.task import Examples


class NliTriplet(ContrastiveCriterion):
    """Each anchor finds the sentence that it entails; its negatives are all other positives and all contradictions.

    This is equation 5 of Gao et al., 2021; frozen_source uses it for fine-tuning (section 4.2.3).
    """

    reads = (Examples.TRIPLETS,)

    @dataclass(kw_only=True)
    class Config:
        temperature: float = 0.05
        """Similarities are divided by this value (frozen_source, section 4.2.3). It must be above 0."""
        hard_negative_weight: float = 1.0
        """alpha: weight of the anchor's own contradiction, relative to the other negatives (Gao et al., 2021: 1 is the
        best of 0.5, 1 and 2). It must be above 0."""
        mask_equal_sentences: bool = False
        """Remove false negatives between triplets that share a sentence: SNLI repeats its premises."""
        cross_rank_negatives: bool = True
        """With several ranks, the triplets of all ranks give negatives. Off: only those of the rank's own part."""

        def problems(self) -> list[str]:
            values = {name: getattr(self, name) for name in ("temperature", "hard_negative_weight")}
            return [f"{name} must be above 0, not {value}" for name, value in values.items() if not value > 0]

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__()
        self.config = config

    def plan_rows(self, batch: NliBatch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"nli_triplet": len(batch)})

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        batch = planned.batch
        return Encoded(sentence_vectors(model, batch))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        batch = planned.batch
        config = self.config
        anchor, positive, negative = vectors
        result = triplet_infonce(
            anchor,
            positive,
            negative,
            config.temperature,
            weight=config.hard_negative_weight,
            ids=batch.ids if config.mask_equal_sentences else None,
            group=current_group() if config.cross_rank_negatives else None,
        )
        return Loss({"nli_triplet": Term(result.loss.sum())}, {"accuracy": percentage(result.correct)})
