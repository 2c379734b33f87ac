"""Cross-entropy with label smoothing for translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from xrep.criteria.criterion import Criterion, Loss, Planned, of_words
from xrep.data.batch import Batch, TextSpec, on_device
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.models.model import TranslationModel
from xrep.tasks.task import ExampleKind


class LabelSmoothedCrossEntropy(Criterion):
    """Mean cross-entropy of the target tokens, each given the source and the target tokens before it.

    Every target token is predicted except the first special one; the last special one is included. The prediction uses
    the vectors that ``model.predict`` gives. Metrics are means over these tokens: ``nll`` (the cross-entropy without
    smoothing, in nats) and ``accuracy`` (percentage of tokens that have the largest logit).

    Use:
        - Needs: pairs, and a translator (task translation).
        - Choose it: to train a translator, also one whose encoder another objective has trained (``encoder``).
        - Related: none of the others trains a decoder.

    Example:
        ```sh
        xrep-train text/ --task translation --criterion label_smoothed_cross_entropy --decoder-layers 1
        ```
    """

    reads = (ExampleKind.TRANSLATIONS,)
    needs = TranslationModel

    @dataclass(kw_only=True)
    class Config:
        label_smoothing: Annotated[float, "[0, 1)"] = 0.1
        """ε, the amount of smoothing: a target token has probability 1 - ε + ε/V and each of the other V - 1 words of
        the vocabulary ε/V (Szegedy et al. 2016, section 7). fairseq uses 1 - ε and ε/(V - 1), so its ε is this one
        times (V - 1)/V."""

    def __init__(self, config: Config, model: TranslationModel, text: TextSpec) -> None:
        super().__init__(config)
        self._leading = text.vocabulary("target").leading_count
        known = {language: place for place, language in enumerate(model.target_languages)}
        self._targets = np.array([known.get(language, -1) for language in text.languages], dtype=np.int64)
        """Maps places in ``TextSpec.languages`` to places in the model's target languages; -1: never a target."""

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {"translation": batch.target.real_tokens - self._leading * len(batch)})

    def forward(self, model: TranslationModel, planned: Planned) -> Loss:
        batch = planned.batch
        languages = self._targets[batch.languages[:, 1].numpy()]
        predicted = model.predict(batch.source, batch.target, on_device(languages, batch.target.tokens.device))
        result = linear_cross_entropy(
            predicted.vectors,
            predicted.matrix,
            predicted.labels,
            bias=predicted.bias,
            groups=predicted.sentences,
            label_smoothing=self.config.label_smoothing,
        )
        return of_words("translation", [result])
