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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.reading import check_parallel, existing_folder, folders_with, read_columns, read_sentences
from xrep.text.languages import canonical
from xrep.text.readers import read_csv

_SPLITS = {"SICK_test_annotated": "test", "SICK_trial": "dev", "SICK_train": "train"}
_FILES = {
    "SICK-R": (re.compile(r"(?P<split>SICK_test_annotated|SICK_trial|SICK_train)\.txt"), (1, 2, 3)),
    "STS-B": (re.compile(r"sts-(?P<split>train|dev|test)\.csv"), (5, 6, 4)),
    "STS-B {}": (re.compile(r"stsb-(?P<language>[A-Za-z-]+)-(?P<split>train|dev|test)\.csv"), (0, 1, 2)),
}
"""Names of data sets -> names of their files, and the columns of the two sentences and the score."""
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
    for template, (pattern, columns) in _FILES.items():
        if match := pattern.fullmatch(file.name):
            own, language = _SPLITS.get(match["split"], match["split"]), match.groupdict().get("language", "en")
            name = template.format(canonical(language))
            if split not in (None, own):
                return None
            lines = read_csv(file, 3) if "{}" in template else read_columns(file, max(columns) + 1)
            rows = [(name, file, line, [fields[column] for column in columns]) for line, fields in lines]
            rows = [row for row in rows if row[-1][2] != "relatedness_score"]
            return _examples(name, own, canonical(language), rows, [file])
    return None


def read_semeval(folder: Path) -> Examples:
    """Read one year of SemEval's STS; each of its input files becomes a subset."""
    year = _YEAR.search(folder.resolve().name)
    if not year:
        cure = "give the folder the name it was published by: STS12-en-test"
        raise UserError("the name of the folder has no year", path=folder, cure=cure)
    rows, files = list[_Row](), list[Path]()
    for file in sorted(folder.glob("STS.input.*.txt")):
        name = file.name.removeprefix("STS.input.").removesuffix(".txt")
        if name == "ALL":  # it repeats the pairs of the other files
            continue
        gold = file.with_name(f"STS.gs.{name}.txt")
        pairs, scores = list(read_columns(file, 2)), read_sentences(gold)
        check_parallel((scores, pairs), (gold, file))
        for (line, fields), score in zip(pairs, scores, strict=True):
            rows.append((name, gold, line, [*fields[:2], score]))
        files += [file, gold]
    return _examples(f"STS{year[1]}", "test", "en", rows, files)


_Row = tuple[str, Path, int, list[str]]
"""Subset, file and line of the score; and both sentences and the score as it is written, which may be blank."""


def _examples(name: str, split: str, language: str, rows: Sequence[_Row], files: list[Path]) -> Examples:
    """Return the pairs that have a score."""
    scored = [row for row in rows if row[-1][2].strip()]
    if len(scored) < 2:
        raise UserError(f"{len(scored)} scored pairs, a correlation needs 2", path=files[0], cure="fetch it again")
    gold = [(_number(fields[2], path, line), subset) for subset, path, line, fields in scored]
    columns = tuple([fields[side].replace("\n", " ") for *_, fields in scored] for side in (0, 1))
    scores = np.array(gold, dtype=[("score", np.float64), ("subset", object)])
    return Examples(name, (language, language), columns, scores, tuple(files), split)


def _number(score: str, path: Path, line: int) -> float:
    try:
        if 0 <= (number := float(score)) <= 5:
            return number
    except ValueError:
        pass
    problem = f"{score.strip()[:40]!r} is not a score of 0 to 5"
    raise UserError(problem, path=path, line=line, cure="fetch the file again")
