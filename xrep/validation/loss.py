"""Validation during training by the training objective itself, measured on the dev split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from xrep.criteria.criterion import Criterion, Loss
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.kernels.gather import apart
from xrep.tasks.monolingual import MonolingualTask
from xrep.validation.retrieval import evaluating

SEED = 1
"""Seed for the random draws of the objective, so that each validation masks the same tokens."""


class LossValidator:
    """Validate by the criterion's loss and metrics on the text of the split ``valid``.

    Args:
        task: A task ``monolingual``, or several tasks. Of several, only the monolingual ones are measured, and the mean
            of their losses is the metric.

    Raises:
        UserError: None of the tasks is monolingual with a dev split.
    """

    metric = "loss"
    maximize = False

    @dataclass(kw_only=True)
    class Config:
        def problems(self) -> list[str]:
            return []

    def __init__(self, config: Config, task: Any) -> None:
        tasks = getattr(task, "tasks", {"": task})
        self.tasks = {p: own for p, own in tasks.items() if isinstance(own, MonolingualTask) and own.has_validation}
        if not self.tasks:
            cure = "give it files such as valid.de, or choose another `validation`"
            raise UserError("there is no dev split of task monolingual to validate on", cure=cure)

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Measure model and criterion in their current state; training modes and random state are restored afterwards.

        Returns:
            The values of ``mean_losses``. With several monolingual tasks: ``loss``, the mean over these tasks, and the
            values of each task as ``PART/NAME``.
        """
        measured: dict[str, dict[str, float]] = {}
        with undisturbed(model, criterion):
            for part, task in self.tasks.items():
                own = criterion.parts[part] if isinstance(criterion, Multitask) else criterion
                measured[part] = mean_losses(model, own, task.validation_batches())
        if len(measured) == 1:
            return next(iter(measured.values()))
        loss = sum(each["loss"] for each in measured.values()) / len(measured)
        return {"loss": loss} | {f"{part}/{name}": x for part, each in measured.items() for name, x in each.items()}


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
    device = next(model.parameters()).device
    return _means([(criterion.sizes(batch), criterion(model, batch.to(device)), len(batch)) for batch in batches])


def _means(found: list[tuple[dict[str, float], Loss, int]]) -> dict[str, float]:
    """Average over batches, each given as the sizes of its terms, its loss and its number of rows."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for sizes, loss, rows in found:
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
