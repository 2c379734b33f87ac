"""Zero-shot semantic textual similarity, on data sets in the format in which they are published.

The sets are STS12 to STS16 (SemEval; Agirre et al., 2012 to 2016), where a blank line means that the pair has no score,
STS-B, its translations and SICK-R. The three ways to average subsets differ by points (Gao et al., 2021, "SimCSE",
appendix B).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xrep.config.fields import CountOrZero
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, encode_columns
from xrep.evaluation.evaluation import Examples, Result, Score, TableEvaluation, VectorTestOptions
from xrep.evaluation.reading import choose_languages, existing_folder, folders_with
from xrep.metrics import components
from xrep.metrics.bootstrap import resampled
from xrep.metrics.correlation import pearson, spearman
from xrep.store.vectors import normalize_rows
from xrep.tables import table
from xrep.text.examples import read_parallel
from xrep.text.records import cells
from xrep.text.scored_pairs import score_of, scored_set

if TYPE_CHECKING:
    from xrep.inference.sentence_encoder import SentenceEncoder

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
_FILES = r"STS(?:20\d\d)?\.input\..+\.txt|sts-test\.csv|SICK_test_annotated\.txt|stsb-.+-test\.csv"
_YEAR = re.compile(r"STS[-_ ]?(?:20)?(1[2-6])(?!\d)", re.IGNORECASE)
_LAYOUTS = "a folder with STS12-en-test and its like, STSBenchmark, SICK or stsb_multi_mt, or one of these"
_Row = tuple[str, Path, int, list[str]]
"""Subset, file and line of the score; and both sentences and the score as it is written, which may be blank."""


class Sts(TableEvaluation):
    """Measure semantic textual similarity: STS12-16, STS-B, SICK-R, multilingual STS-B.

    It is zero-shot: the Spearman and Pearson correlation of people's scores with the cosine (and dot product, negative
    Euclidean and Manhattan distance) of two vectors.

      xrep-eval sts --path run1/best --data sts/
      xrep-eval sts --path run1/best --data sts/stsb_multi_mt/ --langs de,fr --split dev --json sts.json

    --data is one of these data sets as they are published, or a folder of several:
      STS12-en-test/ to STS16-en-test/   STS.input.{subset}.txt and STS.gs.{subset}.txt (2016: STS2016.input. ...)
      STSBenchmark/                      sts-{train,dev,test}.csv
      SICK/                              SICK_train.txt, SICK_trial.txt (dev), SICK_test_annotated.txt
      stsb_multi_mt/                     stsb-{xx}-{train,dev,test}.csv

    Papers average the subsets of a year in three ways, which are printed side by side. The average over STS12 to STS16,
    STS-B and SICK-R is given if all seven were measured.
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder of the data sets."""
        langs: str = "all"
        """Languages of the data sets to measure (de,fr or deu,fra), or all."""
        split: Literal["test", "dev", "train"] = "test"
        """Split to measure on. STS12 to STS16 have only the test split."""
        whiten: CountOrZero = 0
        """Whiten the vectors of the sentences of each test to this number of directions, as Su et al. (2021) do, who
        keep 256; 0: leave them as they are."""

    config: Config

    heading, unit, least = "test", "pairs", 2

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {folder: cls.Config(data=str(folder))} if folders_with(folder, _FILES) else {}

    def read(self) -> list[Examples]:
        return select(find_sets(self.config.data, self.config.split), self.config.langs)

    def score(self, model: MeasuredEncoder, examples: Examples) -> Score:
        scores = similarities(model, examples, self.config.whiten)
        found, cosine, gold = correlations(examples, scores), scores["cosine"], examples.gold["score"]
        figures = {f"{name} {average}": found["cosine"][name][average] for name in CORRELATIONS for average in AVERAGES}

        def resample(seed: int) -> dict[str, np.ndarray]:
            return {QUOTED: 100 * resampled(lambda rows: spearman(cosine[rows], gold[rows]), len(gold))}

        return Score(figures, resample, {"split": examples.split, "language": examples.languages[0], **found})

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        return {"average of 7": list(SEVEN)} if set(SEVEN) <= results.keys() else {}

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        labels = {f"{name} {result.examples.split}": [name] for name, result in results.items()}
        labels |= self.averages(results)
        return {f"{label}, Spearman all": (QUOTED, names) for label, names in labels.items()}

    def shown(self, examples: Examples) -> str:
        return f"{examples.name} {examples.split}"

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        pairs = [(kind, similarity) for kind in CORRELATIONS for similarity in SIMILARITIES]
        rows = []
        for result in results.values():
            found = result.score.details
            rows.append([self.shown(result.examples), *(found[similarity][kind]["all"] for kind, similarity in pairs)])
        lines = [
            "correlation x 100 of the cosine with the gold scores; all: of all subsets' pairs together,",
            "mean: of the subsets' correlations, wmean: that mean weighted by pairs",
            super().text(results, averages),
            "\nby similarity, all pairs together (the distances negative)",
            table(["test", *(f"{kind} {similarity}" for kind, similarity in pairs)], rows),
        ]
        return "\n".join(lines)


def select(tests: Sequence[Examples], languages: str) -> list[Examples]:
    """Return the tests in the languages that ``--langs`` names; see ``choose_languages``."""
    wanted = choose_languages(languages, sorted({test.languages[0] for test in tests}), "STS data for")
    return [test for test in tests if test.languages[0] in wanted]


def similarities(encoder: MeasuredEncoder | SentenceEncoder, test: Examples, whiten: int = 0) -> dict[str, np.ndarray]:
    """Return the scores of the N pairs of a test by similarity, float64 [N] each."""
    # Vectors are not normalised: with length 1, dot product, Euclidean distance and cosine would give the same ranking.
    joined = np.concatenate(encode_columns(encoder, test.columns, test.languages[0])).astype(np.float64)
    try:
        joined = components.whiten(joined, whiten) if whiten else joined
    except ValueError as error:
        most = min(len(joined) - 1, joined.shape[1])
        raise UserError(f"`whiten` {whiten}: {error}", cure=f"give a smaller number, at most {most}") from None
    x, y = np.split(joined, 2)
    return {similarity: function(x, y) for similarity, function in SIMILARITIES.items()}


def correlations(test: Examples, scores: Mapping[str, np.ndarray]) -> Correlations:
    """Return the correlations of scores, by similarity, with the gold scores of a test."""
    subsets, gold, found = test.gold["subset"], test.gold["score"], Correlations()
    rows = {name: subsets == name for name in dict.fromkeys(subsets.tolist())}
    for name, subset in rows.items():
        if equal := [kind for kind, values in {**scores, "gold score": gold}.items() if not np.ptp(values[subset])]:
            problem = f"the {equal[0]} of all pairs of {name} ({test.name}) is equal"
            raise UserError(problem, cure="nothing can be measured on it")
    for similarity, values in scores.items():
        for kind, correlation in CORRELATIONS.items():
            each = {name: 100 * correlation(values[subset], gold[subset]) for name, subset in rows.items()}
            found.setdefault(similarity, {})[kind] = {
                "all": 100 * correlation(values, gold),
                "mean": float(np.mean(list(each.values()))),
                "wmean": float(np.average(list(each.values()), weights=[subset.sum() for subset in rows.values()])),
                "subsets": each,
            }
    return found


def find_sets(folder: str | Path, split: str = "test") -> list[Examples]:
    """Return every data set with this split in a folder and its subfolders (four levels deep), sorted by name. The
    columns are the two sentences of each pair, and ``gold`` has the fields ``score``, from 0 to 5, and ``subset``, the
    name of the subset of the data set."""
    folder = existing_folder(folder, f"name {_LAYOUTS}")
    sets = dict[str, Examples]()
    for inside, names in folders_with(folder).items():
        tests = [read_set(inside / name, split) for name in names]
        if split == "test" and any(inside.glob("STS*.input.*.txt")):
            tests.append(read_semeval(inside))
        for test in filter(None, tests):
            if test.name in sets:
                problem = f"{test.name} is in {Path(sets[test.name].files[0]).parent}, too"
                raise UserError(problem, path=inside, cure="name one of the two folders")
            sets[test.name] = test
    if not sets:
        raise UserError(f"no STS data set with a {split} split in it", path=folder, cure=f"name {_LAYOUTS}")
    return [sets[name] for name in sorted(sets)]


def read_set(file: Path, split: str | None = None) -> Examples | None:
    """Read a file of STS-B, its translations or SICK; None if its name is of none of them, or of another split."""
    own = scored_set(file)
    if own is None or split not in (None, own.split):
        return None
    return _examples(own.name, own.split, own.language, [(own.name, file, *row) for row in own.rows], [file])


def read_semeval(folder: Path) -> Examples:
    """Read one year of SemEval's STS; each of its input files becomes a subset."""
    year = _YEAR.search(folder.resolve().name)
    if not year:
        cure = "give the folder the name it was published by: STS12-en-test"
        raise UserError("the name of the folder has no year", path=folder, cure=cure)
    rows, files = list[_Row](), list[Path]()
    for file in sorted(folder.glob("STS*.input.*.txt")):
        prefix, _, name = file.name.removesuffix(".txt").partition(".input.")  # STS2016.input.headlines.txt
        if name == "ALL":  # it repeats the pairs of the other files
            continue
        gold = file.with_name(f"{prefix}.gs.{name}.txt")
        for line, (score, pair) in read_parallel([gold, file]):
            rows.append((name, gold, line, [*cells(file, line, pair.split("\t"), 2)[:2], score]))
        files += [file, gold]
    return _examples(f"STS{year[1]}", "test", "en", rows, files)


def _examples(name: str, split: str, language: str, rows: Sequence[_Row], files: list[Path]) -> Examples:
    """Return the pairs that have a score."""
    scored = [row for row in rows if row[-1][2].strip()]
    if len(scored) < 2:
        raise UserError(f"{len(scored)} scored pairs, a correlation needs 2", path=files[0], cure="fetch it again")
    gold = [(score_of(fields[2], (0, 5), path, line), subset) for subset, path, line, fields in scored]
    columns = tuple([fields[side].replace("\n", " ") for *_, fields in scored] for side in (0, 1))
    scores = np.array(gold, dtype=[("score", np.float64), ("subset", object)])
    return Examples(name, (language, language), columns, scores, tuple(files), split)
