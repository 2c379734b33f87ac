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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation import text_table
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.multilingual import Group, Texts
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.metrics.components import remove_components
from xrep.metrics.geometry import language_shares
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.languages import name


@dataclass(frozen=True)
class Results:
    """Shares of the languages among the neighbours of each language's queries.

    Attributes:
        sentences: Number of sentences per language.
        before, after: Shares in percent, float64 [L, L], for the vectors of the encoder and for the vectors without
            their first ``components`` principal components. Row i belongs to the queries in ``languages[i]`` and sums
            to 100.
    """

    languages: list[str]
    sentences: int
    neighbours: int
    components: int
    before: np.ndarray
    after: np.ndarray
    overlap: Overlap

    @property
    def unbiased(self) -> float:
        """Share of the own language in percent, if neighbours were drawn at random from the other sentences."""
        return 100 * (self.sentences - 1) / (self.sentences * len(self.languages) - 1)

    @property
    def removed(self) -> str:
        """The name of ``after`` in tables and plots."""
        return f"without {self.components} component{'s' if self.components > 1 else ''}"


def evaluate(
    encoder: Encoder,
    texts: Texts,
    *,
    neighbours: int = 10,
    components: int = 1,
    limit: int = 1000,
    drop_overlap: bool = False,
    show_progress: bool = False,
) -> Results:
    """Measure the shares of the languages before and after principal component removal.

    Args:
        neighbours: Number of nearest neighbours of each sentence that are counted.
        components: Number of principal components to remove from the vectors of each language; they are computed on
            the same sentences.
        limit: Maximum number of sentences per language. All languages are cut to the size of the smallest.
        drop_overlap: Whether to leave out the examples that were in the training text.

    Raises:
        UserError: A number is out of range, the encoder refuses a language, or ``drop_overlap`` is set without training
            hashes.
    """
    if components < 1:
        raise UserError(f"--remove-components {components}", cure="give at least 1")
    groups = _even(_pool(texts), limit)
    check_languages(encoder, {language: sentences[0] for group in groups for language, sentences in group.items()})
    found = [find_overlap(encoder.training_hashes, *group.values(), drop=drop_overlap) for group in groups]
    overlap = sum((counted for _, counted in found[1:]), found[0][1])
    if drop_overlap:
        groups = _even([_only(group, keep) for group, (keep, _) in zip(groups, found, strict=True)], limit)
    columns = {language: sentences for group in groups for language, sentences in group.items()}
    languages, count = sorted(columns), len(next(iter(columns.values())))
    _check(neighbours, components, count, len(languages))
    vectors = []
    for language in tqdm(languages, disable=not show_progress, leave=False, unit=" languages"):
        vectors.append(encoder.encode(columns[language], language))
    if components >= vectors[0].shape[1]:
        cure = f"give at most {vectors[0].shape[1] - 1}"
        raise UserError(f"--remove-components {components} of vectors {vectors[0].shape[1]} wide", cure=cure)
    without = [normalize_rows(remove_components(own, components)) for own in vectors]
    before, after = (100 * language_shares(sides, neighbours) for sides in (vectors, without))
    return Results(languages, count, neighbours, components, before, after, overlap)


def _pool(texts: Texts) -> list[Group]:
    """Return groups in which each language occurs once: one group if all are parallel, else one group per language."""
    if len(texts.groups) == 1:
        return texts.groups
    columns = {
        language: [group[language] for group in texts.groups if language in group] for language in texts.languages
    }
    return [{language: _in_turn(sides)} for language, sides in columns.items()]


def _in_turn(columns: list[list[str]]) -> list[str]:
    """Return line 1 of the first column, line 2 of the second and so on, without repeated sentences."""
    turns = ((line, columns[line % len(columns)]) for line in range(max(map(len, columns))))
    return list(dict.fromkeys(column[line] for line, column in turns if line < len(column)))


def _even(groups: Sequence[Group], limit: int) -> list[Group]:
    count = min(limit, *(len(sentences) for group in groups for sentences in group.values()))
    if count < 2:
        languages = [language for group in groups for language, sentences in group.items() if len(sentences) < 2]
        problem = f"fewer than 2 sentences of {' '.join(languages) or 'each language'}"
        raise UserError(problem, cure="leave it out of --langs" if languages else "give a larger --sentences")
    return [{language: sentences[:count] for language, sentences in group.items()} for group in groups]


def _only(group: Group, rows: np.ndarray) -> Group:
    chosen = np.flatnonzero(rows)
    return {language: [sentences[row] for row in chosen] for language, sentences in group.items()}


def _check(neighbours: int, components: int, count: int, languages: int) -> None:
    sentences = f"{count} sentences of each of {languages} languages"
    if not 1 <= neighbours < count * languages:
        cure = f"give 1 to {count * languages - 1}"
        raise UserError(f"--neighbours {neighbours}, but {sentences}", cure=cure)
    if components >= count:
        raise UserError(f"--remove-components {components}, but {sentences}", cure=f"give at most {count - 1}")


def table(results: Results) -> str:
    """Return tables of shares in percent, and the overlap line.

    The first table has the share of the own language before and after. For up to 12 languages, tables with the shares
    of all languages follow.
    """
    languages, own = results.languages, _own(results)
    rows = [
        [f"{name(language)} ({language})", *(f"{values[i]:.1f}" for values in own)]
        for i, language in enumerate(languages)
    ]
    rows += [[], ["mean", *(f"{values.mean():.1f}" for values in own)]]
    parts = [
        f"share (%) of the own language among the {results.neighbours} nearest neighbours, "
        f"{results.unbiased:.1f} without a bias; {results.sentences} sentences of each of {len(languages)} languages",
        text_table.table(["query", "as it is", results.removed], rows),
    ]
    if len(languages) <= 12:
        for what, shares in (("as it is", results.before), (results.removed, results.after)):
            cells = [[language, *(f"{share:.1f}" for share in shares[i])] for i, language in enumerate(languages)]
            parts += ["", f"share (%) of each language, {what}", text_table.table(["query", *languages], cells)]
    return "\n".join([*parts, results.overlap.line])


def values(results: Results) -> dict[str, Any]:
    """Return the results for JSON, with all shares in percent.

    The keys are ``own`` (mean over languages, ``before`` and ``after``), ``unbiased``, ``before`` and ``after``
    (language of the query -> language of the neighbours -> share) and ``sentences`` (number of sentences per language).
    """
    before, after = (
        {
            query: dict(zip(results.languages, row, strict=True))
            for query, row in zip(results.languages, shares.tolist(), strict=True)
        }
        for shares in (results.before, results.after)
    )
    own = dict(zip(("before", "after"), (float(part.mean()) for part in _own(results)), strict=True))
    return {"own": own, "unbiased": results.unbiased, "before": before, "after": after, "sentences": results.sentences}


def headline(results: Results) -> dict[str, float]:
    """Return the mean share of the own language before and after, in percent."""
    before, after = (float(part.mean()) for part in _own(results))
    own = f"own language of {len(results.languages)}"
    return {own: before, f"{own}, {results.removed}": after}


def _own(results: Results) -> tuple[np.ndarray, np.ndarray]:
    return results.before.diagonal(), results.after.diagonal()
