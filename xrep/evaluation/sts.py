"""Zero-shot semantic textual similarity: correlate the similarity of two vectors with human scores.

The results of a data set with several subsets have been averaged in three ways, which differ by points (Gao et al.,
2021, "SimCSE", appendix B). All three are reported: ``all`` (one correlation over the pairs of all subsets together),
``mean`` (the mean of the subsets' correlations) and ``wmean`` (that mean, weighted by the number of pairs). For a data
set without subsets the three are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation import text_table
from xrep.evaluation.encoders import Encoder, Encodes, check_languages
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.evaluation.sts_sets import Subset, TestSet
from xrep.metrics.correlation import pearson, spearman
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.languages import canonical

SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda x, y: (normalize_rows(x) * normalize_rows(y)).sum(axis=1),
    "dot": lambda x, y: (x * y).sum(axis=1),
    "euclidean": lambda x, y: -np.linalg.norm(x - y, axis=1),
    "manhattan": lambda x, y: -np.abs(x - y).sum(axis=1),
}
"""Functions from rows x [N, D] and y [N, D] to float [N]; higher means more similar (distances are negated)."""
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
AVERAGES = ("all", "mean", "wmean")


@dataclass(frozen=True)
class Measured:
    """Correlations of one test, times 100: one per subset, by name, and the three averages."""

    subsets: dict[str, float]
    all: float
    mean: float
    wmean: float

    def as_dict(self) -> dict[str, Any]:
        return {average: getattr(self, average) for average in AVERAGES} | {"subsets": self.subsets}


@dataclass(frozen=True)
class Result:
    """Result of one test; the correlations are in ``measured[similarity][correlation]``."""

    test: TestSet
    measured: dict[str, dict[str, Measured]]
    overlap: Overlap


def select(tests: Sequence[TestSet], languages: str) -> list[TestSet]:
    """Return the tests in the given languages.

    Args:
        languages: ``all``, or codes (``de`` or ``deu``) separated by commas.

    Raises:
        UserError: No test is in one of the languages, or no language is named.
    """
    if languages == "all":
        return list(tests)
    wanted = {canonical(code.strip()) for code in languages.split(",") if code.strip()}
    known = {test.language for test in tests}
    if not wanted or wanted - known:
        problem = f"no STS data for {' '.join(sorted(wanted - known))}" if wanted else "no language named"
        raise UserError(problem, cure=f"give --langs all or any of {','.join(sorted(known))}")
    return [test for test in tests if test.language in wanted]


def evaluate(
    encoder: Encoder, tests: Sequence[TestSet], *, drop_overlap: bool = False, show_progress: bool = False
) -> list[Result]:
    """Measure every test with every similarity.

    Args:
        drop_overlap: Whether to leave out the pairs that were in the training text.

    Raises:
        UserError: The encoder refuses a language; ``drop_overlap`` is set, but there are no training hashes or too few
            pairs are left; or all similarities are equal.
    """
    check_languages(encoder, {test.language: test.subsets[0].first[0] for test in tests})
    results = []
    progress = tqdm(tests, disable=not show_progress, leave=False, unit=" tests")
    for test in progress:
        progress.set_postfix_str(test.name)
        test, overlap = _without_overlap(test, encoder, drop_overlap)
        results.append(Result(test, measure(encoder, test), overlap))
    return results


def _without_overlap(test: TestSet, encoder: Encoder, drop: bool) -> tuple[TestSet, Overlap]:
    found = [find_overlap(encoder.training_hashes, subset.first, subset.second, drop=drop) for subset in test.subsets]
    overlap = sum((counted for _, counted in found[1:]), found[0][1])
    subsets = [subset.only(keep) for subset, (keep, _) in zip(test.subsets, found, strict=True)]
    for subset in subsets:
        if len(subset) < 2:
            problem = f"{len(subset)} pairs of {subset.name} ({test.name}) are left without those trained on"
            raise UserError(problem, cure="measure without --drop-overlap")
    return replace(test, subsets=subsets), overlap


def measure(encoder: Encodes, test: TestSet) -> dict[str, dict[str, Measured]]:
    """Return the correlations of one test as ``[similarity][correlation]``."""
    sentences = [sentence for subset in test.subsets for sentence in subset.first + subset.second]
    places = {sentence: place for place, sentence in enumerate(dict.fromkeys(sentences))}
    # Vectors are not normalised: with length 1, dot product, Euclidean distance and cosine would give the same ranking.
    vectors = encoder.encode(list(places), test.language, normalize=False).astype(np.float64)
    sides = [
        [vectors[[places[sentence] for sentence in side]] for side in (subset.first, subset.second)]
        for subset in test.subsets
    ]
    measured: dict[str, dict[str, Measured]] = {}
    for similarity, function in SIMILARITIES.items():
        scores = [function(first, second) for first, second in sides]
        measured[similarity] = {
            name: average(test.name, test.subsets, scores, correlation) for name, correlation in CORRELATIONS.items()
        }
    return measured


def average(
    name: str,
    subsets: Sequence[Subset],
    scores: Sequence[np.ndarray],
    correlation: Callable[[np.ndarray, np.ndarray], float],
) -> Measured:
    """Compute the correlation of each subset's scores [N] with its gold scores, and the three averages.

    Raises:
        UserError: The scores, or the gold scores, of a subset are all equal.
    """
    found = {}
    for subset, score in zip(subsets, scores, strict=True):
        for what, series in (("similarities", score), ("gold scores", subset.gold)):
            if (series == series[0]).all():
                raise UserError(f"all {what} of {subset.name} ({name}) are equal", cure="nothing can be measured on it")
        found[subset.name] = 100 * correlation(score, subset.gold)
    together = np.concatenate(list(scores)), np.concatenate([subset.gold for subset in subsets])
    values = list(found.values())
    weighted = np.average(values, weights=[len(subset) for subset in subsets])
    return Measured(found, 100 * correlation(*together), float(np.mean(values)), float(weighted))


def table(results: Sequence[Result]) -> str:
    """Return tables of correlations times 100 (cosine by subset and average; all similarities) and the overlap line."""
    header = ["test", "split", "pairs", *(f"{name} {a}" for name in CORRELATIONS for a in AVERAGES)]
    rows = []
    for result in results:
        test, found = result.test, result.measured["cosine"]
        numbers = [f"{getattr(found[name], a):.2f}" for name in CORRELATIONS for a in AVERAGES]
        rows.append([test.name, test.split, str(len(test)), *numbers])
        for subset in test.subsets if len(test.subsets) > 1 else []:
            one = [f"{found[name].subsets[subset.name]:.2f}" for name in CORRELATIONS]
            rows.append([f"  {subset.name}", "", str(len(subset)), one[0], "", "", one[1]])
    others = [
        [result.test.name, *(f"{result.measured[s][name].all:.2f}" for name in CORRELATIONS for s in SIMILARITIES)]
        for result in results
    ]
    names = [f"{name} {similarity}" for name in CORRELATIONS for similarity in SIMILARITIES]
    return "\n".join(
        [
            "correlation x 100 of the cosine with the gold scores; all: of all subsets' pairs together,",
            "mean: of the subsets' correlations, wmean: that mean weighted by pairs",
            text_table.table(header, rows),
            "",
            "by similarity, all pairs together (the distances negative)",
            text_table.table(["test", *names], others),
            overlap_of(results).line,
        ]
    )


def overlap_of(results: Sequence[Result]) -> Overlap:
    """Return the overlap of all tests together."""
    return sum((result.overlap for result in results[1:]), results[0].overlap)


def values(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results for JSON, with correlations times 100.

    Each test is mapped to ``split``, ``language``, ``pairs``, ``overlap``, and similarity -> correlation -> ``all``,
    ``mean``, ``wmean``, ``subsets``.
    """
    return {
        result.test.name: {
            "split": result.test.split,
            "language": result.test.language,
            "pairs": len(result.test),
            "overlap": result.overlap.as_dict(),
            **{
                similarity: {name: measured.as_dict() for name, measured in by_correlation.items()}
                for similarity, by_correlation in result.measured.items()
            },
        }
        for result in results
    }


def headline(results: Sequence[Result]) -> dict[str, float]:
    """Return Spearman's correlation of the cosine over all pairs, times 100, by names of test and split."""
    names = {result.test.name: f"{result.test.name} {result.test.split}, Spearman all" for result in results}
    return {names[result.test.name]: result.measured["cosine"]["spearman"].all for result in results}
