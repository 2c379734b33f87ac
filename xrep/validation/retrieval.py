"""Validation during training by retrieval accuracy on the dev split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.metrics.retrieval import mean_cosine, retrieval_accuracy
from xrep.models.model import SentenceModel
from xrep.store.vectors import normalize_rows
from xrep.tasks.task import Pool, Task
from xrep.training.validator import OverRanks, Validator


class RetrievalValidator(Validator):
    """Validate by how often the nearest neighbour of a dev sentence is its translation.

    The accuracy is measured for each language pair, in both directions.

    Raises:
        UserError: There is no pool, or a pool has fewer than 2 pairs.
    """

    needs = SentenceModel
    metric = "accuracy"
    maximize = True

    @dataclass(kw_only=True)
    class Config:
        max_pool_size: Annotated[int, "[2, inf)"] = 1000
        """Maximum number of dev pairs per language pair among which translations are searched."""

    def __init__(self, config: Config, task: Task) -> None:
        self.config = config
        self.pools = task.validation_pools(config.max_pool_size)
        if not self.pools:
            raise UserError("the text has no translations to validate on", cure="choose the `validation` nli or sts")
        for pool in self.pools:
            pairs = sum(len(batch) for batch in pool.batches())
            if pairs < 2:
                problem = (
                    f"the dev split of {pool.name} has {pairs} pair{'s' * (pairs != 1)}, retrieval needs at least 2"
                )
                raise UserError(problem, cure="give it more pairs, or leave the language pair out")

    def measure(self, model: SentenceModel, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Measure how often the nearest neighbour is the translation.

        Returns:
            ``accuracy_{xx}-{yy}``: mean of both directions, in percent; ``accuracy``: the mean of these over language
            pairs; ``mean_cosine``: mean cosine between different target sentences, averaged over language pairs (a
            value near 1 means that the model has collapsed).
        """

        def measure(pool: Pool) -> tuple[float, float]:
            source, target = _embed(model, pool)
            return retrieval_accuracy(source, target).mean, mean_cosine(target)

        names = [f"accuracy_{pool.source_language}-{pool.target_language}" for pool in self.pools]
        accuracies, cosines = zip(*over_ranks(self.pools, measure), strict=True)
        measured = dict(zip(names, accuracies, strict=True))
        return {"accuracy": float(np.mean(list(measured.values()))), **measured, "mean_cosine": float(np.mean(cosines))}


def _embed(model: SentenceModel, pool: Pool) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit vectors of both sides, float32 [N, D]; row i of one side translates row i of the other."""
    device = next(model.parameters()).device
    towers = model.tower(pool.source_language), model.tower(pool.target_language)
    batches, rows = [], []
    for batch in pool.batches():
        sides = zip(towers, (batch.source, batch.target), strict=True)
        batches.append([model.encode(tower, tokens.to(device))[0] for tower, tokens in sides])
        rows.append(batch.indices)
    order = torch.cat(rows).argsort()
    source, target = (torch.cat(side).float().cpu()[order].numpy() for side in zip(*batches, strict=True))
    return normalize_rows(source), normalize_rows(target)
