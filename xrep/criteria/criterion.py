"""The interface between a training objective and the trainer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from xrep.data.batch import Movable, TextSpec
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy
from xrep.models.dual_encoder import DualEncoder
from xrep.models.model import Model, SentenceModel
from xrep.tasks.task import ExampleKind, Task


@dataclass
class Term:
    """One loss term: ``sum`` is a scalar with gradient, summed over the items that ``Planned.sizes`` counts."""

    sum: Tensor
    weight: float = 1.0


@dataclass
class Loss:
    """The loss terms and metrics of one batch.

    The objective of an optimizer step is Σ weight · sum / size over the terms, where ``sum`` and size are added up over
    all batches of the step and over all ranks. Each size is known before the first forward pass, because the gradient
    of the first batch is already divided by the sizes of all of them. So the gradient does not depend on how the
    examples of a step are divided among ranks and batches.

    Attributes:
        metrics: further numbers to log, each a mean over the batch (0 for an empty one). They are scalar tensors
            without gradient, because converting them to Python numbers would wait for the GPU. A mean cross-entropy is
            called ``nll``: its perplexity follows from the mean over batches (see ``with_perplexity``).
        rows: number of rows that a metric is the mean of, for metrics that are not of the whole batch.
        found: what was computed on the way that ``ContrastiveCriterion.remember`` keeps.
    """

    terms: dict[str, Term]
    metrics: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    found: Any = None


def of_words(name: str, predictions: Sequence[CrossEntropy]) -> Loss:
    """Return one term, and its metrics, for the words that are predicted in several batches.

    Metrics are ``accuracy`` (percentage of the words) and ``nll`` (their mean cross-entropy, in nats).
    """
    nll = torch.cat([each.nll for each in predictions])
    correct = torch.cat([each.correct for each in predictions])
    metrics = {"accuracy": percentage(correct), "nll": nll.sum() / max(len(nll), 1)}
    total = torch.stack([each.loss for each in predictions]).sum()
    return Loss({name: Term(total)}, metrics, dict.fromkeys(metrics, len(nll)))


def with_perplexity(means: Mapping[str, float]) -> dict[str, float]:
    """Return means of metrics, with the perplexity behind each ``nll``: e to the power of it."""
    numbers: dict[str, float] = {}
    for name, mean in means.items():
        numbers[name] = mean
        if name.rpartition("/")[2] == "nll":
            numbers[f"{name.removesuffix('nll')}perplexity"] = math.exp(min(mean, 700))
    return numbers


def merged(losses: Iterable[Loss], sizes: Iterable[int]) -> Loss:
    """Add up the terms of losses and average their metrics, given the number of rows of each loss."""
    whole = Loss({})
    for loss, size in zip(losses, sizes, strict=True):
        for name, term in loss.terms.items():
            known = whole.terms.get(name)
            whole.terms[name] = Term(known.sum + term.sum, term.weight) if known else term
        for name, metric in loss.metrics.items():
            rows, others = loss.rows.get(name, size), whole.rows.get(name, 0)
            if name in whole.metrics:
                metric = (whole.metrics[name] * others + metric * rows) / max(others + rows, 1)
            whole.metrics[name], whole.rows[name] = metric, others + rows
    return whole


@dataclass
class Planned(Movable):
    """A batch and everything that a criterion derives from it before the forward pass.

    Attributes:
        batch: the batch, as the task made it.
        sizes: how many items each term sums over in this batch (pairs, masked tokens).
        details: what ``forward`` needs beside the batch, such as masked tokens (a ``Movable``); None: nothing.
        pieces: consecutive rows of the batch that are encoded one piece at a time; empty: all rows at once.
        parts: plans of the parts of a mixture, each of which is computed by itself; empty without a mixture.
        rank_rows: number of rows of this batch on each rank, as the ranks told each other before the step; None: they
            did not.
    """

    batch: Any
    sizes: dict[str, float]
    details: Any = None
    pieces: Sequence[Planned] = ()
    parts: Mapping[str, Planned] = field(default_factory=dict)
    rank_rows: Sequence[int] | None = None

    @property
    def by_part(self) -> Mapping[str, Planned]:
        """The plans of the parts of a mixture; without a mixture, this plan, whose part has no name."""
        return self.parts or {"": self}

    @property
    def token_count(self) -> int:
        return self.batch.token_count

    def __len__(self) -> int:
        return len(self.batch)


def only_tower(objective: str, model: DualEncoder, languages: Iterable[str] | None = None) -> str:
    """Return the tower that encodes all of the languages (None: that of a model with one tower).

    Raises:
        UserError: there are several.
    """
    towers = set(model.encoders) if languages is None else {model.tower(language) for language in languages}
    if len(towers) > 1:
        raise UserError(f"{objective}: all languages share one encoder", cure="set `towers` to shared")
    return towers.pop()


def percentage(correct: Tensor) -> Tensor:
    """Return the share of True in a bool tensor, in percent; 0 if the tensor is empty."""
    return 100 * correct.float().sum() / max(correct.numel(), 1)


class Criterion(nn.Module, ABC):
    """A training objective, with the modules that only training needs (momentum encoders, queues, heads).

    It is built as ``Criterion(config, model, text)``. It must not keep the model as a submodule: the trainer wraps both
    side by side. With several ranks, each rank has a part of the batch, which may be empty. Every rank calls
    ``forward`` and ``after_step``, so both may exchange tensors (``xrep.kernels.gather``).

    Attributes:
        idle_parameters: set this if some trained parameter may get no gradient in a step. DDP must then search for it.
        frozen: patterns, as for ``--freeze``, of the parameters that the objective itself keeps unchanged.
        reads: kinds of examples that it can read; empty: any kind.
        needs: kind of model that it trains; None: any kind.
        trains_vectors: whether the sentence vectors of a ``SentenceModel`` get better by it.
        uses_hard_negatives: whether the loss has the hard negatives of a batch of pairs (``Batch.negatives``).
        micro_batch: number of rows of a batch that are encoded at a time (``encode_in_pieces``); None: all rows.
    """

    idle_parameters: bool = False
    trains_vectors: bool = True
    uses_hard_negatives: bool = False
    micro_batch: int | None = None
    frozen: Sequence[str] = ()
    reads: Sequence[ExampleKind] = ()
    needs: type[Model] | None = SentenceModel

    def __init__(self, config: Any = None, model: Any = None, text: TextSpec | None = None) -> None:
        super().__init__()
        self.config = config

    def check_task(self, task: Task) -> None:
        """Raise UserError if this criterion cannot read the examples that the task gives."""
        if self.reads and task.gives not in self.reads:
            kinds = " or ".join(kind.name for kind in self.reads)
            problem = f"the criterion reads {kinds}, and the task gives {task.gives.name}"
            raise UserError(problem, cure=f"set {', or '.join(kind.cure for kind in self.reads)}")
        if task.has_hard_negatives and not self.uses_hard_negatives:
            cure = "leave it out, or choose a `criterion` that contrasts translations: translation_ranking, dap, "
            cure += "dual_moco, hictl with sentence_contrast, frozen_source with source_side target"
            raise UserError("`negatives`: this criterion, as it is set, has no use for them", cure=cure)

    def prepare(self, task: Task) -> None:
        """Read from the task what the criterion needs beyond ``TextSpec``.

        This is called once before training, and before tensors are loaded.

        Raises:
            UserError: the objective does not fit the text.
        """

    @abstractmethod
    def plan(self, batch: Any, generator: torch.Generator) -> Planned:
        """Return what is derived from a batch in host memory, once: sizes of terms, and what ``forward`` needs.

        It is called where batches are made, which may be a worker process without a GPU. So it must not touch the
        weights, and it takes random numbers only from ``generator``.
        """

    @abstractmethod
    def forward(self, model: Any, planned: Planned) -> Loss:
        """Return the loss of one batch, with gradient for the model and for the criterion's own parameters."""

    def of_part(self, name: str) -> Criterion:
        """Return the criterion of one part of a task; it is this one, unless the parts have criteria of their own."""
        return self

    def in_sum(self, part: str, loss: Loss, rows: int, share: float) -> Loss:
        """Return the loss of a part's batch with the names and weights that it has in the sum over the parts.

        Args:
            rows: number of rows of the batch.
            share: share of the batches that the part has; 1 if each batch has all parts, or there are no parts.
        """
        return loss

    def after_step(self, model: Any) -> None:
        """Update the criterion's own state (momentum encoders, queues). Called once after each optimizer step."""

    def warnings(self, task: Task) -> list[str]:
        """Return warnings to show before training on this task, which has ``task.examples`` examples per epoch."""
        return []
