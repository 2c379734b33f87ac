"""Unsupervised SimCSE: each sentence is its own positive, encoded twice with different dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.in_batch import InBatch
from xrep.data.batch import Batch, TextSpec
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.model import SentenceModel
from xrep.nn.layers import SelfAttention
from xrep.tasks.task import PAIRS, Task
from xrep.text.sides import SIDES


class SimCSE(ContrastiveCriterion):
    """Each sentence finds its second encoding, which differs by its dropout alone (Gao et al. 2021, SimCSE).

    The loss is -log e^(h_i.h'_i/tau) / sum_j e^(h_i.h'_j/tau), where h and h' are two encodings of each sentence with
    independent dropout (equation 4 of SimCSE; equation 1 of the frozen source paper with s_i+ = s_i).

    Use:
        - Needs: pairs, of which ``side`` chooses the sentences, dropout above 0, and a pretrained encoder.
        - Choose it: to make the vectors of a pretrained encoder comparable where there are no labels and no
            translations.
        - Related: nli_triplet with labels; cmlm from running text; translation_ranking with translations.
        - Left open: two sides of bitext are two corpora: the sentences of one side are never negatives of the other's,
            which could be their translations. The objective is the mean over the sentences of both.

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion simcse --side target --towers shared --dropout 0.1
        ```
    """

    reads = PAIRS
    exchanges = True
    term = "simcse"

    @dataclass(kw_only=True)
    class Config(InBatch):
        side: Literal["source", "target", "both"] = "both"
        """Side of the pairs whose sentences are trained on."""

        def problems(self) -> list[str]:
            problems = super().problems()
            if self.guide and self.mask_margin is not None and self.mask_margin >= 0:
                problems.append("mask_margin must be below 0 with a guide: a sentence and its positive are one to it")
            return problems

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__(config, model)
        self._columns = [number for number, side in enumerate(SIDES) if config.side in (side, "both")]
        self._pad_ids = [text.vocabulary(side).pad_id for side in SIDES]
        self._towers = [model.tower(languages[0]) for languages in (text.source_languages, text.target_languages)]
        # The tower of the side that is not trained on gets no gradient.
        self.idle_parameters = len(self._columns) == 1 and len(set(self._towers)) == 2
        self._has_dropout = any(_dropout(part) > 0 for part in model.modules())

    def plan_rows(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {self.term: len(self._columns) * len(batch)})

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        batch = planned.batch
        sides = [((batch.source, batch.target)[column], self._pad_ids[column]) for column in self._columns]
        # One pass makes both encodings, because dropout is drawn for each row.
        twice = [side.followed_by(side, pad_id) for side, pad_id in sides]
        if self.config.side == "both":
            vectors = model.encode_pair(*twice)
        else:
            vectors = (model.encode(self._towers[self._columns[0]], *twice)[0],)
        return Encoded(tuple(half for both in vectors for half in both.unflatten(0, (2, len(batch)))))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        losses, correct = [], []
        for column, one, other in zip(self._columns, vectors[::2], vectors[1::2], strict=True):
            options = self.config.options(planned, slice(column, column + 1))
            result = inbatch_infonce(one, other, self.config.temperature, **options)
            losses.append(result.forward.sum())
            correct.append(result.forward_correct)
        return Loss({self.term: Term(torch.stack(losses).sum())}, {"accuracy": percentage(torch.cat(correct))})

    def warnings(self, task: Task) -> list[str]:
        if self._has_dropout:
            return []
        return ["simcse without dropout: both encodings of a sentence are the same; set `dropout` to 0.1"]


def _dropout(part: nn.Module) -> float:
    if isinstance(part, nn.Dropout):
        return part.p
    return part.dropout if isinstance(part, SelfAttention) else 0.0
