"""Read the data sets of SentEval from the files of their publishers or of SentEval's download.

A translated copy (XEVAL: the same sets in other languages) has the same files in a separate folder.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def _two_classes(negative: str, positive: str) -> list[Layout]:
    # The positive file comes first, as in SentEval, because the order of the examples determines the seeded folds.
    return [Layout({positive: "all", negative: "all"}, (negative, positive))]


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
    "SST2": [Layout(_SST, columns=(1, 0), fine=False)],
    "SST5": [Layout(_SST, _STARS, (1, 0), fine=True), Layout(_KIM, _STARS)],
    "TREC": [Layout(files, _QUESTIONS) for files in _TREC],
    "MRPC": [Layout(_MRPC, columns=(0, 3, 4), header=True)],
    "SICK-E": [Layout(_SICK, _ENTAILMENT, (4, 1, 2), header=True)],
    "SICK-R": [Layout(_SICK, (), (3, 1, 2), header=True)],
}
"""Layouts in which each set is published, by name. SST2 is SentEval's version, which trains on 67,349 phrases."""
TITLES = {"SICK-R": "SICK-R (supervised)"}
"""Names in results of sets that also have a zero-shot result (``xrep-eval sts``)."""


def find(folder: str | Path) -> dict[str, tuple[Layout, Path]]:
    """Return the sets in a folder and its subfolders, up to four levels deep: name -> layout and folder of the set."""
    folder = existing_folder(folder, "name the folder of SentEval's sets")
    folders, found = folders_with(folder), dict[str, tuple[Layout, Path]]()
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


def _fields(line: str, layout: Layout, file: str) -> list[str]:
    """Return the label and the sentences of a line."""
    if layout.columns:
        row = line.split("\t")
        return [row[column] for column in layout.columns]
    if file in layout.labels:
        return [file, line]
    label, _, sentence = line.partition(" ")
    return [label.partition(":")[0], sentence]
