"""Evaluate an encoder on SentEval's sets: compute features once, then fit classifiers for each set and seed."""

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
"""Names in results of sets that also have a zero-shot result (``xrep-eval sts``)."""
_TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
AVERAGES = {"average of 7": _TRANSFER, "average of 9": (*_TRANSFER, "SICK-E", "SICK-R")}
"""Published averages: over the seven transfer tasks, and over these with SICK-E and SICK-R, as in "Universal Sentence
Representation Learning with Conditional Masked Language Model" (table 1)."""


@dataclass(frozen=True)
class Settings:
    """Settings that a result depends on, besides encoder and data."""

    classifier: str = "senteval"
    """Name of the classifier, a key of ``CLASSIFIERS``."""
    seeds: tuple[int, ...] = (1111,)
    """Seeds for folds, initial weights and order of batches; 1111 is SentEval's."""
    folds: int = 10

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON."""
        grid = list(CLASSIFIERS[self.classifier]().grid)
        return {"classifier": self.classifier, "grid": grid, "seeds": list(self.seeds), "folds": self.folds}

    def check(self) -> None:
        """Check the settings before the work starts.

        Raises:
            UserError: There are fewer than 2 folds; there is no seed, a repeated one, or one out of range; or
                scikit-learn is not installed.
        """
        check_sklearn()
        if self.folds < 2:
            raise UserError(f"{self.folds} folds", cure="give --folds 2 or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**32 for s in self.seeds):
            seeds = ",".join(map(str, self.seeds))
            raise UserError(f"--seeds {seeds!r}", cure="give different numbers from 0 to 4294967295, such as 1,2,3")


@dataclass(frozen=True)
class Measured:
    """Results on one set.

    Attributes:
        protocol: Description of the protocol.
        by_seed: Seed -> measure -> value, see ``protocols``; the first measure is the one that is usually quoted.
        sizes: Number of examples in each split.
    """

    protocol: str
    by_seed: dict[int, dict[str, float]]
    sizes: dict[str, int]
    overlap: Overlap

    @property
    def measures(self) -> list[str]:
        return list(next(iter(self.by_seed.values())))

    def mean(self, measure: str) -> float:
        """Return the mean of a measure over the seeds."""
        return float(np.mean([values[measure] for values in self.by_seed.values()]))

    def spread(self, measure: str) -> float | None:
        """Return the sample standard deviation (n - 1) of a measure over the seeds; None for one seed."""
        values = [values[measure] for values in self.by_seed.values()]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


Results = dict[str, Measured]
"""Results by the name of the set."""


def select(sets: str, data: str | Path, lang: str) -> list[readers.DataSet]:
    """Read the requested sets: ``all`` sets in the folder ``data``, or names separated by commas.

    Raises:
        UserError: A set is unknown or not in the folder, or a file has the wrong format.
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
    """Compute the features of each split, float32: unnormalised vectors [N, D], or [|u - v|, u * v] for pairs, [N, 2D].

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
    """Return [|u - v|, u * v] for the vectors of pairs; without ``v``, return ``u`` unchanged."""
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
    """Run the whole test.

    Args:
        drop_overlap: Whether to leave out the test examples that were in the training text of ``encoder``.

    Raises:
        UserError: The encoder does not support the language, there are too few examples for the folds, or
            ``drop_overlap`` is set without training hashes.
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
        if data.files != features[0]:  # SICK-E and SICK-R have the same pairs, so they share features
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
    """Check that there are test examples, and that each class has two examples per fold (one without folds)."""
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
        # With a fixed dev split, the exact minimum is the same for every seed, so it is computed once.
        fixed = "dev" in examples and settings.classifier == "sklearn" and by_seed
        by_seed[seed] = by_seed[settings.seeds[0]] if fixed else measure(seed)
    return Measured(protocol, by_seed, {name: len(split) for name, split in data.splits.items()}, overlap)


def _protocol(
    data: readers.DataSet, examples: dict[str, Examples], classifier: Classifier, folds: int
) -> tuple[str, Callable[[int], dict[str, float]]]:
    """Return the protocol for a set: its description, and a function from the seed to the results."""
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
    """Return the figures by which the sets are usually quoted, and the averages of which every set was measured.

    The figures are means over seeds: accuracy in percent, or Pearson's correlation times 100 for SICK-R.
    """
    quoted = {name: measured.mean(measured.measures[0]) for name, measured in results.items()}
    averages = {
        average: float(np.mean([quoted[name] for name in names]))
        for average, names in AVERAGES.items()
        if quoted.keys() >= set(names)
    }
    return {**{SUPERVISED.get(name, name): value for name, value in quoted.items()}, **averages}


def values(results: Results) -> dict[str, Any]:
    """Return the results for JSON.

    Each set is mapped to ``protocol``, ``examples`` (number in each split), ``overlap``, ``by_seed`` (seed -> measure
    -> value), ``mean`` and ``spread`` (measure -> value; the spread is null for one seed). All values except ``mse``
    are in percent.
    """
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
    """Return the overlap of all sets together."""
    first, *others = (measured.overlap for measured in results.values())
    return sum(others, first)


def table(results: Results) -> str:
    """Return a table with one line per set and the averages, followed by the overlap line."""
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
