"""Validation during training by natural language inference on the dev split."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch.nn.functional as F

from xrep.criteria.criterion import Criterion
from xrep.criteria.nli import Nli, sentence_vectors
from xrep.data.batch import Batch
from xrep.errors import UserError
from xrep.models.model import SentenceModel
from xrep.tasks.task import ExampleKind, Task
from xrep.training.validator import OverRanks, Validator

ROUNDING = 1e-6
"""Cosines that differ by less count as equal, so that rounding errors do not score when all vectors are the same."""


class NliValidator(Validator):
    """Validate by the share of pairs, or triplets, of the dev split that are predicted correctly.

    A pair is correct if the criterion's classifier predicts its class. Triplets have no classes: a triplet is correct
    if the positive is nearer to the anchor than the hard negative is (chance is 50%). If there are any pairs, the best
    checkpoint is chosen by them.

    Raises:
        UserError: None of the tasks has such examples, or none has a dev split.
    """

    needs = SentenceModel
    maximize = True

    def __init__(self, config: Any, task: Task) -> None:
        kinds = (ExampleKind.LABELLED_PAIRS, ExampleKind.TRIPLETS)
        self.tasks = {part: each for part, each in task.parts.items() if each.gives in kinds and each.has_validation}
        if not any(each.gives in kinds for each in task.parts.values()):
            raise UserError("no task has labelled pairs", cure="choose the `validation` loss or sts")
        if not self.tasks:
            cure = "give it a file such as snli_1.0_dev.jsonl, or choose another `validation`"
            raise UserError("there is no dev split of task nli to validate on", cure=cure)
        has_pairs = any(each.gives is ExampleKind.LABELLED_PAIRS for each in self.tasks.values())
        self.metric = "accuracy" if has_pairs else "triplet_accuracy"

    def measure(self, model: SentenceModel, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Measure how many pairs and triplets are right.

        Returns:
            Values in percent. ``accuracy``: the mean over the languages of the pairs. If there are several languages,
            also ``accuracy-XX`` for each, or ``accuracy-XX-YY`` if premise and hypothesis are in different languages.
            ``triplet_accuracy``: the accuracy on triplets, where a tie counts as wrong.

        Raises:
            UserError: The criterion of a task with pairs is not ``nli``, so it has no classifier.
        """
        languages: dict[str, list[np.ndarray]] = {}
        triplets: list[np.ndarray] = []
        for part, task in self.tasks.items():
            if task.gives is ExampleKind.TRIPLETS:
                triplets += over_ranks(task.validation_batches(), partial(_nearer, model))
                continue
            part_criterion = criterion.of_part(part)
            if not isinstance(part_criterion, Nli):
                cure = "choose the `criterion` nli or the `validation` sts"
                raise UserError("the criterion has no classifier", cure=cure)
            classify = partial(_classified, task, model, part_criterion)
            for language, right in chain.from_iterable(over_ranks(task.validation_batches(), classify)):
                languages.setdefault(language, []).append(right)
        means = {name: 100 * float(np.concatenate(right).mean()) for name, right in sorted(languages.items())}
        measured = {"accuracy": float(np.mean(list(means.values())))} if means else {}
        if len(means) > 1:
            measured |= {f"accuracy-{language}": mean for language, mean in means.items()}
        if triplets:
            measured["triplet_accuracy"] = 100 * float(np.concatenate(triplets).mean())
        return measured


def _classified(task: Task, model: SentenceModel, criterion: Nli, batch: Batch) -> list[tuple[str, np.ndarray]]:
    """Return each language (or pair of languages) of a batch, and whether its pairs were classified right, bool [n]."""
    device = next(model.parameters()).device
    classes = criterion.predict(*sentence_vectors(model, batch.to(device))).cpu()
    right, places = (classes == batch.labels).numpy(), batch.languages.numpy()
    found = list[tuple[str, np.ndarray]]()
    for pair in np.unique(places, axis=0):
        names = dict.fromkeys(task.text.languages[place] for place in pair)
        found.append(("-".join(names), right[(places == pair).all(axis=1)]))
    return found


def _nearer(model: SentenceModel, batch: Batch) -> np.ndarray:
    """Return for each triplet whether its positive is nearer to its anchor than its hard negative is, bool [B]."""
    vectors = sentence_vectors(model, batch.to(next(model.parameters()).device))
    anchor, positive, negative = (vector.float().cpu() for vector in vectors)
    nearer = F.cosine_similarity(anchor, positive) > F.cosine_similarity(anchor, negative) + ROUNDING
    return nearer.numpy()
