"""The Tatoeba test, with the data and the protocol of LASER (Artetxe and Schwenk, 2019, arXiv:1812.10464)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.config.fields import Count, CountOrZero
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, without_components
from xrep.evaluation.evaluation import Examples, Figures, PlotOption, Result, Score, TableEvaluation, VectorTestOptions
from xrep.evaluation.plots import plot_tatoeba
from xrep.evaluation.reading import available, choose_languages, folders_with, read_tatoeba
from xrep.metrics.bootstrap import resampled_means
from xrep.metrics.retrieval import accuracy_of, right_answers
from xrep.retrieval.margins import margin_scores
from xrep.text.languages import name

_36 = "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi zh"
LANGUAGE_GROUPS = {
    "11": "fr zh es de ru it tr pt hu ja nl".split(),
    "14": "ar bg de el es fr hi ru sw th tr ur vi zh".split(),
    "28": [language for language in _36.split() if language not in "jv ka kk ml sw ta te th".split()],
    "36": _36.split(),
}
"""Languages of the published averages. 14, 28 and 36 are those of "Dual-Alignment Pre-training for Cross-lingual
Sentence Embedding" (section 4.4, appendix A; the 36 are XTREME's, and the 28 are those of them with 1000 pairs). 11 are
those of "Universal Sentence Representation Learning with Conditional Masked Language Model" (table 8)."""
DIRECTIONS = ("xx-en", "en-xx", "mean")


class Tatoeba(TableEvaluation):
    """Find the translation of each sentence among up to 1000 sentences, in 112 languages.

    The data is the Tatoeba test in LASER's layout: --data holds tatoeba.deu-eng.deu, tatoeba.deu-eng.eng and so on.

    Protocol: for each sentence, the nearest neighbour by cosine among all sentences of the other side is taken; it is
    right if it is on the same line. Accuracies are in percent, from the language into English (xx-en) and back (en-xx).
    XTREME searches with the English sentences alone: --langs 36 --direction en-xx.

      xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
      xrep-eval tatoeba --path run1/best --data tatoeba/ --random-baseline --json out.json --plot out.png
      xrep-eval tatoeba --path run1/best --data tatoeba/ --remove-components 1 --margin ratio

    The averages over 14, 28, 36 and 11 languages are those of the literature. An average is given if all its languages
    were measured.
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions, PlotOption):
        data: str
        """Folder of the test files."""
        langs: str = "all"
        """Language codes (de,fr or deu,fra), or 14, 28, 36 or 11, or all that are there."""
        margin: Literal["absolute", "distance", "ratio"] = "absolute"
        """Score by the cosine (absolute), or by its distance from, or ratio to, the mean cosine with the neighbours on
        both sides. This score ranks all sentences of the other side, where LASER's xSIM takes the best of the nearest
        neighbours, so figures of distance and ratio may differ from those of xSIM."""
        neighbours: Count = 4
        """Number of neighbours in this mean."""
        direction: Literal["both", "xx-en", "en-xx"] = "both"
        """Direction whose accuracy is averaged over the languages and has an interval: the mean of both, from the
        language into English, or from English, as in XTREME."""
        remove_components: CountOrZero = 0
        """Number of principal components of each language (of its sentences in the test) that are removed from its
        vectors."""

    config: Config
    unit = "pairs"

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {path: cls.Config(data=str(path)) for path in folders_with(folder, r"tatoeba\..+-eng\..+")}

    def read(self) -> list[Examples]:
        config, codes = self.config, available(self.config.data)
        wanted = choose_languages(config.langs, codes, "Tatoeba files for", config.data, LANGUAGE_GROUPS)
        tables = [read_tatoeba(config.data, codes[language]) for language in wanted]
        smallest = min(tables, key=len)
        self.least = max(1 if config.margin == "absolute" else config.neighbours, config.remove_components + 1)
        if len(smallest) < self.least:
            cure = f"give smaller `neighbours` and `remove_components`, or leave {smallest.name} out"
            raise UserError(f"{len(smallest)} pairs of {smallest.name}, but {self.least} are needed", cure=cure)
        return tables

    def score(self, model: MeasuredEncoder, examples: Examples) -> Score:
        sides = (model.encode(*side) for side in zip(examples.columns, examples.languages, strict=True))
        x, y = (without_components(side, self.config.remove_components) for side in sides)
        if self.config.margin == "absolute":
            right = right_answers(x, y)
        else:
            scores = margin_scores(x, y, self.config.neighbours, self.config.margin)
            lines, scored = np.arange(len(x)), np.isfinite(scores.diagonal())
            right = np.stack([scored & (scores.argmax(axis=axis) == lines) for axis in (1, 0)])
        accuracy = accuracy_of(right)

        def resample(seed: int) -> dict[str, np.ndarray]:
            drawn = resampled_means(right.T, seed)
            return dict(zip(DIRECTIONS, 100 * np.vstack([drawn.T, drawn.mean(axis=1)]), strict=True))

        return Score(dict(zip(DIRECTIONS, (*accuracy, accuracy.mean), strict=True)), resample)

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        groups = {f"average of {group}": names for group, names in LANGUAGE_GROUPS.items()}
        whole = {label: names for label, names in groups.items() if results.keys() >= set(names)}
        return super().averages(results) | whole

    def mean(self, scores: Sequence[Score]) -> dict[str, float]:
        forward, backward = np.mean([[score.figures[key] for key in DIRECTIONS[:2]] for score in scores], axis=0)
        return dict(zip(DIRECTIONS, map(float, (forward, backward, (forward + backward) / 2)), strict=True))

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        direction = self.config.direction
        figure, prefix = ("mean", "") if direction == "both" else (direction, f"{direction}, ")
        return {f"{prefix}{label}": (figure, names) for label, names in self.averages(results).items()}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        return super().text({language: results[language] for language in sorted(results, key=name)}, averages)

    def figures(self, measured: Sequence[Result]) -> Figures:
        figures = super().figures(measured)
        figures.plot = lambda picture: plot_tatoeba(figures.values["tables"], figures.headline, picture)
        return figures
