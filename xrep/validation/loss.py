"""Validation during training by the training objective itself, measured on the dev split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from xrep.criteria.criterion import Criterion, Planned, with_perplexity
from xrep.errors import UserError
from xrep.tasks.task import Task
from xrep.training.validator import SEED, OverRanks, Validator


class LossValidator(Validator):
    """Validate by the criterion's loss and metrics on the dev split, as training computes them.

    Of several tasks, those that have a dev split are measured.

    Raises:
        UserError: There is no dev split.
    """

    metric = "loss"
    maximize = False

    def __init__(self, config: Any, task: Task) -> None:
        self.task = task
        if not task.has_validation:
            cure = "give one, such as valid.de of text or dev.tsv of labelled text, or choose another `validation`"
            raise UserError("there is no dev split", cure=cure)

    def measure(self, model: Any, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the values of ``mean_losses``; those of several parts are named ``PART/NAME``."""
        return mean_losses(model, criterion, self.task.validation_batches(), over_ranks)


def mean_losses(model: Any, criterion: Criterion, batches: Iterable[Any], over_ranks: OverRanks) -> dict[str, float]:
    """Compute the mean loss and metrics of a criterion over batches.

    Returns:
        ``loss``: the weighted sum of the criterion's terms, each divided by its total size (its number of pairs, masked
        tokens or the like); ``loss_TERM`` for each term if there are several; and the criterion's metrics, each a mean
        over the batches weighted by their rows, with perplexities.
    """
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(SEED)
    sums, counts = defaultdict[str, float](float), defaultdict[str, float](float)

    def measure(planned: Planned) -> list[tuple[str, float, float]]:
        loss = criterion(model, planned.to(device))
        terms = [
            (f"loss_{name}", term.weight * float(term.sum), planned.sizes[name]) for name, term in loss.terms.items()
        ]
        rows = {name: loss.rows.get(name, len(planned)) for name in loss.metrics}
        return terms + [(name, float(metric) * rows[name], rows[name]) for name, metric in loss.metrics.items()]

    for measured in over_ranks((criterion.plan(batch, generator) for batch in batches), measure):
        for name, total, count in measured:
            sums[name] += total
            counts[name] += count
    means = {name: total / max(counts[name], 1) for name, total in sums.items()}
    terms = [name for name in means if name.startswith("loss_")]
    loss = sum(means[name] for name in terms)
    shown = {name: mean for name, mean in means.items() if name not in terms or len(terms) > 1}
    return {"loss": loss, **with_perplexity(shown)}
