"""Validation during training by the training objective itself, measured on the dev split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xrep.criteria.criterion import Criterion, Loss
from xrep.errors import UserError
from xrep.kernels.gather import apart
from xrep.tasks.task import Task
from xrep.training.validator import Validator
from xrep.validation.retrieval import evaluating

SEED = 1
"""Seed for the random draws of the objective, so that each validation masks the same tokens."""


class LossValidator(Validator):
    """Validate by the criterion's loss and metrics on the dev split, as training computes them.

    Of several tasks, those that have a dev split are measured.

    Raises:
        UserError: There is no dev split.
    """

    metric = "loss"
    maximize = False

    @dataclass(kw_only=True)
    class Config:
        def problems(self) -> list[str]:
            return []

    def __init__(self, config: Config, task: Task) -> None:
        self.task = task
        if not task.has_validation:
            raise UserError(
                "there is no dev split", cure="give it files such as valid.de, or choose another --validation"
            )

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Measure model and criterion in their current state; training modes and random state are restored afterwards.

        Returns:
            The values of ``mean_losses``; those of several parts are named ``PART/NAME``.
        """
        with undisturbed(model, criterion):
            return mean_losses(model, criterion, self.task.validation_batches())


@contextmanager
def undisturbed(model: nn.Module, criterion: Criterion) -> Iterator[None]:
    """Context manager for a validation that does not disturb training.

    Inside, model and criterion are in evaluation mode, do not communicate with other processes, and see the same random
    numbers each time. On exit their training modes and the random state are restored.
    """
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with evaluating(model, criterion), apart(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        yield


def mean_losses(model: nn.Module, criterion: Criterion, batches: Iterable[Any]) -> dict[str, float]:
    """Compute the mean loss and metrics of a criterion over batches.

    Returns:
        ``loss``: the weighted sum of the criterion's terms, each divided by its total size (its number of pairs, masked
        tokens or the like); ``loss_TERM`` for each term if there are several; and the criterion's metrics, each a mean
        over the batches weighted by their rows.
    """
    device, generator = next(model.parameters()).device, torch.Generator().manual_seed(SEED)
    plans = (criterion.plan(batch, generator) for batch in batches)
    return _means((plan.sizes, criterion(model, plan.to(device)), len(plan)) for plan in plans)


def _means(results: Iterable[tuple[dict[str, float], Loss, int]]) -> dict[str, float]:
    """Average over batches, each given as the sizes of its terms, its loss and its number of rows."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for sizes, loss, rows in results:
        for name, term in loss.terms.items():
            key = f"loss_{name}"
            sums[key] = sums.get(key, 0.0) + term.weight * float(term.sum)
            counts[key] = counts.get(key, 0.0) + sizes[name]
        for name, metric in loss.metrics.items():
            count = loss.rows.get(name, rows)
            sums[name] = sums.get(name, 0.0) + float(metric) * count
            counts[name] = counts.get(name, 0.0) + count
    means = {name: total / max(counts[name], 1) for name, total in sums.items()}
    terms = [name for name in means if name.startswith("loss_")]
    loss = sum(means[name] for name in terms)
    return {"loss": loss} | {name: mean for name, mean in means.items() if name not in terms or len(terms) > 1}
