"""Training of a criterion step by step, as the trainer does it, for comparison with simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from xrep.criteria.criterion import Criterion
from xrep.data.batching import PairBatch

Groups = list[list[PairBatch]]
"""The batches of each step."""


def make_groups(make_batch: Callable[[Any], PairBatch], accumulate: int) -> Groups:
    """Return batches of 4 pairs (3 in the last of a step) in which sentences are repeated with other translations."""
    some = sentence_pairs(20)
    pairs = some[:8] + [(some[0][0], some[8][1]), (some[9][0], some[1][1]), *some[2:4]] + some[10:18] + some[4:12]
    batches = [make_batch(pairs[4 * i : 4 * i + 4 - (i % accumulate)]) for i in range(7)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def train(model: nn.Module, criterion: Criterion, groups: Groups, rate: float) -> list[float]:
    """Add up the gradients of the micro-batches, then make one step. Return the loss of each step."""
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=rate)
    losses = []
    for group in groups:
        size = sum(sizes_of(criterion, batch)[criterion.term] for batch in group)
        optimizer.zero_grad()
        sums = [loss_of(criterion, model, batch).terms[criterion.term].sum for batch in group]
        (sum(sums) / size).backward()
        optimizer.step()
        criterion.after_step(model)
        losses.append(float(sum(sums).detach()) / size)
    return losses
