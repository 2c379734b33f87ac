"""Read the data sets of SentEval from the files of their publishers or of SentEval's download.

A translated copy (XEVAL: the same sets in other languages) has the same files in a separate folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.overlap import chosen
from xrep.evaluation.reading import existing_folder, folders_with
from xrep.text.readers import read_lines


@dataclass(frozen=True)
class Split:
    """Examples of one part of a set.

    Attributes:
        sides: One list of N sentences, or two lists for pairs.
        targets: Classes as int64 [N], or scores as float64 [N] (SICK-R).
    """

    sides: tuple[list[str], ...]
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def order(self) -> np.ndarray:
        """Return the rows as SentEval sorts them before it draws folds and batches, int64 [N]: by the number of words
        of each side, then by the target. A line without words, which is read as ``.``, has none."""
        lengths = [[0 if text == "." else len(text.split()) for text in side] for side in self.sides]
        return np.lexsort([self.targets.tolist(), *reversed(lengths)])

    def only(self, rows: np.ndarray) -> Split:
        """Return the rows that the mask ``rows``, bool [N], selects."""
        return Split(tuple(chosen(rows, *self.sides)), self.targets[rows])


@dataclass(frozen=True)
class DataSet:
    """A data set in memory, with the split ``all``, or with ``train`` and ``test`` and sometimes ``dev``."""

    name: str
    splits: dict[str, Split]
    files: list[Path]

    @property
    def classes(self) -> int:
        return 1 + int(max(split.targets.max() for split in self.splits.values()))

    @property
    def tested(self) -> str:
        """Name of the split whose examples are tested; it is ``all`` if the set is cross-validated."""
        return "all" if "all" in self.splits else "test"


@dataclass(frozen=True)
class Form:
    """Form of the lines of a file."""

    parse: Callable[[str], tuple[str, ...]]
    """Function from a line to its label and its one or two sentences; a ``ValueError`` says what is wrong."""
    labels: tuple[str, ...] = ("0", "1")
    """The labels, in the order of the classes; none if the label is a score of 1 to 5."""
    header: str | None = None
    """First column of the header; None if the file has no header."""


@dataclass(frozen=True)
class Layout:
    """The files of a data set, all in one folder: file name -> (split, form)."""

    files: dict[str, tuple[str, Form]]
    in_folder: Callable[[str], bool] = lambda name: True
    """Function that tells whether the set may be in a folder with this name."""


def _question(line: str) -> tuple[str, ...]:
    """Parse a line of TREC, such as ``NUM:dist How far is it``; only the coarse class is used."""
    label, sentence = _label_space_sentence(line)
    return label.partition(":")[0], sentence


def _sentence_tab_label(line: str) -> tuple[str, ...]:
    sentence, tab, label = line.rpartition("\t")
    if not tab:
        raise ValueError("no tab between sentence and label")
    return label, sentence


def _label_space_sentence(line: str) -> tuple[str, ...]:
    label, _, sentence = line.partition(" ")
    return label, sentence


def _columns(count: int, *chosen: int) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of tab-separated tables, in which quotes have no special meaning."""

    def parse(line: str) -> tuple[str, ...]:
        row = line.split("\t")
        if len(row) != count:
            raise ValueError(f"{len(row)} columns instead of {count}")
        return tuple(row[column] for column in chosen)

    return parse


def _two_classes(negative: str, positive: str) -> tuple[Layout, ...]:
    # The positive file comes first, as in SentEval, because the order of the examples determines the seeded folds.
    forms = {positive: Form(lambda line: ("1", line)), negative: Form(lambda line: ("0", line))}
    return (Layout({name: ("all", form) for name, form in forms.items()}),)


def _splits(form: Form, train: str, dev: str | None, test: str, **where: Callable[[str], bool]) -> Layout:
    names = {train: "train", dev: "dev", test: "test"}
    return Layout({name: (split, form) for name, split in names.items() if name}, **where)


_SST = ("sentiment-train", "sentiment-dev", "sentiment-test")
_SICK = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
_STARS = ("0", "1", "2", "3", "4")
_QUESTIONS = Form(_question, ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"))
_ENTAILMENT = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SETS: dict[str, tuple[Layout, ...]] = {
    "MR": _two_classes("rt-polarity.neg", "rt-polarity.pos"),
    "CR": _two_classes("custrev.neg", "custrev.pos"),
    "SUBJ": _two_classes("subj.subjective", "subj.objective"),
    "MPQA": _two_classes("mpqa.neg", "mpqa.pos"),
    "SST2": (_splits(Form(_sentence_tab_label), *_SST, in_folder=lambda name: name != "fine"),),
    "SST5": (
        _splits(Form(_sentence_tab_label, _STARS), *_SST, in_folder=lambda name: name == "fine"),
        # the format of Kim (2014)
        _splits(Form(_label_space_sentence, _STARS), "stsa.fine.train", "stsa.fine.dev", "stsa.fine.test"),
    ),
    "TREC": (
        _splits(_QUESTIONS, "train_5500.label", None, "TREC_10.label"),
        _splits(_QUESTIONS, "TREC.train", None, "TREC.test"),
    ),
    "MRPC": (
        _splits(
            Form(_columns(5, 0, 3, 4), header="Quality"), "msr_paraphrase_train.txt", None, "msr_paraphrase_test.txt"
        ),
    ),
    "SICK-E": (_splits(Form(_columns(5, 4, 1, 2), _ENTAILMENT, header="pair_ID"), *_SICK),),
    "SICK-R": (_splits(Form(_columns(5, 3, 1, 2), (), header="pair_ID"), *_SICK),),
}
"""Layouts in which each set is published, by name. SST2 is SentEval's version, which trains on 67,349 phrases."""


def find(folder: str | Path) -> dict[str, tuple[Layout, Path]]:
    """Return the sets in a folder and its subfolders, up to four levels deep: name -> layout and folder of the set."""
    folder = existing_folder(folder, "name the folder of SentEval's sets")
    folders = {place: set(names) for place, names in folders_with(folder).items()}
    places = {name: place for name, layouts in SETS.items() if (place := _place(name, layouts, folders))}
    if not places:
        cure = "name the folder of rt-polarity.pos, TREC.train, sentiment-train and their like"
        raise UserError("none of SentEval's sets is in it", path=folder, cure=cure)
    return places


def _place(name: str, layouts: tuple[Layout, ...], folders: dict[Path, set[str]]) -> tuple[Layout, Path] | None:
    for layout in layouts:
        places = [
            place for place, names in folders.items() if layout.in_folder(place.name) and names & layout.files.keys()
        ]
        if len(places) > 1:
            problem = f"two copies of {name}: in {places[0]} and in {places[1]}"
            raise UserError(problem, cure="name the folder of one of them with `data`")
        if places:
            present = layout.files.keys() & folders[places[0]]
            if missing := sorted(layout.files.keys() - present):
                problem = f"{' '.join(missing)} is missing beside {' '.join(sorted(present))}"
                raise UserError(problem, path=places[0], cure=f"fetch {name} again")
            return layout, places[0]
    return None


def read(name: str, layout: Layout, folder: Path, lang: str) -> DataSet:
    """Read one set; ``lang`` is the canonical code of its language."""
    rows: dict[str, list[tuple]] = {}
    for file, (split, form) in layout.files.items():
        rows.setdefault(split, []).extend(_read_file(folder / file, form, lang == "en"))
        if not rows[split]:
            raise UserError("no line after the header", path=folder / file, cure="fetch the set again")
    splits = {}
    for split, examples in rows.items():
        targets, *sides = map(list, zip(*examples, strict=True))
        splits[split] = Split(tuple(sides), np.array(targets, dtype=float if name == "SICK-R" else int))
    return DataSet(name, splits, [folder / file for file in layout.files])


def _read_file(path: Path, form: Form, english: bool) -> Iterator[tuple]:
    """Yield the class or score of each line, followed by its sentences."""
    for number, line in _lines(path, english):
        try:
            label, *sentences = form.parse(line)
            if form.header is None or number > 1:
                # As in SentEval, a line without words is also an example and becomes ``.``.
                yield _target(label.strip(), form.labels), *(" ".join(text.split()) or "." for text in sentences)
            elif line.split("\t")[0] != form.header:
                raise ValueError(f"the header does not start with {form.header!r}")
        except ValueError as error:
            raise UserError(str(error), path=path, line=number, cure="fetch the set again") from None


def _target(label: str, labels: tuple[str, ...]) -> float:
    if labels:
        if label not in labels:
            raise ValueError(f"the label {label[:40]!r} is none of {' '.join(labels)}")
        return labels.index(label)
    try:
        score = float(label)
    except ValueError:
        score = math.nan
    if not 1 <= score <= 5:
        raise ValueError(f"the relatedness score {label!r} is not within 1 to 5")
    return score


def _lines(path: Path, english: bool) -> Iterator[tuple[int, str]]:
    """Yield numbered lines. An English file that is not valid UTF-8 is read as latin-1; translations must be UTF-8."""
    content = path.read_bytes() if english else b""
    try:
        content.decode("utf-8")
        yield from read_lines(path)
    except UnicodeDecodeError:
        # Only \n ends a line, because sentences of MR and SUBJ contain latin-1's next-line character (0x85).
        lines = content.decode("latin-1").removesuffix("\n").split("\n")
        yield from ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))
