"""Options that leave negatives out of a contrast which are so similar to the query that they may translate it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from xrep.criteria.criterion import Planned
from xrep.criteria.matryoshka import Nested
from xrep.data.teacher_vectors import TeacherVectors
from xrep.kernels.judge import Judge


@dataclass(kw_only=True)
class FalseNegatives(Nested):
    """Options of objectives that can leave out negatives by their similarity (``xrep.kernels.judge.Judge``)."""

    mask_margin: Annotated[float, "[-1, 10]"] | None = None
    """M: a negative whose similarity to the query exceeds that of the positive by more than this does not count, since
    it may be a translation, too. The vectors that are compared decide (with matryoshka the shortened ones), or a guide.
    Qwen3-Embedding uses 0.1; -M is the margin of sentence-transformers' GIST losses. none: all negatives count."""
    mask_margin_relative: bool = False
    """mask_margin is a share of the similarity of the positive."""
    guide: str | None = None
    """Vectors of another encoder, of any width, that decide in place of those compared: a .npy file or a folder of
    xrep-encode, with a row for each line of guide_text. Mined negatives (option negatives of the task), which it does
    not know, all count."""
    guide_text: str | None = None
    """The sentences of guide, one per line: all training sentences of both sides, in any order; case and punctuation do
    not count."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if bool(self.guide) != bool(self.guide_text):
            problems.append("guide and guide_text belong together; give both")
        if self.mask_margin is None and (self.mask_margin_relative or self.guide):
            name = "guide" if self.guide else "mask_margin_relative"
            problems.append(f"{name} needs mask_margin, such as 0.1")
        return problems

    def judge(self, planned: Planned, columns: slice = slice(None), *, reverse: bool = False) -> Judge | None:
        """Return what decides which negatives of a batch count; None if all do.

        Args:
            columns: the sentences of each row that are compared.
            reverse: the last of them is the query, not the first.
        """
        if self.mask_margin is None:
            return None
        guide = planned.batch.guide[:, columns] if self.guide else None
        guide = guide.flip(1) if guide is not None and reverse else guide
        return Judge(self.mask_margin, self.mask_margin_relative, guide)


def guide_of(config: Any) -> TeacherVectors | None:
    """Return the guide that the options of a criterion name."""
    if isinstance(config, FalseNegatives) and config.guide and config.guide_text:
        return TeacherVectors(config.guide, config.guide_text, "guide")
    return None
