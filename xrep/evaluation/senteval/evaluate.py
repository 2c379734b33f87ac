"""Measure an encoder on SentEval's sets: features once, then a classifier for each set and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation import text_table
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.evaluation.senteval import protocols, readers
from xrep.evaluation.senteval.folds import Classifier
from xrep.evaluation.senteval.protocols import Examples
from xrep.evaluation.senteval.sklearn_classifier import SklearnClassifier, check_sklearn
from xrep.evaluation.senteval.torch_classifier import TorchClassifier

CLASSIFIERS: dict[str, type[Classifier]] = {"senteval": TorchClassifier, "sklearn": SklearnClassifier}
SUPERVISED = {"SICK-R": "SICK-R (supervised)"}
"""How results name a set that has a zero-shot figure, too (``xrep-eval sts``)."""
_TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
AVERAGES = {"average of 7": _TRANSFER, "average of 9": (*_TRANSFER, "SICK-E", "SICK-R")}
"""Published averages: of the seven transfer tasks, and of these with SICK-E and SICK-R as in "Universal Sentence
Representation Learning with Conditional Masked Language Model" (table 1)."""


@dataclass(frozen=True)
class Settings:
    """What a result depends on besides encoder and data."""

    classifier: str = "senteval"
    """A name in CLASSIFIERS."""
    seeds: tuple[int, ...] = (1111,)
    """Of folds, first weights and order of batches; 1111 is SentEval's."""
    folds: int = 10

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        grid = list(CLASSIFIERS[self.classifier]().grid)
        return {"classifier": self.classifier, "grid": grid, "seeds": list(self.seeds), "folds": self.folds}

    def check(self) -> None:
        """Find out before the work whether it can be done.

        Raises:
            UserError: fewer than 2 folds; no seed, one twice, or a number that is none; no scikit-learn.
        """
        check_sklearn()
        if self.folds < 2:
            raise UserError(f"{self.folds} folds", cure="give --folds 2 or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**32 for s in self.seeds):
            seeds = ",".join(map(str, self.seeds))
            raise UserError(f"--seeds {seeds!r}", cure="give different numbers from 0 to 4294967295, such as 1,2,3")


@dataclass(frozen=True)
class Measured:
    """What was found on one set.

    Attributes:
        protocol: how, in words.
        by_seed: seed -> measure -> value, see ``protocols``; the first measure is the one that is quoted.
        sizes: examples of each split.
    """

    protocol: str
    by_seed: dict[int, dict[str, float]]
    sizes: dict[str, int]
    overlap: Overlap

    @property
    def measures(self) -> list[str]:
        return list(next(iter(self.by_seed.values())))

    def mean(self, measure: str) -> float:
        """Over the seeds."""
        return float(np.mean([values[measure] for values in self.by_seed.values()]))

    def spread(self, measure: str) -> float | None:
        """Standard deviation over the seeds (of a sample, n - 1); None for one seed."""
        values = [values[measure] for values in self.by_seed.values()]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


Results = dict[str, Measured]
"""Set -> what was found."""


def select(sets: str, data: str | Path, lang: str) -> list[readers.DataSet]:
    """Read the sets asked for; ``all`` is every one that lies in the folder, else names separated by commas.

    Raises:
        UserError: an unknown set, one the folder does not hold, or a file of another form.
    """
    found = readers.find(data)
    wanted = list(found) if sets == "all" else [name.strip() for name in sets.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in readers.SETS]
    if unknown or not wanted:
        raise UserError(f"no set {' '.join(unknown) or 'named'}", cure=f"the sets are {' '.join(readers.SETS)}")
    if missing := [name for name in wanted if name not in found]:
        raise UserError(f"no files of {' '.join(missing)}", path=data, cure=f"it holds {' '.join(found)}")
    return [readers.read(name, *found[name], lang) for name in readers.SETS if name in wanted]


def encode(encoder: Encoder, data: readers.DataSet, lang: str, show_progress: bool = False) -> dict[str, np.ndarray]:
    """Features of each split, float32 [N, D]: vectors as the encoder gives them, or [|u - v|, u * v] of pairs, [N, 2D].

    Each sentence is encoded once.
    """
    splits = data.splits.values()
    sentences = sorted({sentence for split in splits for side in split.sides for sentence in side})
    vectors = encoder.encode(sentences, lang, normalize=False, show_progress=show_progress)
    rows = {sentence: row for row, sentence in enumerate(sentences)}
    return {
        name: pair_features(*(vectors[[rows[sentence] for sentence in side]] for side in split.sides))
        for name, split in data.splits.items()
    }


def pair_features(u: np.ndarray, v: np.ndarray | None = None) -> np.ndarray:
    """[|u - v|, u * v] of the vectors of pairs; single sentences keep theirs."""
    return u if v is None else np.concatenate([np.abs(u - v), u * v], axis=1)


def evaluate(
    encoder: Encoder,
    sets: Sequence[readers.DataSet],
    settings: Settings,
    lang: str,
    *,
    drop_overlap: bool = False,
    show_progress: bool = False,
) -> Results:
    """The whole test.

    Args:
        drop_overlap: leave out the test examples that were in the training text of ``encoder``.

    Raises:
        UserError: an encoder without the language, too few examples for the folds.
    """
    settings.check()
    kept = [_without_overlap(encoder, data, drop_overlap) for data in sets]
    for data, _ in kept:
        _check_sizes(data, settings.folds)
    results: Results = {}
    features: tuple[list[Path], dict[str, np.ndarray]] = [], {}
    progress = tqdm(kept, disable=not show_progress, leave=False, unit=" sets")
    for data, overlap in progress:
        progress.set_postfix_str(data.name)
        if data.files != features[0]:  # SICK-E and SICK-R are two questions about the same pairs
            features = data.files, encode(encoder, data, lang, show_progress)
        examples = {name: Examples(features[1][name], split.targets) for name, split in data.splits.items()}
        results[data.name] = _measure(data, examples, settings, overlap)
    return results


def _without_overlap(encoder: Encoder, data: readers.DataSet, drop: bool) -> tuple[readers.DataSet, Overlap]:
    split = data.splits[data.tested]
    keep, overlap = find_overlap(encoder.training_hashes, *split.sides, drop=drop)
    splits = {**data.splits, data.tested: split.only(keep)}
    return readers.DataSet(data.name, splits, data.files), overlap


def _check_sizes(data: readers.DataSet, folds: int) -> None:
    """Two examples of each class for each fold where folds are drawn; something to learn and to test everywhere."""
    train = data.splits.get("all") or data.splits["train"]
    if not len(data.splits[data.tested]):
        raise UserError(f"{data.name} has no test examples left", cure=f"measure without {data.name}")
    if data.name == "SICK-R":
        return
    counts = np.bincount(train.targets, minlength=max(2, data.classes))
    if counts.min() < (needed := 1 if "dev" in data.splits else 2 * folds):
        problem = f"{data.name} has {counts.min()} training examples of class {counts.argmin()}, {needed} are needed"
        raise UserError(problem, path=data.files[0], cure=f"measure with fewer --folds or without {data.name}")


def _measure(data: readers.DataSet, examples: dict[str, Examples], settings: Settings, overlap: Overlap) -> Measured:
    protocol, measure = _protocol(data, examples, CLASSIFIERS[settings.classifier](), settings.folds)
    by_seed: dict[int, dict[str, float]] = {}
    for seed in settings.seeds:
        # On a fixed dev split an exact minimum is the same for every seed.
        fixed = "dev" in examples and settings.classifier == "sklearn" and by_seed
        by_seed[seed] = by_seed[settings.seeds[0]] if fixed else measure(seed)
    return Measured(protocol, by_seed, {name: len(split) for name, split in data.splits.items()}, overlap)


def _protocol(
    data: readers.DataSet, examples: dict[str, Examples], classifier: Classifier, folds: int
) -> tuple[str, Callable[[int], dict[str, float]]]:
    """What is done with a set, in words, and as a function of the seed."""
    if data.name == "SICK-R":
        return "dev split, regression", lambda seed: protocols.relatedness(**examples, classifier=classifier, seed=seed)
    options = {"classes": data.classes, "classifier": classifier}
    if "dev" in examples:
        return "dev split", lambda seed: protocols.split(**examples, **options, seed=seed)
    options["folds"] = folds
    if "all" in examples:
        return f"nested {folds}-fold", lambda seed: protocols.nested(examples["all"], **options, seed=seed)
    return f"{folds}-fold on train", lambda seed: protocols.folded(**examples, **options, seed=seed)


def headline(results: Results) -> dict[str, float]:
    """The figures the sets are quoted by (accuracy; Pearson times 100 of SICK-R), means over seeds; the averages of
    which every set was measured."""
    quoted = {name: measured.mean(measured.measures[0]) for name, measured in results.items()}
    averages = {
        average: float(np.mean([quoted[name] for name in names]))
        for average, names in AVERAGES.items()
        if quoted.keys() >= set(names)
    }
    return {**{SUPERVISED.get(name, name): value for name, value in quoted.items()}, **averages}


def values(results: Results) -> dict[str, Any]:
    """For JSON: set -> ``protocol``, ``examples`` (of each split), ``overlap``, ``by_seed`` (seed -> measure -> value),
    ``mean`` and ``spread`` (measure -> value; null for one seed), all in percent but ``mse``."""
    return {
        SUPERVISED.get(name, name): {
            "protocol": measured.protocol,
            "examples": measured.sizes,
            "overlap": measured.overlap.as_dict(),
            "by_seed": {str(seed): found for seed, found in measured.by_seed.items()},
            "mean": {measure: measured.mean(measure) for measure in measured.measures},
            "spread": {measure: measured.spread(measure) for measure in measured.measures},
        }
        for name, measured in results.items()
    }


def overlap_of(results: Results) -> Overlap:
    """Of all sets together."""
    first, *others = (measured.overlap for measured in results.values())
    return sum(others, first)


def table(results: Results) -> str:
    """A line for each set, the averages, the overlap line."""
    header = ["set", "protocol", "tested", "measure", "test", "spread", "dev", "further"]
    rows = [_row(name, measured) for name, measured in results.items()]
    averages = [[name, "", "", "", f"{value:.2f}"] for name, value in headline(results).items() if name in AVERAGES]
    return text_table.table(header, [*rows, *([[], *averages] if averages else [])]) + "\n" + overlap_of(results).line


def _row(name: str, measured: Measured) -> list[str]:
    quoted, *others = (measure for measure in measured.measures if measure != "dev")
    spread = measured.spread(quoted)
    return [
        SUPERVISED.get(name, name),
        measured.protocol,
        str(measured.overlap.total - (measured.overlap.found or 0) * measured.overlap.dropped),
        quoted,
        f"{measured.mean(quoted):.2f}",
        "" if spread is None else f"{spread:.2f}",
        f"{measured.mean('dev'):.2f}",
        " ".join(f"{measure} {measured.mean(measure):.2f}" for measure in others),
    ]
