"""Measure language bias: how many of a sentence's nearest neighbours, in a pool of many languages, share its language.

The shares are measured before and after principal component removal, as in "Universal Sentence Representation Learning
with Conditional Masked Language Model" (section 5.2, figure 2). Every language contributes the same number of sentences
to the pool, so without a bias each would have the same share (except for the query, which is not its own neighbour).
The paper does not state the number of neighbours; the default here is 10.

If all languages translate each other (PAWS-X, XNLI, newstest), each has the same content. In the Tatoeba test each
language only translates English; the English sentences of the pool are then taken from the English sides of the other
languages in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages, without_components
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Figures, OverlapOption, PlotOption, progress, table
from xrep.evaluation.multilingual import Group, TextOptions, Texts, read_texts
from xrep.evaluation.overlap import Overlap, chosen, find_overlap, total
from xrep.evaluation.plots import plot_language_bias
from xrep.evaluation.reading import folders_with
from xrep.metrics.geometry import language_shares
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
    class Config(EncoderOptions, OverlapOption, PlotOption, TextOptions):
        neighbours: int = 10
        """Number of nearest neighbours of each sentence that are counted."""
        remove_components: int = 1
        """Number of principal components that are removed from the vectors of each language."""
        sentences: int = 1000
        """Maximum number of sentences per language; the first ones are taken. All languages are cut to the size of the
        smallest."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {place: cls.Config(data=str(place)) for place in folders_with(folder, r"tatoeba\..+-eng\..+")}

    def read(self) -> None:
        if self.config.remove_components < 1:
            raise UserError(f"`remove_components` {self.config.remove_components}", cure="give at least 1")
        self.texts = read_texts(self.config)
        self.groups = _pool(self.texts)
        _even(self.groups, self.config.sentences)

    def measure(self, encoder: Encoder) -> Figures:
        config = self.config
        groups, overlap = _without_overlap(self.groups, encoder, config)
        languages = sorted({language for group in groups for language in group})
        before, after = language_bias(encoder, groups, config.neighbours, config.remove_components)
        removed = f"without {config.remove_components} component{'s' if config.remove_components > 1 else ''}"
        shares, count = {"as it is": before, removed: after}, len(next(iter(groups[0].values())))
        # The share of the own language if neighbours were drawn at random from the other sentences.
        unbiased = 100 * (count - 1) / (count * len(languages) - 1)
        own, means = (
            f"own language of {len(languages)}",
            [float(matrix.diagonal().mean()) for matrix in (before, after)],
        )

        def named(columns: Iterable[Any]) -> dict[str, Any]:
            return dict(zip(languages, columns, strict=True))

        text = (
            f"share (%) of the own language among the {config.neighbours} nearest neighbours, {unbiased:.1f} without a "
            f"bias; {count} sentences of each of {len(languages)} languages\n{_text(languages, shares)}"
        )
        title = f"Languages of the {config.neighbours} nearest neighbours ({unbiased:.1f}% each without a bias)"
        return Figures(
            text=text,
            values={  # "before" and "after": language of the query -> language of the neighbours -> share in percent
                "own": dict(zip(("before", "after"), means, strict=True)),
                "unbiased": unbiased,
                "before": named(map(named, before.tolist())),
                "after": named(map(named, after.tolist())),
                "sentences": count,
            },
            headline=dict(zip((own, f"{own}, {removed}"), means, strict=True)),
            settings={
                "languages": languages,
                "sentences": count,
                "neighbours": config.neighbours,
                "remove_components": config.remove_components,
            },
            files=self.texts.files,
            overlap=overlap,
            plot=lambda picture: plot_language_bias(languages, shares, title, picture),
        )


def _without_overlap(
    groups: Sequence[Group], encoder: Encoder, config: LanguageBias.Config
) -> tuple[list[Group], Overlap]:
    """Return groups of equal size and their overlap; dropped examples are replaced by later ones, if there are any."""
    kept, overlaps = [], []
    for group in groups if config.drop_overlap else _even(groups, config.sentences):
        keep, overlap = find_overlap(encoder.training_hashes, *group.values(), drop=config.drop_overlap)
        kept.append(dict(zip(group, chosen(keep, *group.values()), strict=True)))
        overlaps.append(overlap)
    return _even(kept, config.sentences), total(overlaps)


def language_bias(
    encoder: Encoder, groups: Sequence[Group], neighbours: int, components: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the languages, in percent, before and after principal component removal: [L, L] each.

    Row i belongs to the queries in the i-th language by its code, and sums to 100.

    Args:
        groups: Sentences of each language, in groups of parallel sentences; all languages have the same number.
    """
    columns = {language: sentences for group in groups for language, sentences in group.items()}
    languages, count = sorted(columns), len(next(iter(columns.values())))
    check_languages(encoder, {language: columns[language][0] for language in languages})
    sentences = f"{count} sentences of each of {len(languages)} languages"
    if not 1 <= neighbours < count * len(languages):
        raise UserError(f"`neighbours` {neighbours}, but {sentences}", cure=f"give 1 to {count * len(languages) - 1}")
    if components >= count:
        raise UserError(f"`remove_components` {components}, but {sentences}", cure=f"give at most {count - 1}")
    vectors = [encoder.encode(columns[language], language) for language in progress(languages, "languages")]
    without = [without_components(own, components) for own in vectors]
    return 100 * language_shares(vectors, neighbours), 100 * language_shares(without, neighbours)


def _pool(texts: Texts) -> list[Group]:
    """Return groups in which each language occurs once: one group if all are parallel, else one group per language."""
    if len(texts.groups) == 1:
        return texts.groups
    groups = []
    for language in texts.languages:
        # Line 1 of the first column, line 2 of the second and so on, without repeated sentences.
        columns = [group[language] for group in texts.groups if language in group]
        turns = ((line, columns[line % len(columns)]) for line in range(max(map(len, columns))))
        groups.append({language: list(dict.fromkeys(column[line] for line, column in turns if line < len(column)))})
    return groups


def _even(groups: Sequence[Group], limit: int) -> list[Group]:
    count = min(limit, *(len(sentences) for group in groups for sentences in group.values()))
    if count < 2:
        languages = [language for group in groups for language, sentences in group.items() if len(sentences) < 2]
        problem = f"fewer than 2 sentences of {' '.join(languages) or 'each language'}"
        raise UserError(problem, cure="leave it out of `langs`" if languages else "give a larger `sentences`")
    return [{language: sentences[:count] for language, sentences in group.items()} for group in groups]


def _text(languages: Sequence[str], shares: Mapping[str, np.ndarray]) -> str:
    """Return the share of the own language before and after and, for up to 12 languages, the shares of all."""
    own = [matrix.diagonal() for matrix in shares.values()]
    names = [*(f"{name(language)} ({language})" for language in languages), "mean"]
    columns = [[f"{share:.1f}" for share in (*values, values.mean())] for values in own]
    rows = list(zip(names, *columns, strict=True))
    parts = [table(["query", *shares], [*rows[:-1], [], rows[-1]])]
    for title, matrix in shares.items() if len(languages) <= 12 else ():
        cells = [[language, *(f"{share:.1f}" for share in matrix[i])] for i, language in enumerate(languages)]
        parts += ["", f"share (%) of each language, {title}", table(["query", *languages], cells)]
    return "\n".join(parts)
