"""Read data sets of semantic textual similarity (STS) in the format in which they are published.

- STS12 to STS16 (SemEval; Agirre et al., 2012 to 2016): a folder with the year in its name, which contains
  ``STS.input.{subset}.txt`` (tab-separated; the first two columns are the sentences) and ``STS.gs.{subset}.txt`` (one
  score per line; a blank line means that the pair has no score).
- STS-B (Cer et al., 2017): ``sts-{train,dev,test}.csv``, which are in fact tab-separated and without quotes.
- SICK-R (Marelli et al., 2014): ``SICK_train.txt``, ``SICK_trial.txt`` (dev) and ``SICK_test_annotated.txt``.
- STS-B translated (stsb_multi_mt): ``stsb-{xx}-{train,dev,test}.csv``, comma-separated with quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.reading import check_parallel, existing_folder, folders_with, read_columns, read_sentences
from xrep.text.languages import canonical
from xrep.text.readers import read_csv

_SICK = {"SICK_test_annotated.txt": "test", "SICK_trial.txt": "dev", "SICK_train.txt": "train"}
_STSB = re.compile(r"sts-(train|dev|test)\.csv")
_TRANSLATED = re.compile(r"stsb-([A-Za-z-]+)-(train|dev|test)\.csv")
_YEAR = re.compile(r"STS[-_ ]?(?:20)?(1[2-6])(?!\d)", re.IGNORECASE)
_LAYOUTS = "a folder with STS12-en-test and its like, STSBenchmark, SICK or stsb_multi_mt, or one of these"


def subsets_of(examples: Examples) -> list[Examples]:
    """Return the pairs of each subset of a data set."""
    names = examples.gold["subset"]
    return [replace(examples.only(names == name), name=name) for name in dict.fromkeys(names.tolist())]


def find_sets(folder: str | Path, split: str = "test") -> list[Examples]:
    """Return every data set with this split in a folder and its subfolders (four levels deep), sorted by name.

    The columns are the two sentences of each pair, and ``gold`` has the fields ``score``, from 0 to 5, and ``subset``,
    the name of the subset of the data set.
    """
    folder = existing_folder(folder, f"name {_LAYOUTS}")
    sets = dict[str, Examples]()
    for inside, names in folders_with(folder).items():
        tests = [read_file(inside / name, split) for name in names]
        if split == "test" and any(inside.glob("STS.input.*.txt")):
            tests.append(read_semeval(inside))
        for test in filter(None, tests):
            if test.name in sets:
                problem = f"{test.name} is in {sets[test.name].files[0].parent}, too"
                raise UserError(problem, path=inside, cure="name one of the two folders")
            sets[test.name] = test
    if not sets:
        raise UserError(f"no STS data set with a {split} split in it", path=folder, cure=f"name {_LAYOUTS}")
    return [sets[name] for name in sorted(sets)]


def read_file(file: Path, split: str | None = None) -> Examples | None:
    """Read a file of STS-B, its translations or SICK. Return None if its name is of none of them, or of another split
    than ``split``."""
    name, language, own = "SICK-R", "en", _SICK.get(file.name)
    if match := _STSB.fullmatch(file.name):
        name, own = "STS-B", match[1]
    elif match := _TRANSLATED.fullmatch(file.name):
        language, own = canonical(match[1]), match[2]
        name = f"STS-B {language}"
    if own is None or split not in (None, own):
        return None
    return _examples(name, own, language, {name: (file, _rows(file))}, [file])


def read_semeval(folder: Path) -> Examples:
    """Read one year of SemEval's STS; each of its input files becomes a subset."""
    year = _YEAR.search(folder.resolve().name)
    if not year:
        cure = "give the folder the name it was published by: STS12-en-test"
        raise UserError("the name of the folder has no year", path=folder, cure=cure)
    subsets, files = {}, list[Path]()
    for file in sorted(folder.glob("STS.input.*.txt")):
        name = file.name.removeprefix("STS.input.").removesuffix(".txt")
        if name == "ALL":  # it repeats the pairs of the other files
            continue
        gold = file.with_name(f"STS.gs.{name}.txt")
        subsets[name] = gold, _semeval_rows(file, gold)
        files += [file, gold]
    return _examples(f"STS{year[1]}", "test", "en", subsets, files)


_Row = tuple[int, str, str, str]
"""Line number, first sentence, second sentence, and the score as it is written in the file."""


def _examples(
    name: str, split: str, language: str, subsets: Mapping[str, tuple[Path, Iterator[_Row]]], files: list[Path]
) -> Examples:
    """Return the scored pairs of the subsets, of each of which the file with the scores and the rows are given."""
    pairs, gold = list[tuple[str, str]](), list[tuple[float, str]]()
    for subset, (path, rows) in subsets.items():
        before = len(gold)
        for line, one, other, score in rows:
            if score.strip():
                pairs.append((one, other))
                gold.append((_number(score, path, line), subset))
        if (count := len(gold) - before) < 2:
            raise UserError(f"{count} scored pairs, a correlation needs 2", path=path, cure="fetch the file again")
    first, second = map(list, zip(*pairs, strict=True))
    scores = np.array(gold, dtype=[("score", np.float64), ("subset", object)])
    return Examples(name, (language, language), (first, second), scores, tuple(files), split)


def _number(score: str, path: Path, line: int) -> float:
    try:
        if 0 <= (number := float(score)) <= 5:
            return number
    except ValueError:
        pass
    problem = f"{score.strip()[:40]!r} is not a score of 0 to 5"
    raise UserError(problem, path=path, line=line, cure="fetch the file again")


def _semeval_rows(file: Path, gold: Path) -> Iterator[_Row]:
    pairs, scores = list(read_columns(file, 2)), read_sentences(gold)
    check_parallel((scores, pairs), (gold, file))
    for (line, fields), score in zip(pairs, scores, strict=True):
        yield line, fields[0], fields[1], score


def _rows(file: Path) -> Iterator[_Row]:
    if file.name in _SICK:
        columns, rows = [1, 2, 3], (row for row in read_columns(file, 4) if row[1][3] != "relatedness_score")
    elif _STSB.fullmatch(file.name):
        columns, rows = [5, 6, 4], read_columns(file, 7)
    else:
        columns, rows = [0, 1, 2], read_csv(file, width=3)
    for line, fields in rows:
        one, other, score = (fields[column].replace("\n", " ") for column in columns)
        yield line, one, other, score
