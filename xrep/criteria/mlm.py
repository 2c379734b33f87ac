"""Masked language modelling."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated

import torch

from xrep.criteria.criterion import Criterion, Loss, Planned, of_words
from xrep.criteria.masked_language import MaskedLanguage
from xrep.data.batch import Batch, TextSpec, TokenBatch
from xrep.data.masking import Masked
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.task import ExampleKind, Task
from xrep.text.sides import SHARED


class MLM(Criterion):
    """Predict masked tokens (BERT, Devlin et al. 2019): the mean cross-entropy of the original tokens.

    Tokens are masked anew whenever a batch is seen; ``xrep.data.masking`` says which tokens are chosen. The layer
    between token vectors and vocabulary is that of the pretrained encoder, if its directory has one, or that of the
    run's criterion if the encoder is RUN/best of a run; otherwise a new one. The ``parts`` of a run share it, as in
    XLM.

    Use:
        - Needs: sentences (task monolingual), or pairs, each side of which is read separately.
        - Choose it: to pretrain or adapt an encoder to languages or a domain, before an objective that trains sentence
            vectors.
        - Related: tlm reads translations together; cmlm also trains a sentence vector.

    Example:
        ```sh
        xrep-train mono/ --task monolingual --criterion mlm --towers shared
        ```
    """

    reads = (ExampleKind.SENTENCES, ExampleKind.TRANSLATIONS, ExampleKind.NEIGHBOURS)
    needs = DualEncoder
    trains_vectors = False

    @dataclass(kw_only=True)
    class Config:
        mask_rate: Annotated[float, "(0, 1)"] = 0.15
        """Share of the tokens of each sentence that is masked: 80% of these become [MASK], 10% become a random subword,
        10% stay. BERT and HiCTL (table 9, monolingual) use 0.15."""

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config)
        self._text = text
        self.masked_lm = MaskedLanguage(model, text, rate=config.mask_rate)
        self.idle_parameters = len(model.projections) > 0

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        masked = {tower: self.masked_lm.mask(tower, side, generator) for tower, side in self._read(batch).items()}
        return Planned(batch, {"mlm": sum(len(each.labels) for each in masked.values())}, masked)

    def forward(self, model: DualEncoder, planned: Planned) -> Loss:
        masked: dict[str, Masked] = planned.details
        results = []
        for tower, each in masked.items():
            encoder = model.encoders[tower]
            results.append(self.masked_lm(tower, encoder, each.at_positions(encoder(each.batch)), each.labels))
        return of_words("mlm", results)

    def warnings(self, task: Task) -> list[str]:
        return self.masked_lm.notes

    def _read(self, batch: Batch) -> dict[str, TokenBatch]:
        """Return what each tower reads; a shared tower reads all sentences at once."""
        if SHARED not in self.masked_lm.heads:
            return batch.sides
        pad_id = self._text.vocabulary(SHARED).pad_id
        return {SHARED: functools.reduce(lambda first, other: first.followed_by(other, pad_id), batch.sides.values())}
