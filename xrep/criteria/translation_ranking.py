"""Translation ranking: each pair is compared with all other pairs of its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.data.batching import PairBatch, TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.model import SentenceModel
from xrep.tasks.task import PAIRS


class TranslationRanking(ContrastiveCriterion):
    """Rank each sentence's translation above the other sentences of the batch (Yang et al. 2019).

    This is additive margin softmax: a sentence x and its translation y have the loss -log e^((x.y - m)/tau) / (e^((x.y
    - m)/tau) + sum over the other sentences y' of the batch e^(x.y'/tau)), where m is the margin and tau the
    temperature; in the other direction the sum is over x'. It is the baseline of dual momentum contrast, the bitext
    retrieval loss of CMLM (section 4.2: the losses of both directions are added; 4.4: margin 0.3) and L_TR of DAP
    (equation 5: only from source to target).
    """

    reads = PAIRS

    @dataclass(kw_only=True)
    class Config:
        temperature: float = 0.05
        """Similarities are divided by this value. It must be above 0."""
        margin: float = 0.0
        """Subtracted from the similarity of translations, so that it must exceed the others by this margin. CMLM uses
        0.3, DAP no margin. It must be at least 0."""
        margin_scale: Literal["similarity", "logit"] = "similarity"
        """Scale of the margin. similarity: it is subtracted before similarities are divided by the temperature. logit:
        it is subtracted afterwards, as in DAP's released code."""
        directions: Literal["both", "forward"] = "both"
        """both: find the target from the source and the source from the target, and add the losses. forward: only find
        the target (DAP)."""
        mask_equal_sentences: bool = False
        """Do not use two pairs that share a sentence as each other's negatives. Turn it on if sentences repeat."""
        cross_rank_negatives: bool = True
        """With several ranks, the pairs of all ranks are negatives. Off: only those of the rank's own part."""

        def problems(self) -> list[str]:
            problems = [] if self.temperature > 0 else [f"temperature must be above 0, not {self.temperature}"]
            return problems + ([] if self.margin >= 0 else [f"margin must be at least 0, not {self.margin}"])

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__()
        self.config = config

    def plan_rows(self, batch: PairBatch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"translation_ranking": len(batch)})

    def encode(self, model: Any, planned: Planned) -> Encoded:
        batch = planned.batch
        return Encoded(model.encode_pair(batch.source, batch.target))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        batch = planned.batch
        config = self.config
        source, target = vectors
        result = inbatch_infonce(
            source,
            target,
            config.temperature,
            margin=config.margin * (config.temperature if config.margin_scale == "logit" else 1.0),
            ids=batch.ids if config.mask_equal_sentences else None,
            group=current_group() if config.cross_rank_negatives else None,
        )
        loss, correct = result.forward, result.forward_correct
        if config.directions == "both":
            loss, correct = loss + result.backward, torch.cat([correct, result.backward_correct])
        return Loss({"translation_ranking": Term(loss.sum())}, {"accuracy": percentage(correct)})
