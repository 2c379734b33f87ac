"""Read the data sets of SentEval from the files of their publishers or of SentEval's download.

A translated copy (XEVAL: the same sets in other languages) has the same files in a separate folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.reading import folders_with
from xrep.text.readers import read_lines

_FETCH = "fetch the set again"
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_ENTAILMENT = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
_SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")


class Example(NamedTuple):
    """One line of a file: a sentence or a pair of sentences, and its class or score."""

    sentences: tuple[str, ...]
    target: float


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

    def only(self, rows: np.ndarray) -> Split:
        """Return the rows that the mask ``rows``, bool [N], selects."""
        chosen = np.flatnonzero(rows)
        return Split(tuple([side[row] for row in chosen] for side in self.sides), self.targets[chosen])


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


Reader = Callable[[Path, bool], Iterator[Example]]


@dataclass(frozen=True)
class Layout:
    """The files of a data set, all in one folder: file name -> (split, reader)."""

    files: dict[str, tuple[str, Reader]]
    in_folder: Callable[[str], bool] = lambda name: True
    """Function that tells whether the set may be in a folder with this name."""


def read_text(path: Path, english: bool) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without their line ends.

    English files are read as published, in UTF-8 or latin-1: a file that is not valid UTF-8 is read as latin-1.
    Translations must be UTF-8.
    """
    yield from _latin1(path) if english and not _is_utf8(path) else read_lines(path)


def _is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _latin1(path: Path) -> Iterator[tuple[int, str]]:
    # Only \n ends a line, because sentences of MR and SUBJ contain latin-1's next-line character (0x85).
    lines = path.read_bytes().decode("latin-1").removesuffix("\n").split("\n")
    yield from ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _sentence(text: str) -> str:
    """Join the words with single spaces. As in SentEval, a line without words is also an example and becomes ``.``."""
    return " ".join(text.split()) or "."


def _labelled_file(label: int) -> Reader:
    """Return a reader for a file of sentences that all have the same class."""

    def read(path: Path, english: bool) -> Iterator[Example]:
        for _, line in read_text(path, english):
            yield Example((_sentence(line),), label)

    return read


def _questions(path: Path, english: bool) -> Iterator[Example]:
    """Read TREC, with lines such as ``NUM:dist How far is it``; only the coarse class is used."""
    for number, line in read_text(path, english):
        label, _, sentence = line.partition(" ")
        yield Example((_sentence(sentence),), _class(label.partition(":")[0], _QUESTIONS, path, number))


def _sentence_tab_label(labels: tuple[str, ...]) -> Reader:
    """Return a reader for SST in SentEval's format: ``sentence<TAB>1``."""

    def read(path: Path, english: bool) -> Iterator[Example]:
        for number, line in read_text(path, english):
            sentence, tab, label = line.rpartition("\t")
            if not tab:
                raise UserError("no tab between sentence and label", path=path, line=number, cure=_FETCH)
            yield Example((_sentence(sentence),), _class(label, labels, path, number))

    return read


def _label_space_sentence(labels: tuple[str, ...]) -> Reader:
    """Return a reader for SST in the format of Kim (2014): ``1 sentence``."""

    def read(path: Path, english: bool) -> Iterator[Example]:
        for number, line in read_text(path, english):
            label, _, sentence = line.partition(" ")
            yield Example((_sentence(sentence),), _class(label, labels, path, number))

    return read


def _paraphrases(path: Path, english: bool) -> Iterator[Example]:
    for number, row in _rows(path, english, ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")):
        yield Example((_sentence(row[3]), _sentence(row[4])), _class(row[0], ("0", "1"), path, number))


def _entailment(path: Path, english: bool) -> Iterator[Example]:
    for number, row in _rows(path, english, _SICK_COLUMNS):
        yield Example((_sentence(row[1]), _sentence(row[2])), _class(row[4], _ENTAILMENT, path, number))


def _relatedness(path: Path, english: bool) -> Iterator[Example]:
    for number, row in _rows(path, english, _SICK_COLUMNS):
        try:
            score = float(row[3])
        except ValueError:
            score = float("nan")
        if not 1 <= score <= 5:
            raise UserError(
                f"the relatedness score {row[3]!r} is not within 1 to 5", path=path, line=number, cure=_FETCH
            )
        yield Example((_sentence(row[1]), _sentence(row[2])), score)


def _rows(path: Path, english: bool, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a tab-separated table below its header; quotes have no special meaning."""
    for number, line in read_text(path, english):
        row = line.split("\t")
        if len(row) != len(columns):
            raise UserError(f"{len(row)} columns instead of {len(columns)}", path=path, line=number, cure=_FETCH)
        if number > 1:
            yield number, row
        elif row[0] != columns[0]:
            raise UserError(f"the header does not start with {columns[0]!r}", path=path, line=1, cure=_FETCH)


def _class(label: str, labels: tuple[str, ...], path: Path, number: int) -> int:
    if label.strip() not in labels:
        problem = f"the label {label[:40]!r} is none of {' '.join(labels)}"
        raise UserError(problem, path=path, line=number, cure="translate the sentences alone, or " + _FETCH)
    return labels.index(label.strip())


def _two_classes(negative: str, positive: str) -> tuple[Layout, ...]:
    # The positive file comes first, as in SentEval, because the order of the examples determines the seeded folds.
    return (Layout({positive: ("all", _labelled_file(1)), negative: ("all", _labelled_file(0))}),)


def _splits(reader: Reader, train: str, dev: str | None, test: str, **where: Callable[[str], bool]) -> Layout:
    names = {train: "train", **({dev: "dev"} if dev else {}), test: "test"}
    return Layout({name: (split, reader) for name, split in names.items()}, **where)


def _sst(labels: tuple[str, ...], fine: bool) -> Layout:
    files = ("sentiment-train", "sentiment-dev", "sentiment-test")
    return _splits(_sentence_tab_label(labels), *files, in_folder=lambda name: (name == "fine") == fine)


_SICK = ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt")
_STARS = ("0", "1", "2", "3", "4")
SETS: dict[str, tuple[Layout, ...]] = {
    "MR": _two_classes("rt-polarity.neg", "rt-polarity.pos"),
    "CR": _two_classes("custrev.neg", "custrev.pos"),
    "SUBJ": _two_classes("subj.subjective", "subj.objective"),
    "MPQA": _two_classes("mpqa.neg", "mpqa.pos"),
    "SST2": (_sst(("0", "1"), fine=False),),
    "SST5": (
        _sst(_STARS, fine=True),
        _splits(_label_space_sentence(_STARS), "stsa.fine.train", "stsa.fine.dev", "stsa.fine.test"),
    ),
    "TREC": (
        _splits(_questions, "train_5500.label", None, "TREC_10.label"),
        _splits(_questions, "TREC.train", None, "TREC.test"),
    ),
    "MRPC": (_splits(_paraphrases, "msr_paraphrase_train.txt", None, "msr_paraphrase_test.txt"),),
    "SICK-E": (_splits(_entailment, *_SICK),),
    "SICK-R": (_splits(_relatedness, *_SICK),),
}
"""Layouts in which each set is published, by name. SST2 is SentEval's version, which trains on 67,349 phrases."""


def find(folder: str | Path) -> dict[str, tuple[Layout, Path]]:
    """Return the sets in a folder and its subfolders, up to four levels deep: name -> layout and folder of the set.

    Raises:
        UserError: The folder does not exist or contains no set, a file of a set is missing, or there are two copies of
            a set.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure="name the folder of SentEval's sets")
    folders = {place: set(names) for place, names in folders_with(folder).items()}
    found = {name: place for name, layouts in SETS.items() if (place := _place(name, layouts, folders))}
    if not found:
        cure = "name the folder of rt-polarity.pos, TREC.train, sentiment-train and their like"
        raise UserError("none of SentEval's sets is in it", path=folder, cure=cure)
    return found


def _place(name: str, layouts: tuple[Layout, ...], folders: dict[Path, set[str]]) -> tuple[Layout, Path] | None:
    for layout in layouts:
        places = [
            place for place, names in folders.items() if layout.in_folder(place.name) and names & layout.files.keys()
        ]
        if len(places) > 1:
            problem = f"two copies of {name}: in {places[0]} and in {places[1]}"
            raise UserError(problem, cure="name the folder of one of them with --data")
        if places:
            missing = sorted(layout.files.keys() - folders[places[0]])
            if missing:
                there = sorted(layout.files.keys() - set(missing))
                problem = f"{' '.join(missing)} is missing beside {' '.join(there)}"
                raise UserError(problem, path=places[0], cure=f"fetch {name} again")
            return layout, places[0]
    return None


def read(name: str, layout: Layout, folder: Path, lang: str) -> DataSet:
    """Read one set; ``lang`` is the canonical code of its language.

    Raises:
        UserError: A file is empty or not UTF-8 (unless it is English), or a line has the wrong format.
    """
    examples: dict[str, list[Example]] = {}
    for file, (split, reader) in layout.files.items():
        examples.setdefault(split, []).extend(reader(folder / file, lang == "en"))
    splits = {split: _split(rows, float if name == "SICK-R" else int) for split, rows in examples.items()}
    return DataSet(name, splits, [folder / file for file in layout.files])


def _split(examples: list[Example], kind: type) -> Split:
    sides = zip(*(example.sentences for example in examples), strict=True)
    return Split(tuple(list(side) for side in sides), np.array([example.target for example in examples], dtype=kind))
