"""Validation during training by correlation with human judgements of sentence similarity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.evaluation.sts import correlations, find_sets, select, similarities
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.model import SentenceModel
from xrep.tasks.task import Task
from xrep.training.validator import OverRanks, Validator


class StsValidator(Validator):
    """Validate by Spearman's correlation between cosine and human similarity scores, as ``xrep-eval sts`` measures it.

    Raises:
        UserError: The data does not exist, or it has no language in common with the training text.
    """

    needs = SentenceModel
    metric = "spearman"
    maximize = True

    @dataclass(kw_only=True)
    class Config:
        sts_path: str
        """Folder with data sets of semantic textual similarity (such as STS-B, stsb_multi_mt), as xrep-eval sts reads
        them."""
        sts_languages: list[str] = field(default_factory=list)
        """Languages to measure. The default is every language of the training text for which the folder has data."""
        sts_split: Literal["dev", "test", "train"] = "dev"
        """Split to measure on. The best checkpoint is chosen by this split, so keep the test split for the final
        evaluation."""

    def __init__(self, config: Config, task: Task) -> None:
        self.config, self.task = config, task
        sets = find_sets(config.sts_path, config.sts_split)
        present = sorted({test.languages[0] for test in sets})
        languages = config.sts_languages or [language for language in present if language in task.text.languages]
        if not languages:
            problem = f"no data in the languages of the training text ({', '.join(task.text.languages)})"
            known = ", ".join(present)
            raise UserError(problem, path=config.sts_path, cure=f"it has {known}: name one with `sts_languages`")
        self.tests = select(sets, ",".join(languages))

    def measure(self, model: Any, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Measure the correlation on each test.

        Returns:
            ``spearman-TEST`` for each test: Spearman's correlation of the cosine over all pairs of the test, times 100;
            ``spearman``: the mean over the tests.
        """
        encoder = SentenceEncoder(model, self.task.tokenizers, self.task.text)
        names = [f"spearman-{test.name.replace(' ', '-')}" for test in self.tests]
        found = over_ranks(self.tests, lambda test: correlations(test, similarities(encoder, test))["cosine"])
        figures = {name: result["spearman"]["all"] for name, result in zip(names, found, strict=True)}
        return {"spearman": float(np.mean(list(figures.values()))), **figures}
