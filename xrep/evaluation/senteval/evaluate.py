"""Evaluate an encoder on SentEval's sets: compute features once, then fit classifiers for each set and seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, encode_columns
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, Result, Score, VectorTestOptions
from xrep.evaluation.reading import choose_names, existing_folder, folders_with, named
from xrep.tables import table
from xrep.text.languages import canonical, check_language
from xrep.text.lines import read_latin1, read_lines

if TYPE_CHECKING:
    from xrep.evaluation.senteval.protocols import Outcome

Splits = dict[str, Examples]
"""A set in memory: ``all``, which is cross-validated, or ``train``, sometimes ``dev``, and ``test``. ``gold`` are
classes, int64 [N], or scores, float64 [N]."""


@dataclass(frozen=True)
class SetLayout:
    """A form in which a set is published."""

    files: dict[str, str]
    """The files, all in one folder: name -> split."""
    labels: tuple[str, ...] = ("0", "1")
    """The labels, in the order of the classes, or files, of which each holds the sentences of one class; none if the
    label is a score from 1 to 5."""
    columns: tuple[int, ...] = ()
    """Columns of the label and of the one or two sentences, in a table with tabs in which quotes mean nothing; none if
    a line is a label, a space and a sentence: ``3 A good film``, or ``NUM:dist How far is it``, where only the coarse
    class is used."""
    header: bool = False
    """Whether the first line is a header."""
    fine: bool | None = None
    """Whether the folder must be named ``fine`` or must not; None: any folder."""


def _two_classes(negative: str, positive: str) -> list[SetLayout]:
    # The positive file comes first, as in SentEval, because the order of the examples determines the seeded folds.
    return [SetLayout({positive: "all", negative: "all"}, (negative, positive))]


_SST = {"sentiment-train": "train", "sentiment-dev": "dev", "sentiment-test": "test"}
_KIM = {"stsa.fine.train": "train", "stsa.fine.dev": "dev", "stsa.fine.test": "test"}  # the format of Kim (2014)
_TREC = {"train_5500.label": "train", "TREC_10.label": "test"}, {"TREC.train": "train", "TREC.test": "test"}
_MRPC = {"msr_paraphrase_train.txt": "train", "msr_paraphrase_test.txt": "test"}
_SICK = {"SICK_train.txt": "train", "SICK_trial.txt": "dev", "SICK_test_annotated.txt": "test"}
_STARS = ("0", "1", "2", "3", "4")
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_ENTAILMENT = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SETS = {
    "MR": _two_classes("rt-polarity.neg", "rt-polarity.pos"),
    "CR": _two_classes("custrev.neg", "custrev.pos"),
    "SUBJ": _two_classes("subj.subjective", "subj.objective"),
    "MPQA": _two_classes("mpqa.neg", "mpqa.pos"),
    "SST2": [SetLayout(_SST, columns=(1, 0), fine=False)],
    "SST5": [SetLayout(_SST, _STARS, (1, 0), fine=True), SetLayout(_KIM, _STARS)],
    "TREC": [SetLayout(files, _QUESTIONS) for files in _TREC],
    "MRPC": [SetLayout(_MRPC, columns=(0, 3, 4), header=True)],
    "SICK-E": [SetLayout(_SICK, _ENTAILMENT, (4, 1, 2), header=True)],
    "SICK-R": [SetLayout(_SICK, (), (3, 1, 2), header=True)],
}
"""Layouts in which each set is published, by name. SST2 is SentEval's version, which trains on 67,349 phrases."""
TITLES = {"SICK-R": "SICK-R (supervised)"}
"""Names in results of sets that also have a zero-shot result (``xrep-eval sts``)."""
_TRANSFER = ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
AVERAGES = {"average of 7": _TRANSFER, "average of 9": [*_TRANSFER, "SICK-E", TITLES["SICK-R"]]}
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
        folds: Annotated[int, "[2, inf)"] = 10
        """Number of folds of every cross-validation."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        names = "|".join(name for layouts in SETS.values() for layout in layouts for name in layout.files)
        return {folder: cls.Config(data=str(folder))} if folders_with(folder, names) else {}

    def read(self) -> list[Examples]:
        if importlib.util.find_spec("sklearn") is None:  # it draws the folds
            raise UserError("SentEval needs scikit-learn, which is not installed", cure="pip install 'xrep[senteval]'")
        check_language(self.config.lang, "lang")
        seeds = named(self.config.seeds, "seeds")
        if not all(seed.isdecimal() and int(seed) < 2**32 for seed in seeds):
            raise UserError(f"`seeds` {self.config.seeds!r}", cure="give numbers from 0 to 4294967295, such as 1,2,3")
        self.seeds = list(map(int, seeds))
        found, lang = find_sets(self.config.data), canonical(self.config.lang)
        chosen = choose_names(named(self.config.sets, "sets"), found, "set", self.config.data)
        self.sets = [read_set(name, *found[name], lang) for name in chosen]
        return [examples for splits in self.sets for examples in splits.values()]

    def measure(self, model: MeasuredEncoder) -> Figures:
        from xrep.evaluation.senteval.protocols import data_of, protocol  # imports torch; --help does not wait for it

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
            values = result.values
            quoted, spread = values["measure"], values["spread"][values["measure"]]
            means = {key: value for key, value in values["mean"].items() if key not in (quoted, "dev")}
            further = " ".join(f"{key} {value:.2f}" for key, value in means.items())
            shown = "" if spread is None else spread
            facts = values["protocol"], values["examples"], quoted, values["test"], shown, values["dev"]
            rows.append([name, *facts, further])
        rows += [[], *([label, "", "", "", mean["test"]] for label, mean in averages.items())] if averages else []
        return table(["set", "protocol", "tested", "measure", "test", "spread", "dev", "further"], rows)


def find_sets(folder: str | Path) -> dict[str, tuple[SetLayout, Path]]:
    """Return the sets in a folder and its subfolders, up to four levels deep: name -> layout and folder of the set."""
    folder = existing_folder(folder, "name the folder of SentEval's sets")
    folders, found = folders_with(folder), dict[str, tuple[SetLayout, Path]]()
    for name, layout in ((name, layout) for name, layouts in SETS.items() for layout in layouts):
        fitting = [path for path in folders if layout.fine in (None, path.name == "fine")]
        present = [path for path in fitting if not layout.files.keys().isdisjoint(folders[path])]
        if len(present) > 1:
            problem = f"two copies of {name}: in {present[0]} and in {present[1]}"
            raise UserError(problem, cure="name the folder of one of them with `data`")
        if present:
            found.setdefault(name, (layout, present[0]))
    if not found:
        cure = "name the folder of rt-polarity.pos, TREC.train, sentiment-train and their like"
        raise UserError("none of SentEval's sets is in it", path=folder, cure=cure)
    return found


def read_set(name: str, layout: SetLayout, folder: Path, lang: str) -> Splits:
    """Read one set; ``lang`` is the canonical code of its language."""
    rows: dict[str, list[tuple]] = {}
    for file, split in layout.files.items():
        rows.setdefault(split, []).extend(_read_file(folder / file, layout, lang))
        if not rows[split]:
            raise UserError("no line after the header", path=folder / file, cure="fetch the set again")
    files, splits = tuple(folder / file for file in layout.files), {}
    for split, examples in rows.items():
        gold, *columns = map(list, zip(*examples, strict=True))
        targets = np.array(gold, dtype=int if layout.labels else float)
        splits[split] = Examples(TITLES.get(name, name), (lang,) * len(columns), tuple(columns), targets, files)
    return splits


def _read_file(path: Path, layout: SetLayout, lang: str) -> Iterator[tuple]:
    """Yield the class or score of each line, followed by its sentences. Translations must be UTF-8."""
    for number, line in read_latin1(path) if lang == "en" else read_lines(path):
        if layout.header and number == 1:
            continue
        try:
            label, *sentences = _fields(line, layout, path.name)
            target = layout.labels.index(label.strip()) if layout.labels else float(label)
        except (ValueError, IndexError):
            labels = " ".join(layout.labels) or "1 to 5"
            problem = f"no label ({labels}) and sentences in {line[:40]!r}"
            raise UserError(problem, path=path, line=number, cure="fetch the set again") from None
        # As in SentEval, a line without words is also an example and becomes ``.``.
        yield target, *(" ".join(text.split()) or "." for text in sentences)


def _fields(line: str, layout: SetLayout, file: str) -> list[str]:
    """Return the label and the sentences of a line."""
    if layout.columns:
        row = line.split("\t")
        return [row[column] for column in layout.columns]
    if file in layout.labels:
        return [file, line]
    label, _, sentence = line.partition(" ")
    return [label.partition(":")[0], sentence]
