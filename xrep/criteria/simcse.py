"""Unsupervised SimCSE: each sentence is its own positive, encoded twice with different dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.data.batching import PairBatch, TextSpec, TokenBatch
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.model import SentenceModel
from xrep.nn.layers import SelfAttention
from xrep.tasks.task import PAIRS, Task

SIDES = ("source", "target")


class SimCSE(ContrastiveCriterion):
    """Each sentence finds its second encoding, which differs by its dropout alone (Gao et al. 2021, SimCSE).

    The loss is -log e^(h_i.h'_i/tau) / sum_j e^(h_i.h'_j/tau), where h and h' are two encodings of each sentence with
    independent dropout (equation 4 of SimCSE; equation 1 of the frozen source paper with s_i+ = s_i).

    The two sides of bitext are treated as two corpora: the sentences of one side are never negatives of the other's,
    which could be their translations. The objective is the mean over the sentences of both.
    """

    reads = PAIRS

    @dataclass(kw_only=True)
    class Config:
        side: Literal["source", "target", "both"] = "both"
        """Side of the pairs whose sentences are trained on."""
        temperature: float = 0.05
        """Similarities are divided by this value (0.05 in the paper)."""
        mask_equal_sentences: bool = False
        """Do not use two rows with the same sentence as each other's negatives. Off in the paper; turn it on if
        sentences repeat (one side of bitext often does)."""
        cross_rank_negatives: bool = True
        """With several ranks, the sentences of all ranks are negatives. Off: only those of the rank's own part."""

        def problems(self) -> list[str]:
            return [] if self.temperature > 0 else [f"temperature must be above 0, not {self.temperature}"]

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__()
        self.config = config
        self._columns = [number for number, side in enumerate(SIDES) if config.side in (side, "both")]
        self._pad_ids = [text.vocabulary(side).pad_id for side in SIDES]
        self._towers = [model.tower(found[0]) for found in (text.source_languages, text.target_languages)]
        # The tower of the side that is not trained on gets no gradient.
        self.idle_parameters = len(self._columns) == 1 and len(set(self._towers)) == 2
        self._has_dropout = any(_dropout(part) > 0 for part in model.modules())

    def plan_rows(self, batch: PairBatch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"simcse": len(self._columns) * len(batch)})

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        batch = planned.batch
        # One pass makes both encodings, because dropout is drawn for each row.
        twice = [_twice((batch.source, batch.target)[column], self._pad_ids[column]) for column in self._columns]
        if self.config.side == "both":
            vectors = model.encode_pair(*twice)
        else:
            vectors = (model.encode(self._towers[self._columns[0]], *twice)[0],)
        return Encoded(tuple(half for both in vectors for half in both.unflatten(0, (2, len(batch)))))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        batch = planned.batch
        group = current_group() if self.config.cross_rank_negatives else None
        losses, correct = [], []
        for column, one, other in zip(self._columns, vectors[::2], vectors[1::2], strict=True):
            ids = batch.ids[:, column : column + 1] if self.config.mask_equal_sentences else None
            result = inbatch_infonce(one, other, self.config.temperature, ids=ids, group=group)
            losses.append(result.forward.sum())
            correct.append(result.forward_correct)
        return Loss({"simcse": Term(torch.stack(losses).sum())}, {"accuracy": percentage(torch.cat(correct))})

    def warnings(self, task: Task) -> list[str]:
        if self._has_dropout:
            return []
        return ["simcse without dropout: both encodings of a sentence are the same; set --dropout 0.1"]


def _twice(side: TokenBatch, pad_id: int) -> TokenBatch:
    return side.followed_by(side, pad_id)


def _dropout(part: nn.Module) -> float:
    if isinstance(part, nn.Dropout):
        return part.p
    return part.dropout if isinstance(part, SelfAttention) else 0.0
