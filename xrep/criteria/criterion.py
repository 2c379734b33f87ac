"""The contract between an objective and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from xrep.errors import UserError

WHERE = {
    "pairs of sentences": "--task bitext, or monolingual with --units adjacent",
    "labelled pairs": "--task nli",
    "triplets": "--task nli with --form triplets",
}
"""Which task gives the examples that a criterion reads."""
MODELS = {"sentence encoder": ("encode", "dual_encoder"), "translation model": ("predict", "translation")}
"""Kinds of models: the method by which they are known, and which ``--model`` is one."""


@dataclass
class Term:
    """One loss, summed over the things that ``Criterion.sizes`` counts: ``sum`` is a scalar with gradient."""

    sum: Tensor
    weight: float = 1.0


@dataclass
class Loss:
    """The objective is Σ weight · sum / size over the terms, their sizes added up over micro-batches and ranks first.

    Attributes:
        metrics: further numbers to log, each a mean over the batch (0 of an empty one), as scalars without gradient: a
            number of Python would wait for the GPU.
        rows: of how many rows a metric is the mean, where it is not of the whole batch.
    """

    terms: dict[str, Term]
    metrics: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


def percentage(correct: Tensor) -> Tensor:
    """Share of True in a bool tensor, in percent; 0 of none."""
    return 100 * correct.float().sum() / max(correct.numel(), 1)


class Criterion(nn.Module, ABC):
    """An objective and what it throws away after training (momentum encoders, queues, heads).

    Built as ``Criterion(config, model, text)``. It must not keep the model as a submodule: the trainer wraps both
    side by side. On several ranks each has a part of the batch, which may be empty; ``forward`` and ``after_step`` may
    exchange tensors (``xrep.kernels.gather``), as every rank calls them.

    Attributes:
        idle_parameters: whether a step may leave parameters that are trained without gradient (which the engine that
            averages gradients over ranks then has to look for).
        frozen: patterns, as of ``--freeze``, of the parameters that the objective itself keeps as they are.
        reads: kinds of examples that it can read, of those that tasks say they give; none: any.
        needs: the kind of model that it trains, of ``MODELS``; None: any.
        micro_batch: rows of a batch that are encoded at a time (``set_micro_batch``); None: all.
    """

    idle_parameters: bool = False
    micro_batch: int | None = None
    frozen: Sequence[str] = ()
    reads: Sequence[str] = ()
    needs: str | None = "sentence encoder"

    def check_task(self, task: Any) -> None:
        """Raise UserError if the task gives (its attribute ``gives``) another kind of examples than this reads."""
        gives = getattr(task, "gives", None)
        if gives is not None and self.reads and gives not in self.reads:
            cure = " or ".join(WHERE[kind] for kind in self.reads if kind in WHERE)
            raise UserError(
                f"the criterion reads {' or '.join(self.reads)}, and the task gives {gives}", cure=f"choose {cure}"
            )

    def prepare(self, task: Any) -> None:
        """Called once before training, and before tensors are loaded: what it needs of the text beyond ``TextSpec``.

        Raises:
            UserError: the objective does not fit the text.
        """

    @abstractmethod
    def sizes(self, batch: Any) -> dict[str, float]:
        """How many things each term sums over in this batch (pairs, masked tokens).

        It is told by the batch alone, before the forward pass, because the gradients of the first micro-batch of a step
        are already divided by the sizes of all of them.
        """

    @abstractmethod
    def forward(self, model: Any, batch: Any) -> Loss:
        """The loss of one batch, with gradient towards the model (and towards what the criterion trains itself)."""

    def set_micro_batch(self, rows: int) -> None:
        """Let ``pieces`` be of so many rows, whose activations need not be held together.

        Raises:
            UserError: the criterion is none that compares the rows of a batch (``ContrastiveCriterion``).
        """
        raise UserError(
            "micro_batch is for objectives that compare the sentences of a batch",
            cure="lower --batch-size and raise --update-freq",
        )

    def pieces(self, batch: Any) -> list[Any]:
        """A batch cut into those that are encoded at a time."""
        return [batch]

    def after_step(self, model: Any) -> None:
        """Called once after each optimizer step (momentum update, enqueueing)."""

    def warnings(self, task: Any) -> list[str]:
        """What a user should know before training on this task (``task.examples`` an epoch, say)."""
        return []
