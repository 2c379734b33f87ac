"""Correlation with people's judgements of similarity, measured while a model trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.evaluation.retrieval import evaluating
from xrep.evaluation.sts import measure, select
from xrep.evaluation.sts_sets import find_sets
from xrep.sentence_encoder import SentenceEncoder


class StsValidator:
    """Does the cosine of two sentences' vectors rank pairs as people do? Spearman's correlation, as of xrep-eval sts.

    Args:
        task: gives the tokenizers and what is known of the text.

    Raises:
        UserError: there is no such data, or the text has none of its languages.
    """

    needs = "sentence encoder"
    metric = "spearman"
    maximize = True

    @dataclass(kw_only=True)
    class Config:
        sts_path: str
        """Folder with data sets of semantic textual similarity, as xrep-eval sts reads them (STS-B, stsb_multi_mt)."""
        sts_languages: list[str] = field(default_factory=list)
        """Languages to measure; none: those of the training text that the folder has."""
        sts_split: Literal["dev", "test", "train"] = "dev"
        """Split to measure on. The best checkpoint is chosen by it: keep the test split for the end."""

        def problems(self) -> list[str]:
            return []

    def __init__(self, config: Config, task: Any) -> None:
        self.config, self.task = config, task
        found = find_sets(config.sts_path, config.sts_split)
        languages = config.sts_languages or sorted({test.language for test in found} & set(task.text.languages))
        if not languages:
            problem = f"no data in the languages of the training text ({', '.join(task.text.languages)})"
            known = ", ".join(sorted({test.language for test in found}))
            raise UserError(problem, path=config.sts_path, cure=f"it has {known}: name one with --sts-languages")
        self.tests = select(found, ",".join(languages))

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Measure ``model`` as it is now; its training mode is as before afterwards.

        Returns:
            ``spearman``: of the cosine over all pairs of a test, times 100, mean over the tests; ``spearman-TEST``: of
            each.
        """
        with evaluating(model):
            encoder = SentenceEncoder(model, self.task.tokenizers, self.task.text)
            found = {test.name: measure(encoder, test)["cosine"]["spearman"].all for test in self.tests}
        each = {f"spearman-{name.replace(' ', '-')}": value for name, value in found.items()}
        return {"spearman": float(np.mean(list(found.values()))), **each}
