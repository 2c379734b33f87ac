"""Semantic textual similarity: pairs of sentences with a score that says how similar they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xrep.tasks.nli import NliTask, SentencesOptions


class SimilarityTask(NliTask):
    """Pairs of sentences with a score (``xrep.text.scored_pairs``), which are kept as those of ``NliTask`` are."""

    default_validation = "loss"

    @dataclass(kw_only=True)
    class Config(SentencesOptions):  # pyright: ignore[reportIncompatibleVariableOverride]
        data: str
        """File or directory of scored pairs: lines score, sentence and sentence, separated by tabs; a table or JSON
        lines that name them score, sentence1 and sentence2; or STS-B, its translations or SICK as downloaded."""
        lowest_score: float = 0.0
        """Score of sentences that have nothing in common. Those of STS-B and SICK are known. In a batch, scores count
        from 0, the lowest, to 1, the highest, so that files with other ranges can be mixed."""
        highest_score: float = 5.0
        """Score of sentences that mean the same."""

        def problems(self) -> list[str]:
            if -math.inf < self.lowest_score < self.highest_score < math.inf:
                return []
            return [f"lowest_score {self.lowest_score:g} must be below highest_score {self.highest_score:g}"]

        @property
        def scale(self) -> tuple[float, float]:
            return self.lowest_score, self.highest_score
