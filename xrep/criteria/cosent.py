"""CoSENT: the cosines of pairs come into the order of their scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term
from xrep.criteria.in_batch import Temperature
from xrep.criteria.matryoshka import Nested
from xrep.criteria.nli import sentence_vectors
from xrep.errors import UserError
from xrep.kernels.pairs import out_of_order
from xrep.models.model import SentenceModel
from xrep.tasks.task import ExampleKind, TableTask, Task


class CoSENT(ContrastiveCriterion):
    """A pair with a higher score gets a higher cosine (Su 2022, CoSENT).

    The loss of a batch is log(1 + sum over i, j with s_i > s_j of e^((cos_j - cos_i)/tau)), where s_i is the score of
    pair i and cos_i its cosine. A batch weighs as many of these losses as it has pairs.

    Raises:
        UserError: all pairs have the same score.

    Use:
        - Needs: pairs with a score of their similarity (task similarity) and a pretrained encoder.
        - Choose it: for semantic similarity, where people have scored pairs. Only the order of the scores matters.
        - Related: angle compares angles; nli_triplet needs no scores.

    Example:
        ```sh
        xrep-train scored/ --task similarity --criterion cosent --towers shared --batch-size 64
        ```
    """

    reads = (ExampleKind.SCORED_PAIRS,)
    term = "cosent"

    @dataclass(kw_only=True)
    class Config(Nested):
        temperature: Temperature = 0.05
        """tau: differences of similarities are divided by this value (sentence-transformers' scale 20 is 1/20)."""

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        assert isinstance(task, TableTask)
        scores = [table["labels"].values for table in task.train]
        if max(some.max() for some in scores) == min(some.min() for some in scores):
            problem, cure = "all pairs have the same score, so they have no order", "check the column of the scores"
            raise UserError(problem, path=task.place, cure=cure)

    def encode(self, model: SentenceModel, planned: Planned) -> Encoded:
        return Encoded(sentence_vectors(model, planned.batch))

    def similarity(self, first: Tensor, second: Tensor) -> Tensor:
        """Return how similar the vectors of each pair are: [B, D] and [B, D] -> [B]."""
        return F.cosine_similarity(first, second, dim=1)

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        similarity = self.similarity(*(v.to(torch.promote_types(v.dtype, torch.float32)) for v in vectors))
        scores = planned.batch.labels
        loss = out_of_order(similarity, scores, self.config.temperature)
        above = scores.unsqueeze(1) > scores  # [B, B]: i must come above j
        right = 100 * (above & (similarity.unsqueeze(1) > similarity)).sum() / above.sum().clamp(min=1)
        return Loss({self.term: Term(loss * len(planned.batch))}, {"accuracy": right})
