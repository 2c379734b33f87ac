"""Translation ranking: each pair is compared with all other pairs of its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.in_batch import InBatch, negative_vectors, with_own_negatives
from xrep.data.batch import TextSpec
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.model import SentenceModel
from xrep.tasks.task import PAIRS


class TranslationRanking(ContrastiveCriterion):
    """Rank each sentence's translation above the other sentences of the batch (Yang et al. 2019).

    This is additive margin softmax: a sentence x and its translation y have the loss -log e^((x.y - m)/tau) / (e^((x.y
    - m)/tau) + sum over the other sentences y' of the batch e^(x.y'/tau)), where m is the margin and tau the
    temperature; in the other direction the sum is over x'. Hard negatives (option ``negatives`` of the task) join the
    sum over y' of their own x, where the target is found.

    Use:
        - Needs: pairs (task bitext, or neighbouring sentences), in batches as large as possible: their rows, of all
            ranks, are the only negatives. ``micro_batch`` makes room for them.
        - Choose it: first. It is the simplest objective whose vectors find translations.
        - Related: dual_moco takes its negatives from a queue; dap adds the alignment of words; hictl makes negatives
            harder. It is the baseline of dual momentum contrast, the bitext retrieval of CMLM (section 4.2: both
            directions; 4.4: margin 0.3) and L_TR of DAP (equation 5: forward).

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion translation_ranking --towers shared --batch-size 256 --margin 0.3
        ```
    """

    reads = PAIRS
    uses_hard_negatives = True
    exchanges = True
    term = "translation_ranking"

    @dataclass(kw_only=True)
    class Config(InBatch):
        margin: Annotated[float, "[0, 1000000]"] = 0.0
        """Subtracted from the similarity of translations, before it is divided by the temperature, so that it must
        exceed the others by this margin. CMLM uses 0.3, DAP no margin."""
        directions: Literal["both", "forward"] = "both"
        """both: find the target from the source and the source from the target, and add the losses. forward: only find
        the target (DAP)."""

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__(config, model)
        self._text = text

    def encode(self, model: Any, planned: Planned) -> Encoded:
        batch = planned.batch
        pair = model.encode_pair(batch.source, batch.target)
        return Encoded(pair + negative_vectors(model, batch, self._text))

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        config, (source, target, *negative) = self.config, vectors
        options = config.options(planned)
        result = inbatch_infonce(source, target, config.temperature, margin=config.margin, **options)
        given = (result.forward, result.forward_correct, source, target, negative, planned.batch)
        shared = {"margin": config.margin, "judge": options["judge"]}
        loss, correct = with_own_negatives(*given, config.temperature, **shared)
        if config.directions == "both":
            loss, correct = loss + result.backward, torch.cat([correct, result.backward_correct])
        return Loss({self.term: Term(loss.sum())}, {"accuracy": percentage(correct)})
