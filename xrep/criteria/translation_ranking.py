"""Translation ranking: each pair against all others of its batch, in both directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from xrep.criteria.criterion import Criterion, Loss, Term, percentage
from xrep.data.batching import PairBatch, TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce


class TranslationRanking(Criterion):
    """Bidirectional in-batch softmax: the baseline that dual momentum contrast is compared with."""

    @dataclass(kw_only=True)
    class Config:
        temperature: float = 0.05
        """Similarities are divided by it."""
        mask_equal_sentences: bool = False
        """Two pairs that share a sentence are not each other's negatives; turn it on where sentences repeat."""
        cross_rank_negatives: bool = True
        """On several ranks the pairs of all are negatives; else those of a rank's own part of the batch alone."""

        def problems(self) -> list[str]:
            return [] if self.temperature > 0 else [f"temperature must be above 0, not {self.temperature}"]

    def __init__(self, config: Config, model: nn.Module, text: TextSpec) -> None:
        super().__init__()
        self.config = config

    def sizes(self, batch: PairBatch) -> dict[str, float]:
        return {"translation_ranking": len(batch)}

    def forward(self, model: nn.Module, batch: PairBatch) -> Loss:
        source, target = model.encode_pair(batch.source, batch.target)
        ids = batch.ids if self.config.mask_equal_sentences else None
        group = current_group() if self.config.cross_rank_negatives else None
        result = inbatch_infonce(source, target, self.config.temperature, ids=ids, group=group)
        loss = (result.forward + result.backward).sum()
        correct = torch.cat([result.forward_correct, result.backward_correct])
        return Loss({"translation_ranking": Term(loss)}, {"accuracy": percentage(correct)})
