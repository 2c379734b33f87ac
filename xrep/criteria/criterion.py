"""The interface between a training objective and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from xrep.errors import UserError

WHERE = {
    "pairs of sentences": "`task` to bitext, or to monolingual with `units` adjacent or reordered",
    "labelled pairs": "`task` to nli",
    "triplets": "`task` to nli and `form` to triplets",
}
"""The tasks that give each kind of examples that a criterion may read."""
MODELS = {"sentence encoder": ("encode", "dual_encoder"), "translation model": ("predict", "translation")}
"""For each kind of model: the method that identifies it, and the ``--model`` that is of this kind."""


@dataclass
class Term:
    """One loss term: ``sum`` is a scalar with gradient, summed over the items that ``Criterion.sizes`` counts."""

    sum: Tensor
    weight: float = 1.0


@dataclass
class Loss:
    """The loss terms and metrics of one batch.

    The objective is Σ weight · sum / size over the terms; sizes are first added up over micro-batches and ranks.

    Attributes:
        metrics: further numbers to log, each a mean over the batch (0 for an empty one). They are scalar tensors
            without gradient, because converting them to Python numbers would wait for the GPU.
        rows: number of rows that a metric is the mean of, for metrics that are not of the whole batch.
    """

    terms: dict[str, Term]
    metrics: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def percentage(correct: Tensor) -> Tensor:
    """Return the share of True in a bool tensor, in percent; 0 if the tensor is empty."""
    return 100 * correct.float().sum() / max(correct.numel(), 1)


class Criterion(nn.Module, ABC):
    """A training objective, with the modules that only training needs (momentum encoders, queues, heads).

    It is built as ``Criterion(config, model, text)``. It must not keep the model as a submodule: the trainer wraps both
    side by side. With several ranks, each rank has a part of the batch, which may be empty. Every rank calls
    ``forward`` and ``after_step``, so both may exchange tensors (``xrep.kernels.gather``).

    Attributes:
        idle_parameters: whether a step may leave trained parameters without a gradient. The engine that averages
            gradients over ranks then has to look for such parameters.
        frozen: patterns, as for ``--freeze``, of the parameters that the objective itself keeps unchanged.
        reads: kinds of examples that it can read, as named by the ``gives`` of tasks; empty: any kind.
        needs: kind of model that it trains, a key of ``MODELS``; None: any kind.
        micro_batch: number of rows of a batch that are encoded at a time (``set_micro_batch``); None: all rows.
    """

    idle_parameters: bool = False
    micro_batch: int | None = None
    frozen: Sequence[str] = ()
    reads: Sequence[str] = ()
    needs: str | None = "sentence encoder"

    def check_task(self, task: Any) -> None:
        """Raise UserError if this criterion cannot read the kind of examples that the task gives (its ``gives``)."""
        gives = getattr(task, "gives", None)
        if gives is not None and self.reads and gives not in self.reads:
            cure = " or ".join(WHERE[kind] for kind in self.reads if kind in WHERE)
            raise UserError(
                f"the criterion reads {' or '.join(self.reads)}, and the task gives {gives}", cure=f"set {cure}"
            )

    def prepare(self, task: Any) -> None:
        """Read from the task what the criterion needs beyond ``TextSpec``.

        This is called once before training, and before tensors are loaded.

        Raises:
            UserError: the objective does not fit the text.
        """

    @abstractmethod
    def sizes(self, batch: Any) -> dict[str, float]:
        """Return how many items each term sums over in this batch (pairs, masked tokens).

        The sizes must follow from the batch alone, before the forward pass, because the gradients of the first
        micro-batch of a step are already divided by the sizes of all of them.
        """

    @abstractmethod
    def forward(self, model: Any, batch: Any) -> Loss:
        """Return the loss of one batch, with gradient for the model and for the criterion's own parameters."""

    def set_micro_batch(self, rows: int) -> None:
        """Let ``pieces`` cut batches into pieces of ``rows`` rows, whose activations need not be held together.

        Raises:
            UserError: the criterion does not compare the rows of a batch (it is not a ``ContrastiveCriterion``).
        """
        raise UserError(
            "micro_batch is for objectives that compare the sentences of a batch",
            cure="lower `batch_size` and raise `update_freq`",
        )

    def pieces(self, batch: Any) -> list[Any]:
        """Return the batch cut into the pieces that are encoded one at a time."""
        return [batch]

    def after_step(self, model: Any) -> None:
        """Update the criterion's own state (momentum encoders, queues). Called once after each optimizer step."""

    def warnings(self, task: Any) -> list[str]:
        """Return warnings to show before training on this task, which has ``task.examples`` examples per epoch."""
        return []
