"""Evaluate an encoder on SentEval's sets: compute features once, then fit classifiers for each set and seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, encode_columns
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, Result, Score, VectorTestOptions, table
from xrep.evaluation.reading import check_least, choose_names, folders_with, named
from xrep.evaluation.senteval import readers
from xrep.evaluation.senteval.protocols import Outcome, data_of, protocol
from xrep.text.languages import canonical, check_language

_TRANSFER = ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
AVERAGES = {"average of 7": _TRANSFER, "average of 9": [*_TRANSFER, "SICK-E", readers.TITLES["SICK-R"]]}
"""Published averages: over the seven transfer tasks, and over these with SICK-E and SICK-R, as in "Universal Sentence
Representation Learning with Conditional Masked Language Model" (table 1)."""


class SentEval(Evaluation):
    """Classify sentences by their vectors: MR CR SUBJ MPQA SST TREC MRPC SICK.

    A logistic regression is trained on the vectors, which stay as they are. Accuracies are in percent.

      xrep-eval senteval --path run1/best --data senteval/ --cache vectors/
      xrep-eval senteval --path run1/best --data senteval/ --sets MR,SST2 --seeds 1,2,3
      xrep-eval senteval --path run1/best --data xeval/de/ --lang de

    --data holds any of these sets as they are published, in any folders (needs the extra 'senteval'):
      MR CR SUBJ MPQA  rt-polarity.pos, custrev.pos, subj.objective, mpqa.pos and so on: nested 10-fold cross-validation
      TREC MRPC        TREC.train or train_5500.label, msr_paraphrase_train.txt: 10-fold on train, then the test part
      SST2 SST5        sentiment-train (for SST5 in a folder named fine) or stsa.fine.train: chosen on dev
      SICK-E SICK-R    SICK_train.txt: chosen on trial; SICK-R is the supervised Pearson (times 100), not that of 'sts'

    A folder of translations (XEVAL) has the same files, in UTF-8.

    The classifier is SentEval's own (Adam, early stopping), whose figures papers print. Order of the examples, folds,
    initial weights, batches and weight decays are those of SentEval. Its GPUs round in another way, so figures of one
    seed can still differ a little.
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder of the sets."""
        sets: str = "all"
        """Names of the sets to measure (MR,CR), or all that are there."""
        lang: str = "en"
        """Language of the sentences."""
        seeds: str = "1111"
        """Seeds of folds, initial weights and order of batches, separated by commas. Several give mean and spread. 1111
        is SentEval's. SentEval itself draws the folds of MR, CR, SUBJ and MPQA with 1111 whatever seed it is given.
        Here all folds are drawn with the given seed."""
        folds: int = 10
        """Number of folds of every cross-validation."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        names = "|".join(name for layouts in readers.SETS.values() for layout in layouts for name in layout.files)
        return {folder: cls.Config(data=str(folder))} if folders_with(folder, names) else {}

    def read(self) -> list[Examples]:
        if importlib.util.find_spec("sklearn") is None:  # it draws the folds
            raise UserError("SentEval needs scikit-learn, which is not installed", cure="pip install 'xrep[senteval]'")
        check_language(self.config.lang, "lang")
        check_least(self.config, folds=2)
        seeds = named(self.config.seeds, "seeds")
        if not all(seed.isdecimal() and int(seed) < 2**32 for seed in seeds):
            raise UserError(f"`seeds` {self.config.seeds!r}", cure="give numbers from 0 to 4294967295, such as 1,2,3")
        self.seeds = list(map(int, seeds))
        found, lang = readers.find(self.config.data), canonical(self.config.lang)
        chosen = choose_names(named(self.config.sets, "sets"), found, "set", self.config.data)
        self.sets = [readers.read(name, *found[name], lang) for name in chosen]
        return [examples for splits in self.sets for examples in splits.values()]

    def measure(self, model: Encoder) -> Figures:
        sets = []
        for splits in self.sets:
            *_, (tested, whole) = splits.items()
            examples, overlap = self.without_overlap(model, whole)
            kept = {**splits, tested: examples}
            sets.append((kept, examples, overlap, *protocol(kept, self.config.folds)))
        results, vectors = list[Result](), list[np.ndarray]()
        for splits, examples, overlap, description, measure in tqdm(sets, disable=None, leave=False, unit=" sets"):
            if not results or results[-1].examples.files != examples.files:  # SICK-E and SICK-R have the same pairs
                columns = [column for split in splits.values() for column in split.columns]
                vectors = encode_columns(model, columns, examples.languages[0])
            data = data_of(list(splits.values()), vectors)
            outcomes = [measure(data, seed) for seed in self.seeds]
            details = {"protocol": description, "splits": {name: len(split) for name, split in splits.items()}}
            results.append(Result(examples, overlap, self._mean_score(outcomes, details)))
        return self.figures(results)

    def _mean_score(self, outcomes: Sequence[Outcome], details: Mapping[str, Any]) -> Score:
        """Return the means over the seeds; ``test`` is the figure by which the set is usually quoted."""
        columns = {name: [figures[name] for figures, _ in outcomes] for name in outcomes[0][0]}
        mean = {name: float(np.mean(column)) for name, column in columns.items()}
        spread = {name: float(np.std(column, ddof=1)) if column[1:] else None for name, column in columns.items()}
        by_seed = {str(seed): figures for seed, (figures, _) in zip(self.seeds, outcomes, strict=True)}
        quoted, drawn = next(iter(columns)), np.mean([resamples for _, resamples in outcomes], axis=0)
        details = {**details, "measure": quoted, "mean": mean, "spread": spread, "by_seed": by_seed}
        return Score({"test": mean[quoted], "dev": mean["dev"]}, lambda seed: {"test": drawn}, details)

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        return {label: names for label, names in AVERAGES.items() if results.keys() >= set(names)}

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        labels = {name: [name] for name in results} | self.averages(results)
        return {label: ("test", names) for label, names in labels.items()}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        rows = list[list[object]]()
        for name, result in results.items():
            own = result.values
            quoted, spread = own["measure"], own["spread"][own["measure"]]
            further = " ".join(f"{key} {value:.2f}" for key, value in own["mean"].items() if key not in (quoted, "dev"))
            shown = "" if spread is None else spread
            rows.append([name, own["protocol"], own["examples"], quoted, own["test"], shown, own["dev"], further])
        rows += [[], *([label, "", "", "", own["test"]] for label, own in averages.items())] if averages else []
        return table(["set", "protocol", "tested", "measure", "test", "spread", "dev", "further"], rows)
