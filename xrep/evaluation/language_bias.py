"""Language bias, as in "Universal Sentence Representation Learning with Conditional Masked Language Model" (section
5.2, figure 2), which does not state the number of neighbours. In the Tatoeba test each language only translates
English; the English sentences of the pool are then those of the other languages in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, total, without_components
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures, OverlapOption, PlotOption
from xrep.evaluation.plots import plot_language_bias
from xrep.evaluation.reading import ParallelOptions, folders_with, languages_of, read_texts
from xrep.metrics.geometry import language_shares
from xrep.tables import table
from xrep.text.languages import name


class LanguageBias(Evaluation):
    """Measure the share of each language among the nearest neighbours of a sentence, in a mixed pool.

    The pool has as many sentences of each language. The shares are measured before and after the first principal
    component of each language is removed from its vectors.

      xrep-eval language-bias --path run1/best --data tatoeba/ --langs de,fr,zh --plot bias.png
      xrep-eval language-bias --path run1/best --data 'pawsx/test-{lang}.tsv'
      xrep-eval language-bias --path run1/best --data 'newstest/newstest2012.{lang}' --sentences 500

    --data is the folder of the Tatoeba test, or files whose line i translates line i of the others, with {lang} in
    place of the language. Parallel files are the better test, because each language then says the same.
    """

    resampled = False

    @dataclass(kw_only=True)
    class Config(EncoderOptions, OverlapOption, PlotOption, ParallelOptions):
        neighbours: Count = 10
        """Number of nearest neighbours of each sentence that are counted."""
        remove_components: Count = 1
        """Number of principal components that are removed from the vectors of each language."""
        sentences: Count = 1000
        """Maximum number of sentences per language; the first ones are taken. All languages are cut to the size of the
        smallest."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {path: cls.Config(data=str(path)) for path in folders_with(folder, r"tatoeba\..+-eng\..+")}

    def read(self) -> list[Examples]:
        tables = read_texts(self.config)
        _even(_pool(tables), self.config.sentences)
        return tables

    def measure(self, model: MeasuredEncoder) -> Figures:
        """The values for JSON are the means of the shares of the own language, ``own``, before and after the components
        are removed; these shares without a bias, ``unbiased``; ``before`` and ``after``, language of the query ->
        language of the neighbours -> share in percent; and the number of ``sentences`` of each language."""
        config, pool = self.config, _pool(self.tables)
        # Examples that are dropped are replaced by later ones, if there are any.
        found = pool if config.drop_overlap else _even(pool, config.sentences)
        kept = [self.without_overlap(model, examples) for examples in found]
        even = _even([examples for examples, _ in kept], config.sentences)
        columns = {code: column for each in even for code, column in zip(each.languages, each.columns, strict=True)}
        languages, count, k, removed = languages_of(even), len(even[0]), config.neighbours, config.remove_components
        self.check(model)
        sentences, others = f"{count} sentences of each of {len(languages)} languages", count * len(languages) - 1
        for option, most in (("neighbours", others), ("remove_components", count - 1)):
            if (given := getattr(config, option)) > most:
                raise UserError(f"`{option}` {given}, but {sentences}", cure=f"give 1 to {most}")
        vectors = [model.encode(columns[language], language) for language in languages]
        without = [without_components(each, removed) for each in vectors]
        after = f"without {removed} component{'s' if removed > 1 else ''}"
        shares = {"as it is": 100 * language_shares(vectors, k), after: 100 * language_shares(without, k)}
        means = [float(matrix.diagonal().mean()) for matrix in shares.values()]
        # The share of the own language if neighbours were drawn at random from the other sentences.
        unbiased, label = 100 * (count - 1) / others, f"own language of {len(languages)}"
        heading = f"share (%) of the own language among the {k} nearest neighbours, {unbiased:.1f} without a bias"
        title = f"Languages of the {k} nearest neighbours ({unbiased:.1f}% each without a bias)"
        return Figures(
            text=f"{heading}; {sentences}\n{_text(languages, shares)}",
            values={
                "own": {"before": means[0], "after": means[1]},
                "unbiased": unbiased,
                "before": _nested(languages, shares["as it is"]),
                "after": _nested(languages, shares[after]),
                "sentences": count,
            },
            headline={label: means[0], f"{label}, {after}": means[1]},
            settings={**self.settings(), "languages": languages, "sentences": count},
            files=[file for examples in self.tables for file in examples.files],
            overlap=total(overlap for _, overlap in kept),
            plot=lambda picture: plot_language_bias(languages, shares, title, picture),
        )


def _pool(tables: Sequence[Examples]) -> list[Examples]:
    """Return tables in which each language occurs once: one if all are parallel, else one for each language."""
    if len(tables) == 1:
        return list(tables)
    pool = []
    for language in languages_of(tables):
        # Line 1 of the first column, line 2 of the second and so on, without repeated sentences.
        columns = [each.columns[each.languages.index(language)] for each in tables if language in each.languages]
        turns = ((line, columns[line % len(columns)]) for line in range(max(map(len, columns))))
        sentences = list(dict.fromkeys(column[line] for line, column in turns if line < len(column)))
        pool.append(Examples(language, (language,), (sentences,)))
    return pool


def _even(tables: Sequence[Examples], limit: int) -> list[Examples]:
    """Return the first examples of each table, as many of each as the smallest one has, and at most ``limit``."""
    count = min(limit, *map(len, tables))
    if count < 2:
        languages = languages_of([examples for examples in tables if len(examples) < 2])
        problem = f"fewer than 2 sentences of {' '.join(languages) or 'each language'}"
        raise UserError(problem, cure="leave it out of `langs`" if languages else "give a larger `sentences`")
    return [examples.only(np.arange(len(examples)) < count) for examples in tables]


def _text(languages: Sequence[str], shares: Mapping[str, np.ndarray]) -> str:
    """Return the share of the own language before and after and, for up to 12 languages, the shares of all."""
    of_own = np.stack([matrix.diagonal() for matrix in shares.values()], axis=1)
    rows = [[f"{name(language)} ({language})", *row] for language, row in zip(languages, of_own.tolist(), strict=True)]
    parts = [table(["query", *shares], [*rows, [], ["mean", *of_own.mean(axis=0).tolist()]])]
    for title, matrix in shares.items() if len(languages) <= 12 else ():
        rows = [[language, *row.values()] for language, row in _nested(languages, matrix).items()]
        parts += ["", f"share (%) of each language, {title}", table(["query", *languages], rows)]
    return "\n".join(parts)


def _nested(languages: Sequence[str], shares: np.ndarray) -> dict[str, dict[str, float]]:
    rows = [dict(zip(languages, row, strict=True)) for row in shares.tolist()]
    return dict(zip(languages, rows, strict=True))
