"""Zero-shot semantic textual similarity: correlate the similarity of two vectors with human scores.

The results of a data set with several subsets have been averaged in three ways, which differ by points (Gao et al.,
2021, "SimCSE", appendix B). All three are reported: ``all`` (one correlation over the pairs of all subsets together),
``mean`` (the mean of the subsets' correlations) and ``wmean`` (that mean, weighted by the number of pairs). For a data
set without subsets the three are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages, encode_columns, whitened
from xrep.evaluation.evaluation import (
    DimensionsOption,
    EncoderOptions,
    Evaluation,
    Figures,
    OverlapOption,
    progress,
    table,
)
from xrep.evaluation.overlap import Overlap, find_overlap, total
from xrep.evaluation.reading import choose_languages, folders_with
from xrep.evaluation.sts_sets import Subset, TestSet, find_sets
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.metrics.bootstrap import resampled
from xrep.metrics.correlation import pearson, spearman
from xrep.retrieval.neighbours import normalize_rows

SIMILARITIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "cosine": lambda x, y: (normalize_rows(x) * normalize_rows(y)).sum(axis=1),
    "dot": lambda x, y: (x * y).sum(axis=1),
    "euclidean": lambda x, y: -np.linalg.norm(x - y, axis=1),
    "manhattan": lambda x, y: -np.abs(x - y).sum(axis=1),
}
"""Functions from rows x [N, D] and y [N, D] to float [N]; higher means more similar (distances are negated)."""
CORRELATIONS = {"spearman": spearman, "pearson": pearson}
AVERAGES = ("all", "mean", "wmean")
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
"""The data sets of the published average (SimCSE; CMLM, table 2), which is given if all of them were measured."""
_FILES = r"STS\.input\..+\.txt|sts-test\.csv|SICK_test_annotated\.txt|stsb-.+-test\.csv"


@dataclass(frozen=True)
class Measured:
    """Correlations of one test, times 100: the three averages, and one per subset, by name."""

    all: float
    mean: float
    wmean: float
    subsets: dict[str, float]


class Sts(Evaluation):
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
    class Config(EncoderOptions, DimensionsOption, OverlapOption):
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

    def read(self) -> None:
        if self.config.whiten < 0:
            raise UserError(f"`whiten` {self.config.whiten}", cure="give 0 or more")
        self.tests = select(find_sets(self.config.data, self.config.split), self.config.langs)

    def measure(self, encoder: Encoder) -> Figures:
        check_languages(encoder, {test.language: test.subsets[0].first[0] for test in self.tests})
        values, resamples, overlaps, kept = {}, {}, [], []
        for whole in progress(self.tests, "tests"):
            test, overlap = _without_overlap(whole, encoder, self.config.drop_overlap)
            scores = similarities(encoder, test, self.config.whiten)
            correlations = correlations_of(test, scores)
            resamples[_label(test.name, test.split)] = _resampled(test, scores["cosine"])
            values[test.name] = {
                "split": test.split,
                "language": test.language,
                "pairs": len(test),
                "overlap": asdict(overlap),
                **{
                    similarity: {name: asdict(averages) for name, averages in own.items()}
                    for similarity, own in correlations.items()
                },
            }
            overlaps.append(overlap)
            kept.append(test)
        headline = {_label(name, own["split"]): own["cosine"]["spearman"]["all"] for name, own in values.items()}
        text = _text(kept, values)
        if set(SEVEN) <= values.keys():
            own = [_label(name, values[name]["split"]) for name in SEVEN]
            label = "average of 7, Spearman all"
            headline[label] = float(np.mean([headline[name] for name in own]))
            resamples[label] = np.mean([resamples[name] for name in own], axis=0)
            wmean = float(np.mean([values[name]["cosine"]["spearman"]["wmean"] for name in SEVEN]))
            text += f"\n\n{label}: {headline[label]:.2f} (wmean: {wmean:.2f})"
        return Figures(
            text=text,
            values=values,
            headline=headline,
            resamples=resamples,
            settings={"split": self.config.split, "languages": self.config.langs, "whiten": self.config.whiten},
            files=[file for test in self.tests for file in test.files],
            overlap=total(overlaps),
        )


def select(tests: Sequence[TestSet], languages: str) -> list[TestSet]:
    """Return the tests in the languages that ``--langs`` names; see ``choose_languages``."""
    wanted = choose_languages(languages, sorted({test.language for test in tests}), "STS data for")
    return [test for test in tests if test.language in wanted]


def _without_overlap(test: TestSet, encoder: Encoder, drop: bool) -> tuple[TestSet, Overlap]:
    subsets, overlaps = [], []
    for subset in test.subsets:
        columns = subset.first, subset.second
        keep, overlap = find_overlap(encoder.training_hashes, *columns, drop=drop, name=subset.name, least=2)
        subsets.append(subset.only(keep))
        overlaps.append(overlap)
    return replace(test, subsets=subsets), total(overlaps)


def measure(encoder: Encoder | SentenceEncoder, test: TestSet) -> dict[str, dict[str, Measured]]:
    """Return the correlations of one test as ``[similarity][correlation]``."""
    return correlations_of(test, similarities(encoder, test))


def _label(name: str, split: str) -> str:
    return f"{name} {split}, Spearman all"


def similarities(encoder: Encoder | SentenceEncoder, test: TestSet, whiten: int = 0) -> dict[str, list[np.ndarray]]:
    """Return the scores of the pairs of each subset, by similarity: float64 [N] each."""
    # Vectors are not normalised: with length 1, dot product, Euclidean distance and cosine would give the same ranking.
    columns = [column for subset in test.subsets for column in (subset.first, subset.second)]
    encoded = encode_columns(encoder, columns, test.language)
    joined = whitened(np.concatenate(encoded).astype(np.float64), whiten)
    vectors = np.split(joined, np.cumsum([len(column) for column in encoded])[:-1])
    return {
        similarity: [function(first, second) for first, second in zip(vectors[::2], vectors[1::2], strict=True)]
        for similarity, function in SIMILARITIES.items()
    }


def correlations_of(test: TestSet, scores: Mapping[str, Sequence[np.ndarray]]) -> dict[str, dict[str, Measured]]:
    """Return the correlations of scores, by similarity, with the gold scores as ``[similarity][correlation]``."""
    return {
        similarity: {name: average(test.name, test.subsets, own, function) for name, function in CORRELATIONS.items()}
        for similarity, own in scores.items()
    }


def _resampled(test: TestSet, scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return Spearman's correlation on resampled pairs of all subsets together, float64 [R]."""
    together, gold = np.concatenate(list(scores)), np.concatenate([subset.gold for subset in test.subsets])
    return 100 * resampled(lambda rows: spearman(together[rows], gold[rows]), len(gold))


def average(
    name: str,
    subsets: Sequence[Subset],
    scores: Sequence[np.ndarray],
    correlation: Callable[[np.ndarray, np.ndarray], float],
) -> Measured:
    """Compute the correlation of each subset's scores [N] with its gold scores, and the three averages."""
    of_each = {}
    for subset, score in zip(subsets, scores, strict=True):
        for kind, series in (("similarities", score), ("gold scores", subset.gold)):
            if (series == series[0]).all():
                raise UserError(f"all {kind} of {subset.name} ({name}) are equal", cure="nothing can be measured on it")
        of_each[subset.name] = 100 * correlation(score, subset.gold)
    together = np.concatenate(list(scores)), np.concatenate([subset.gold for subset in subsets])
    values = list(of_each.values())
    weighted = np.average(values, weights=[len(subset) for subset in subsets])
    return Measured(100 * correlation(*together), float(np.mean(values)), float(weighted), of_each)


def _text(tests: Sequence[TestSet], values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of correlations times 100: of the cosine by subset and average, and of all similarities."""
    rows, others = [], []
    for test in tests:
        own = values[test.name]
        cosine = [own["cosine"][name] for name in CORRELATIONS]
        rows.append([test.name, test.split, len(test), *(by_average[a] for by_average in cosine for a in AVERAGES)])
        for subset in test.subsets if len(test.subsets) > 1 else []:
            spearman_of, pearson_of = (by_average["subsets"][subset.name] for by_average in cosine)
            rows.append([f"  {subset.name}", "", len(subset), spearman_of, "", "", pearson_of])
        others.append([test.name, *(own[s][name]["all"] for name in CORRELATIONS for s in SIMILARITIES)])
    header = ["test", "split", "pairs", *(f"{name} {a}" for name in CORRELATIONS for a in AVERAGES)]
    names = [f"{name} {similarity}" for name in CORRELATIONS for similarity in SIMILARITIES]
    return (
        "correlation x 100 of the cosine with the gold scores; all: of all subsets' pairs together,\n"
        f"mean: of the subsets' correlations, wmean: that mean weighted by pairs\n{table(header, rows)}\n\n"
        f"by similarity, all pairs together (the distances negative)\n{table(['test', *names], others)}"
    )
