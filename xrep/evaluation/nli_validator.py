"""How well sentence vectors tell entailment from contradiction on the dev split, measured while a model trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.errors import UserError
from xrep.evaluation.retrieval import evaluating
from xrep.tasks.nli import NliBatch, NliTask
from xrep.text.nli_readers import LABELS

ENTAILMENT, CONTRADICTION = LABELS.index("entailment"), LABELS.index("contradiction")
ROUNDING = 1e-6
"""Cosines that differ by less are equal: where all vectors are one, nothing is told."""
NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


class NliValidator:
    """Is what a premise entails nearer to it than what contradicts it? Chance is 50%; no classifier is asked.

    Of triplets each is a question, of pairs every entailment of a premise with each of its contradictions.

    Args:
        task: ``nli``, or several of which some are.

    Raises:
        UserError: none of them has a dev split, or there is no such question in it.
    """

    metric = "accuracy"
    maximize = True

    @dataclass(kw_only=True)
    class Config:
        def problems(self) -> list[str]:
            return []

    def __init__(self, config: Config, task: Any) -> None:
        tasks = getattr(task, "tasks", {"": task}).values()
        self.tasks = [own for own in tasks if isinstance(own, NliTask)]
        if not any(_questions(*_records(own)[:2]) for own in self.tasks):
            cure = "give it a file such as snli_1.0_dev.jsonl, or choose another --validation"
            raise UserError("there is no dev split of task nli to validate on", cure=cure)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Measure ``model`` as it is now; its training mode is as before afterwards.

        Returns:
            ``accuracy``: percent, a tie counting as wrong.
        """
        right = total = 0
        with evaluating(model):
            for task in self.tasks:
                groups, labels, scores = _records(task, model)
                for entailed, contradicted in _questions(groups, labels):
                    beaten = scores[entailed][:, None] > scores[contradicted] + ROUNDING
                    right, total = right + int(beaten.sum()), total + beaten.size
        return {"accuracy": 100 * right / total}


def _records(task: NliTask, model: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each pair of the dev split: the premise it is of, its class, and the cosine of its vectors (0 without model).

    A triplet is two pairs, of a premise of their own.
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch in task.validation_batches():
        hypotheses = batch.places.size(1) - 1
        scores = torch.zeros(len(batch), hypotheses) if model is None else _cosines(model, batch)
        is_triplet = hypotheses == 2
        labels = torch.tensor([[ENTAILMENT, CONTRADICTION]]).expand(len(batch), 2) if is_triplet else batch.labels
        groups = batch.indices if is_triplet else batch.ids[:, 0]
        found.append((groups.repeat_interleave(hypotheses), labels.flatten(), scores.flatten()))
    groups, labels, scores = (torch.cat(parts).numpy() for parts in zip(*found, strict=True)) if found else NOTHING
    return groups, labels, scores


def _cosines(model: Any, batch: NliBatch) -> Tensor:
    """Of the first sentence with each of the others, float32 [B, S - 1]."""
    device = next(model.parameters()).device
    vectors = torch.cat(model.encode_pair(*(side.to(device) for side in batch.sides))).float().cpu()
    first, *others = (vectors[places] for places in batch.places.unbind(1))
    return torch.stack([F.cosine_similarity(first, other, dim=1) for other in others], dim=1)


def _questions(groups: np.ndarray, labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of the entailments and of the contradictions of each premise that has both."""
    order = np.argsort(groups, kind="stable")
    premises = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    sides = [(rows[labels[rows] == ENTAILMENT], rows[labels[rows] == CONTRADICTION]) for rows in premises]
    return [(entailed, contradicted) for entailed, contradicted in sides if len(entailed) and len(contradicted)]
