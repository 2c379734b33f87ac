"""Plans of batches, as the trainer makes them, and token batches of tensors, for tests."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xrep.criteria.criterion import Criterion, Loss, Planned
from xrep.data.batch import Batch, HardNegatives, TokenBatch
from xrep.data.stream import Plan, stream


def token_batch(tokens: Tensor, lengths: Tensor) -> TokenBatch:
    return TokenBatch(tokens, lengths, lengths.numpy(force=True))


def plan(criterion: Criterion, batch: Any, seed: int = 0) -> Planned:
    """The plan of a batch, its random numbers drawn from ``seed``."""
    return criterion.plan(batch, torch.Generator().manual_seed(seed))


def sizes_of(criterion: Criterion, batch: Any) -> dict[str, float]:
    return plan(criterion, batch).sizes


def loss_of(criterion: Criterion, model: Any, batch: Any, seed: int = 0) -> Loss:
    """The loss of a batch that is planned and moved to the device of the model."""
    return criterion(model, plan(criterion, batch, seed).to(next(model.parameters()).device))


def streamed(task: Any, workers: int = 0, **place: Any) -> Generator[tuple[Any, Plan], None, None]:
    """Return the batches of a task with their plans; ``place`` is as for ``Task.plan``."""
    return stream(task.plan(**place), lambda plan: task.make(plan.rows), workers=workers)


def pair_batch(source: TokenBatch, target: TokenBatch, ids: Tensor, indices: Tensor, languages: Tensor) -> Batch:
    """Return a batch of sentences and their translations."""
    return Batch({"source": source, "target": target}, {"ids": ids, "indices": indices, "languages": languages})


def single(pairs: Batch) -> Batch:
    """Return the source side of pairs as a batch of single sentences."""
    return Batch({"shared": pairs.source}, {"indices": pairs.indices, "languages": pairs.languages[:, 0]})


def with_negatives(batch: Batch, negatives: TokenBatch, rows: list[int]) -> Batch:
    """Return a batch of pairs with hard negatives; ``rows`` are those of the sources that they belong to."""
    return replace(
        batch, negatives=HardNegatives(negatives, torch.tensor(rows, dtype=torch.int64), np.array(rows, np.int64))
    )
