"""Zero-shot semantic textual similarity: correlate the similarity of two vectors with human scores.

The results of a data set with several subsets have been averaged in three ways, which differ by points (Gao et al.,
2021, "SimCSE", appendix B). All three are reported: ``all`` (one correlation over the pairs of all subsets together),
``mean`` (the mean of the subsets' correlations) and ``wmean`` (that mean, weighted by the number of pairs). For a data
set without subsets the three are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, encode_columns, whitened
from xrep.evaluation.evaluation import Examples, Result, Score, TableEvaluation, VectorTestOptions, table
from xrep.evaluation.overlap import Overlap
from xrep.evaluation.reading import choose_languages, folders_with
from xrep.evaluation.sts_sets import find_sets, subsets_of
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.metrics.bootstrap import resampled
from xrep.metrics.correlation import pearson, spearman
from xrep.store.vectors import normalize_rows

SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda x, y: (normalize_rows(x) * normalize_rows(y)).sum(axis=1),
    "dot": lambda x, y: (x * y).sum(axis=1),
    "euclidean": lambda x, y: -np.linalg.norm(x - y, axis=1),
    "manhattan": lambda x, y: -np.abs(x - y).sum(axis=1),
}
"""Functions from rows x [N, D] and y [N, D] to float [N]; higher means more similar (distances are negated)."""
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
QUOTED = "spearman all"
"""Figure by which a test is quoted."""
AVERAGES = ("all", "mean", "wmean")
Correlations = dict[str, dict[str, dict[str, Any]]]
"""Correlations of a test, times 100, as ``[similarity][correlation]``: the ``AVERAGES``, and ``subsets``, by name."""
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
"""The data sets of the published average (SimCSE; CMLM, table 2), which is given if all of them were measured."""
_FILES = r"STS\.input\..+\.txt|sts-test\.csv|SICK_test_annotated\.txt|stsb-.+-test\.csv"


class Sts(TableEvaluation):
    """Measure semantic textual similarity: STS12-16, STS-B, SICK-R, multilingual STS-B.

    It is zero-shot: the Spearman and Pearson correlation of people's scores with the cosine (and dot product, negative
    Euclidean and Manhattan distance) of two vectors.

      xrep-eval sts --path run1/best --data sts/
      xrep-eval sts --path run1/best --data sts/stsb_multi_mt/ --langs de,fr --split dev --json sts.json

    --data is one of these data sets as they are published, or a folder of several:
      STS12-en-test/ to STS16-en-test/   STS.input.{subset}.txt and STS.gs.{subset}.txt
      STSBenchmark/                      sts-{train,dev,test}.csv
      SICK/                              SICK_train.txt, SICK_trial.txt (dev), SICK_test_annotated.txt
      stsb_multi_mt/                     stsb-{xx}-{train,dev,test}.csv

    Papers average the subsets of a year in three ways, which differ: all, mean and wmean are printed side by side. The
    average over STS12 to STS16, STS-B and SICK-R is given if all seven were measured.
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder of the data sets."""
        langs: str = "all"
        """Languages of the data sets to measure (de,fr or deu,fra), or all."""
        split: Literal["test", "dev", "train"] = "test"
        """Split to measure on. STS12 to STS16 have only the test split."""
        whiten: int = 0
        """Whiten the vectors of the sentences of each test to this number of directions, as Su et al. (2021) do, who
        keep 256; 0: leave them as they are."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {folder: cls.Config(data=str(folder))} if folders_with(folder, _FILES) else {}

    least = 2

    def read(self) -> list[Examples]:
        if self.config.whiten < 0:
            raise UserError(f"`whiten` {self.config.whiten}", cure="give 0 or more")
        return select(find_sets(self.config.data, self.config.split), self.config.langs)

    def without_overlap(self, model: Any, examples: Examples) -> tuple[Examples, Overlap]:
        kept, overlap = super().without_overlap(model, examples)
        left = {part.name: len(part) for part in subsets_of(kept)}
        if few := [part.name for part in subsets_of(examples) if left.get(part.name, 0) < self.least]:
            raise UserError(f"fewer than 2 pairs of {few[0]} are left", cure="measure without `drop_overlap`")
        return kept, overlap

    def score(self, model: Encoder, examples: Examples) -> Score:
        subsets = subsets_of(examples)
        scores = similarities(model, subsets, self.config.whiten)
        found = correlations_of(examples.name, subsets, scores)
        figures = {f"{name} {average}": found["cosine"][name][average] for name in CORRELATIONS for average in AVERAGES}
        details = {"split": examples.split, "language": examples.languages[0], **found}
        together, gold = np.concatenate(scores["cosine"]), examples.gold["score"]

        def resample(seed: int) -> dict[str, np.ndarray]:
            return {QUOTED: 100 * resampled(lambda rows: spearman(together[rows], gold[rows]), len(gold))}

        return Score(figures, resample, details)

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        return {"average of 7": list(SEVEN)} if set(SEVEN) <= results.keys() else {}

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        labels = {f"{name} {own.examples.split}": [name] for name, own in results.items()} | self.averages(results)
        return {f"{label}, Spearman all": (QUOTED, names) for label, names in labels.items()}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        rows, others = [], []
        for name, result in results.items():
            examples, own = result.examples, result.score.details
            rows.append([name, examples.split, len(examples), *result.score.figures.values()])
            subsets = subsets_of(examples)
            for part in subsets if len(subsets) > 1 else []:
                spearman_of, pearson_of = (own["cosine"][kind]["subsets"][part.name] for kind in CORRELATIONS)
                rows.append([f"  {part.name}", "", len(part), spearman_of, "", "", pearson_of])
            others.append([name, *(own[s][kind]["all"] for kind in CORRELATIONS for s in SIMILARITIES)])
        header = ["test", "split", "pairs", *(f"{kind} {average}" for kind in CORRELATIONS for average in AVERAGES)]
        names = [f"{kind} {similarity}" for kind in CORRELATIONS for similarity in SIMILARITIES]
        lines = [
            "correlation x 100 of the cosine with the gold scores; all: of all subsets' pairs together,",
            f"mean: of the subsets' correlations, wmean: that mean weighted by pairs\n{table(header, rows)}\n",
            f"by similarity, all pairs together (the distances negative)\n{table(['test', *names], others)}",
        ]
        for label, mean in averages.items():
            lines.append(f"\n{label}, Spearman all: {mean[QUOTED]:.2f} (wmean: {mean['spearman wmean']:.2f})")
        return "\n".join(lines)


def select(tests: Sequence[Examples], languages: str) -> list[Examples]:
    """Return the tests in the languages that ``--langs`` names; see ``choose_languages``."""
    wanted = choose_languages(languages, sorted({test.languages[0] for test in tests}), "STS data for")
    return [test for test in tests if test.languages[0] in wanted]


def measure(encoder: Encoder | SentenceEncoder, test: Examples) -> Correlations:
    """Return the correlations of one test."""
    subsets = subsets_of(test)
    return correlations_of(test.name, subsets, similarities(encoder, subsets))


def similarities(
    encoder: Encoder | SentenceEncoder, subsets: Sequence[Examples], whiten: int = 0
) -> dict[str, list[np.ndarray]]:
    """Return the scores of the pairs of each subset of a test, by similarity: float64 [N] each."""
    # Vectors are not normalised: with length 1, dot product, Euclidean distance and cosine would give the same ranking.
    columns = [column for subset in subsets for column in subset.columns]
    encoded = encode_columns(encoder, columns, subsets[0].languages[0])
    joined = whitened(np.concatenate(encoded).astype(np.float64), whiten)
    vectors = np.split(joined, np.cumsum([len(column) for column in encoded])[:-1])
    pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
    return {similarity: [function(*pair) for pair in pairs] for similarity, function in SIMILARITIES.items()}


def correlations_of(name: str, subsets: Sequence[Examples], scores: Mapping[str, Sequence[np.ndarray]]) -> Correlations:
    """Return the correlations of the scores of each subset, by similarity, with the gold scores."""
    gold, found = [subset.gold["score"] for subset in subsets], Correlations()
    for kind, series in [*(("similarities", own) for own in scores.values()), ("gold scores", gold)]:
        for subset, numbers in zip(subsets, series, strict=True):
            if (numbers == numbers[0]).all():
                raise UserError(f"all {kind} of {subset.name} ({name}) are equal", cure="nothing can be measured on it")
    for similarity, own in scores.items():
        for kind, correlation in CORRELATIONS.items():
            values = [100 * correlation(*pair) for pair in zip(own, gold, strict=True)]
            found.setdefault(similarity, {})[kind] = {
                "all": 100 * correlation(np.concatenate(own), np.concatenate(gold)),
                "mean": float(np.mean(values)),
                "wmean": float(np.average(values, weights=[len(subset) for subset in subsets])),
                "subsets": dict(zip([subset.name for subset in subsets], values, strict=True)),
            }
    return found
