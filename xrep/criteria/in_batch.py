"""What objectives share whose negatives are the other rows of the batch, and hard negatives of single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from xrep.criteria.criterion import Planned
from xrep.criteria.false_negatives import FalseNegatives
from xrep.data.batch import Batch, TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.judge import Judge
from xrep.kernels.pairs import add_own_negatives
from xrep.models.model import SentenceModel

Temperature = Annotated[float, "[0.0001, 10000]"]
"""Range of temperatures: beyond it, logits or gradients may not be finite in float32."""


@dataclass(kw_only=True)
class InBatch(FalseNegatives):
    """Options of objectives whose negatives are the other rows of the batch."""

    temperature: Temperature = 0.05
    """Similarities are divided by this value."""
    mask_equal_sentences: bool = False
    """Do not use two rows that share a sentence as each other's negatives. Off in the papers; turn it on if sentences
    repeat, as those of one side of bitext and the premises of SNLI do."""
    cross_rank_negatives: bool = True
    """With several ranks, the rows of all ranks are negatives. Off: only those of the rank's own part."""

    def options(self, planned: Planned, columns: slice = slice(None)) -> dict[str, Any]:
        """Return the options of a loss in ``xrep.kernels`` for a criterion that ``exchanges``.

        Args:
            columns: the sentences of each row that are compared.
        """
        return {
            "ids": planned.batch.ids[:, columns] if self.mask_equal_sentences else None,
            "judge": self.judge(planned, columns),
            "group": current_group() if self.cross_rank_negatives else None,
            "sizes": planned.rank_rows,
        }


def negative_vectors(model: SentenceModel, batch: Batch, text: TextSpec) -> tuple[Tensor, ...]:
    """Return the vectors of the hard negatives of a batch, [N, D], in a tuple, which is empty if the run has none."""
    if batch.negatives is None:
        return ()
    return (model.encode(model.tower(text.target_languages[0]), batch.negatives.tokens)[0],)


def with_own_negatives(
    loss: Tensor,
    correct: Tensor,
    query: Tensor,
    positive: Tensor,
    negative: Sequence[Tensor],
    batch: Batch,
    temperature: float | Tensor,
    *,
    margin: float = 0.0,
    judge: Judge | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the hard negatives of a batch to InfoNCE whose queries are its sources: to the loss of a source its own ones
    only (``add_own_negatives``).

    sentence-transformers compares each source with the negatives of all rows. Here a negative was checked against the
    translations of its own source alone, and it may be the translation of another one.

    Args:
        negative: the vectors of the negatives, or nothing if the batch has none: then the loss is returned unchanged.
        judge: that of the loss; if it has a guide, which does not know these negatives, all of them count.
    """
    if batch.negatives is None or not negative:
        return loss, correct
    given = loss, correct, query, positive, negative[0], batch.negatives.rows, temperature
    own = None if judge is None or judge.guide is not None else judge
    return add_own_negatives(*given, margin=margin, judge=own)
