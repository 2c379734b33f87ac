"""Read the data sets of SentEval from the files of their publishers or of SentEval's download.

A translated copy (XEVAL: the same sets in other languages) has the same files in a separate folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.reading import existing_folder, folders_with
from xrep.text.lines import read_latin1, read_lines

Splits = dict[str, Examples]
"""A set in memory: ``all``, which is cross-validated, or ``train``, sometimes ``dev``, and ``test``. ``gold`` are
classes, int64 [N], or scores, float64 [N]."""


@dataclass(frozen=True)
class Layout:
    """A form in which a set is published."""

    files: dict[str, str]
    """The files, all in one folder: name -> split."""
    parse: Callable[[str], Sequence[str]] | None = None
    """Function from a line to its label and its one or two sentences; a ``ValueError`` says what is wrong. None: the
    line is a sentence, and the name of the file is its label."""
    labels: tuple[str, ...] = ("0", "1")
    """The labels, in the order of the classes; none if the label is a score from 1 to 5."""
    header: str | None = None
    """First column of the header; None if the files have no header."""
    fine: bool | None = None
    """Whether the folder must be named ``fine`` or must not; None: any folder."""


def _label_first(line: str) -> tuple[str, str]:
    """Parse a line such as ``3 A good film``, or ``NUM:dist How far is it``, of which only the coarse class is used."""
    label, _, sentence = line.partition(" ")
    return label.partition(":")[0], sentence


def _label_last(line: str) -> tuple[str, str]:
    sentence, tab, label = line.rpartition("\t")
    if not tab:
        raise ValueError("no tab between sentence and label")
    return label, sentence


def _columns(*chosen: int) -> Callable[[str], list[str]]:
    """Return a parser of tables of five columns separated by tabs, in which quotes have no special meaning."""

    def parse(line: str) -> list[str]:
        row = line.split("\t")
        if len(row) != 5:
            raise ValueError(f"{len(row)} columns instead of 5")
        return [row[column] for column in chosen]

    return parse


def _two_classes(negative: str, positive: str) -> list[Layout]:
    # The positive file comes first, as in SentEval, because the order of the examples determines the seeded folds.
    return [Layout({positive: "all", negative: "all"}, labels=(negative, positive))]


_SST = {"sentiment-train": "train", "sentiment-dev": "dev", "sentiment-test": "test"}
_KIM = {"stsa.fine.train": "train", "stsa.fine.dev": "dev", "stsa.fine.test": "test"}  # the format of Kim (2014)
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
    "SST2": [Layout(_SST, _label_last, fine=False)],
    "SST5": [Layout(_SST, _label_last, _STARS, fine=True), Layout(_KIM, _label_first, _STARS)],
    "TREC": [
        Layout({"train_5500.label": "train", "TREC_10.label": "test"}, _label_first, _QUESTIONS),
        Layout({"TREC.train": "train", "TREC.test": "test"}, _label_first, _QUESTIONS),
    ],
    "MRPC": [Layout(_MRPC, _columns(0, 3, 4), header="Quality")],
    "SICK-E": [Layout(_SICK, _columns(4, 1, 2), _ENTAILMENT, header="pair_ID")],
    "SICK-R": [Layout(_SICK, _columns(3, 1, 2), (), header="pair_ID")],
}
"""Layouts in which each set is published, by name. SST2 is SentEval's version, which trains on 67,349 phrases."""
TITLES = {"SICK-R": "SICK-R (supervised)"}
"""Names in results of sets that also have a zero-shot result (``xrep-eval sts``)."""


def find(folder: str | Path) -> dict[str, tuple[Layout, Path]]:
    """Return the sets in a folder and its subfolders, up to four levels deep: name -> layout and folder of the set."""
    folder = existing_folder(folder, "name the folder of SentEval's sets")
    folders = {path: set(names) for path, names in folders_with(folder).items()}
    found = {name: own for name, layouts in SETS.items() if (own := _find(name, layouts, folders))}
    if not found:
        cure = "name the folder of rt-polarity.pos, TREC.train, sentiment-train and their like"
        raise UserError("none of SentEval's sets is in it", path=folder, cure=cure)
    return found


def _find(name: str, layouts: list[Layout], folders: dict[Path, set[str]]) -> tuple[Layout, Path] | None:
    for layout in layouts:
        fitting = [path for path in folders if layout.fine is None or layout.fine == (path.name == "fine")]
        present = {path: names for path in fitting if (names := folders[path] & layout.files.keys())}
        if len(present) > 1:
            first, second, *_ = present
            problem = f"two copies of {name}: in {first} and in {second}"
            raise UserError(problem, cure="name the folder of one of them with `data`")
        for path, names in present.items():
            if missing := sorted(layout.files.keys() - names):
                problem = f"{' '.join(missing)} is missing beside {' '.join(sorted(names))}"
                raise UserError(problem, path=path, cure=f"fetch {name} again")
            return layout, path
    return None


def read(name: str, layout: Layout, folder: Path, lang: str) -> Splits:
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


def _read_file(path: Path, layout: Layout, lang: str) -> Iterator[tuple]:
    """Yield the class or score of each line, followed by its sentences. Translations must be UTF-8."""
    for number, line in read_latin1(path) if lang == "en" else read_lines(path):
        try:
            label, *sentences = layout.parse(line) if layout.parse else (path.name, line)
            if layout.header is None or number > 1:
                # As in SentEval, a line without words is also an example and becomes ``.``.
                yield _target(label.strip(), layout.labels), *(" ".join(text.split()) or "." for text in sentences)
            elif line.split("\t")[0] != layout.header:
                raise ValueError(f"the header does not start with {layout.header!r}")
        except ValueError as error:
            raise UserError(str(error), path=path, line=number, cure="fetch the set again") from None


def _target(label: str, labels: tuple[str, ...]) -> float:
    if labels:
        if label not in labels:
            raise ValueError(f"the label {label[:40]!r} is none of {' '.join(labels)}")
        return labels.index(label)
    score = float(label)
    if not 1 <= score <= 5:
        raise ValueError(f"the relatedness score {label!r} is not within 1 to 5")
    return score
