"""Evaluate an encoder on SentEval's sets: compute features once, then fit classifiers for each set and seed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, SentenceList, encode_columns
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
from xrep.evaluation.reading import folders_with
from xrep.evaluation.senteval import protocols, readers
from xrep.evaluation.senteval.folds import Classifier
from xrep.evaluation.senteval.protocols import Examples
from xrep.evaluation.senteval.sklearn_classifier import SklearnClassifier
from xrep.evaluation.senteval.torch_classifier import TorchClassifier
from xrep.text.languages import canonical, check_language

CLASSIFIERS: dict[str, type[Classifier]] = {"senteval": TorchClassifier, "sklearn": SklearnClassifier}
SUPERVISED = {"SICK-R": "SICK-R (supervised)"}
"""Names in results of sets that also have a zero-shot result (``xrep-eval sts``)."""
_TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
AVERAGES = {"average of 7": _TRANSFER, "average of 9": (*_TRANSFER, "SICK-E", SUPERVISED["SICK-R"])}
"""Published averages: over the seven transfer tasks, and over these with SICK-E and SICK-R, as in "Universal Sentence
Representation Learning with Conditional Masked Language Model" (table 1)."""


Values = dict[str, dict[str, Any]]
"""Values for JSON, by the name of the set: ``protocol``, ``examples`` (number in each split), ``overlap``, ``by_seed``
(seed -> measure -> value), ``mean`` and ``spread`` (measure -> value; the spread is null for one seed). All values
except ``mse`` are in percent."""


class SentEval(Evaluation):
    """Classify sentences by their vectors: MR CR SUBJ MPQA SST TREC MRPC SICK.

    A logistic regression is trained on the vectors, which stay as they are. Accuracies are in percent.

      xrep-eval senteval --path run1/best --data senteval/ --cache vectors/
      xrep-eval senteval --path run1/best --data senteval/ --sets MR,SST2 --classifier sklearn --seeds 1,2,3
      xrep-eval senteval --path run1/best --data xeval/de/ --lang de

    --data holds any of these sets as they are published, in any folders (needs the extra 'senteval'):
      MR CR SUBJ MPQA  rt-polarity.pos, custrev.pos, subj.objective, mpqa.pos and so on: nested 10-fold cross-validation
      TREC MRPC        TREC.train or train_5500.label, msr_paraphrase_train.txt: 10-fold on train, then the test part
      SST2 SST5        sentiment-train (for SST5 in a folder named fine) or stsa.fine.train: chosen on dev
      SICK-E SICK-R    SICK_train.txt: chosen on trial; SICK-R is the supervised Pearson (times 100), not that of 'sts'

    A folder of translations (XEVAL) has the same files, in UTF-8. Papers print the figures of --classifier senteval,
    which stops early. On vectors of length 1 it stays below the exact minimum that --classifier sklearn finds.

    Order of the examples, folds, initial weights, batches and strengths of regularisation are those of SentEval. Its
    GPUs round in another way, and its use of scikit-learn stops before the minimum and has no SICK-R, so figures of one
    seed can still differ a little.
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions, DimensionsOption, OverlapOption):
        data: str
        """Folder of the sets."""
        sets: str = "all"
        """Names of the sets to measure (MR,CR), or all that are there."""
        lang: str = "en"
        """Language of the sentences."""
        classifier: Literal["senteval", "sklearn"] = "senteval"
        """SentEval's own classifier (Adam, early stopping), or scikit-learn's LogisticRegression."""
        seeds: str = "1111"
        """Seeds of folds, initial weights and order of batches, separated by commas. Several give mean and spread. 1111
        is SentEval's, which draws the folds of MR, CR, SUBJ and MPQA with it whatever the other seed is."""
        folds: int = 10
        """Number of folds of every cross-validation."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        names = {name for layouts in readers.SETS.values() for layout in layouts for name in layout.files}
        is_there = folders_with(folder, "|".join(map(re.escape, names)))
        return {folder: cls.Config(data=str(folder))} if is_there else {}

    def read(self) -> None:
        if importlib.util.find_spec("sklearn") is None:  # it draws the folds for every classifier
            raise UserError("SentEval needs scikit-learn, which is not installed", cure="pip install 'xrep[senteval]'")
        check_language(self.config.lang, "lang")
        self.lang, self.seeds = canonical(self.config.lang), _seeds(self.config.seeds)
        if self.config.folds < 2:
            raise UserError(f"{self.config.folds} folds", cure="give `folds` 2 or more")
        self.sets = select(self.config.sets, self.config.data, self.lang)

    def measure(self, encoder: Encoder) -> Figures:
        kept = [_without_overlap(encoder, data, self.config.drop_overlap) for data in self.sets]
        for data, _ in kept:
            _check_sizes(data, self.config.folds)
        values: Values = {}
        classifier = CLASSIFIERS[self.config.classifier]()
        resamples = dict[str, np.ndarray]()
        files, features = list[Path](), dict[str, np.ndarray]()
        for data, overlap in progress(kept, "sets"):
            if data.files != files:  # SICK-E and SICK-R have the same pairs, so they share features
                files, features = data.files, encode(encoder, data, self.lang)
            if not isinstance(encoder, SentenceList):
                orders = {name: split.order() for name, split in data.splits.items()}
                examples = {
                    name: Examples(features[name][order], data.splits[name].targets[order])
                    for name, order in orders.items()
                }
                name = SUPERVISED.get(data.name, data.name)
                values[name], resamples[name] = self._measure(data, examples, overlap)
        quoted = headline(values)
        for name in quoted.keys() & AVERAGES.keys():
            resamples[name] = np.mean([resamples[own] for own in AVERAGES[name]], axis=0)
        return Figures(
            text=text(values, {name: value for name, value in quoted.items() if name in AVERAGES}),
            values=values,
            headline=quoted,
            resamples=resamples,
            settings={
                "classifier": self.config.classifier,
                "grid": list(classifier.grid),
                "folded_grid": list(classifier.folded_grid),
                "seeds": self.seeds,
                "folds": self.config.folds,
                "language": self.lang,
            },
            files=sorted({file for data in self.sets for file in data.files}),
            overlap=total(overlap for _, overlap in kept),
        )

    def _measure(
        self, data: readers.DataSet, examples: dict[str, Examples], overlap: Overlap
    ) -> tuple[dict[str, Any], np.ndarray]:
        classifier = CLASSIFIERS[self.config.classifier]()
        protocol, measure = _protocol(data, examples, classifier, self.config.folds)
        by_seed: dict[str, dict[str, float]] = {}
        found, drawn = dict[str, float](), list[np.ndarray]()
        for seed in self.seeds:
            # With a fixed dev split, the exact minimum is the same for every seed, so it is computed once.
            fixed = "dev" in examples and classifier.name == "sklearn" and by_seed
            if not fixed:
                found, resamples = measure(seed)
                drawn.append(resamples)
            by_seed[str(seed)] = found
        columns = {name: [own[name] for own in by_seed.values()] for name in next(iter(by_seed.values()))}
        several = len(by_seed) > 1
        return {
            "protocol": protocol,
            "examples": {name: len(split) for name, split in data.splits.items()},
            "overlap": asdict(overlap),
            "by_seed": by_seed,
            "mean": {name: float(np.mean(column)) for name, column in columns.items()},
            "spread": {name: float(np.std(column, ddof=1)) if several else None for name, column in columns.items()},
        }, np.mean(drawn, axis=0)


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"`seeds` {text!r} are no whole numbers", cure="give numbers such as 1,2,3") from None
    if len(set(seeds)) < len(seeds) or not all(0 <= seed < 2**32 for seed in seeds):
        raise UserError(f"`seeds` {text!r}", cure="give different numbers from 0 to 4294967295, such as 1,2,3")
    return seeds


def select(sets: str, data: str | Path, lang: str) -> list[readers.DataSet]:
    """Read the requested sets: ``all`` sets in the folder ``data``, or names separated by commas."""
    places = readers.find(data)
    wanted = list(places) if sets == "all" else [name.strip() for name in sets.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in readers.SETS]
    if unknown or not wanted:
        raise UserError(f"no set {' '.join(unknown) or 'named'}", cure=f"the sets are {' '.join(readers.SETS)}")
    if missing := [name for name in wanted if name not in places]:
        raise UserError(f"no files of {' '.join(missing)}", path=data, cure=f"it holds {' '.join(places)}")
    return [readers.read(name, *places[name], lang) for name in readers.SETS if name in wanted]


def encode(encoder: Encoder, data: readers.DataSet, lang: str) -> dict[str, np.ndarray]:
    """Return the features of each split: unnormalised vectors, float32 [N, D]; of pairs [|u - v|, u * v], [N, 2D]."""
    columns = iter(encode_columns(encoder, [side for split in data.splits.values() for side in split.sides], lang))
    features = {}
    for name, split in data.splits.items():
        u, *v = (next(columns) for _ in split.sides)
        features[name] = np.concatenate([np.abs(u - v[0]), u * v[0]], axis=1) if v else u
    return features


def _without_overlap(encoder: Encoder, data: readers.DataSet, drop: bool) -> tuple[readers.DataSet, Overlap]:
    split = data.splits[data.tested]
    keep, overlap = find_overlap(encoder.training_hashes, *split.sides, drop=drop)
    return replace(data, splits={**data.splits, data.tested: split.only(keep)}), overlap


def _check_sizes(data: readers.DataSet, folds: int) -> None:
    """Check that each class has two examples per fold (one without folds)."""
    train = data.splits.get("all") or data.splits["train"]
    if data.name == "SICK-R":
        return
    counts = np.bincount(train.targets, minlength=max(2, data.classes))
    if counts.min() < (needed := 1 if "dev" in data.splits else 2 * folds):
        problem = f"{data.name} has {counts.min()} training examples of class {counts.argmin()}, {needed} are needed"
        raise UserError(problem, path=data.files[0], cure=f"measure with fewer `folds` or without {data.name}")


def _protocol(
    data: readers.DataSet, examples: dict[str, Examples], classifier: Classifier, folds: int
) -> tuple[str, Callable[[int], protocols.Outcome]]:
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


def headline(values: Values) -> dict[str, float]:
    """Return the figures by which the sets are usually quoted (accuracy, or for SICK-R Pearson's correlation, as means
    over seeds), and the averages of which every set was measured."""
    quoted = {name: next(iter(own["mean"].values())) for name, own in values.items()}
    averages = {
        average: float(np.mean([quoted[name] for name in names]))
        for average, names in AVERAGES.items()
        if quoted.keys() >= set(names)
    }
    return quoted | averages


def text(values: Values, averages: dict[str, float]) -> str:
    """Return a table with one line per set and the averages."""
    rows = []
    for name, own in values.items():
        (quoted, mean), *others = ((measure, mean) for measure, mean in own["mean"].items() if measure != "dev")
        spread, overlap = own["spread"][quoted], own["overlap"]
        tested = overlap["total"] - (overlap["found"] or 0) * overlap["dropped"]
        further = " ".join(f"{measure} {value:.2f}" for measure, value in others)
        spread = "" if spread is None else spread
        rows.append([name, own["protocol"], tested, quoted, mean, spread, own["mean"]["dev"], further])
    rows += [[], *([name, "", "", "", value] for name, value in averages.items())] if averages else []
    return table(["set", "protocol", "tested", "measure", "test", "spread", "dev", "further"], rows)
