"""Natural language inference on the dev split, measured while a model trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.criterion import Criterion
from xrep.criteria.multitask import Multitask
from xrep.criteria.nli import Nli, sentence_vectors
from xrep.errors import UserError
from xrep.evaluation.retrieval import evaluating
from xrep.tasks.nli import NliBatch, NliTask

ROUNDING = 1e-6
"""Cosines that differ by less are equal: where all vectors are one, nothing is told."""


class NliValidator:
    """Of pairs, how many the criterion's classifier puts into their class. Of triplets, which have no classes, how many
    positives are nearer to their anchor than its hard negative is (chance is 50%).

    Args:
        task: ``nli``, or several of which some are. The best checkpoint is chosen by its pairs if there are any.

    Attributes:
        metric: ``accuracy`` of the classifier, or ``triplet_accuracy``.

    Raises:
        UserError: none of the tasks is nli with a dev split.
    """

    needs = "sentence encoder"
    maximize = True

    @dataclass(kw_only=True)
    class Config:
        def problems(self) -> list[str]:
            return []

    def __init__(self, config: Config, task: Any) -> None:
        tasks = getattr(task, "tasks", {"": task})
        self.tasks = {part: own for part, own in tasks.items() if isinstance(own, NliTask) and own.has_validation}
        if not self.tasks:
            cure = "give it a file such as snli_1.0_dev.jsonl, or choose another --validation"
            raise UserError("there is no dev split of task nli to validate on", cure=cure)
        has_pairs = any(own.config.form == "pairs" for own in self.tasks.values())
        self.metric = "accuracy" if has_pairs else "triplet_accuracy"

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Measure both as they are now; their training modes are as before afterwards.

        Args:
            criterion: ``nli`` for pairs, or several parts of which those with pairs are ``nli``.

        Returns:
            ``accuracy``: percent, mean over the languages of pairs; ``accuracy-XX``, or ``accuracy-XX-YY`` where
            premise and hypothesis differ: of each, where there are several. ``triplet_accuracy``: of triplets, a tie
            counting as wrong.

        Raises:
            UserError: a criterion of pairs has no classifier.
        """
        languages: dict[str, list[np.ndarray]] = {}
        triplets: list[np.ndarray] = []
        with evaluating(model, criterion):
            for part, task in self.tasks.items():
                own = criterion.parts[part] if isinstance(criterion, Multitask) else criterion
                if task.config.form == "triplets":
                    triplets += [_nearer(model, batch).numpy() for batch in task.validation_batches()]
                    continue
                for language, right in _classified(task, model, own):
                    languages.setdefault(language, []).append(right)
        means = {name: 100 * float(np.concatenate(found).mean()) for name, found in sorted(languages.items())}
        measured = {"accuracy": float(np.mean(list(means.values())))} if means else {}
        if len(means) > 1:
            measured |= {f"accuracy-{language}": mean for language, mean in means.items()}
        if triplets:
            measured["triplet_accuracy"] = 100 * float(np.concatenate(triplets).mean())
        return measured


def _classified(task: NliTask, model: Any, criterion: Criterion) -> Iterator[tuple[str, np.ndarray]]:
    """Which pairs of the dev split are put into their class, bool arrays by language."""
    if not isinstance(criterion, Nli):
        raise UserError("the criterion has no classifier", cure="choose --criterion nli or --validation sts")
    device = next(model.parameters()).device
    for batch in task.validation_batches():
        classes = criterion.predict(*sentence_vectors(model, batch.to(device))).cpu()
        right, places = (classes == batch.labels).numpy(), batch.languages.numpy()
        for pair in np.unique(places, axis=0):
            names = dict.fromkeys(task.text.languages[place] for place in pair)
            yield "-".join(names), right[(places == pair).all(axis=1)]


def _nearer(model: Any, batch: NliBatch) -> Tensor:
    """Of each triplet whether its positive is nearer to its anchor than its hard negative, bool [B]."""
    vectors = sentence_vectors(model, batch.to(next(model.parameters()).device))
    anchor, positive, negative = (vector.float().cpu() for vector in vectors)
    return F.cosine_similarity(anchor, positive) > F.cosine_similarity(anchor, negative) + ROUNDING
