"""Reader of pairs of sentences with a score of how similar they are.

Read are STS-B (Cer et al., 2017), whose .csv files are in fact tab-separated and without quotes, its translations, SICK
(Marelli et al., 2014), and tables and records, as ``read_rows`` reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from xrep.errors import UserError, shown
from xrep.text.examples import Example, read_rows
from xrep.text.find import TextFile
from xrep.text.languages import canonical
from xrep.text.lines import read_lines
from xrep.text.nli import is_whole
from xrep.text.records import cells, read_csv

SCORED = "lines score<TAB>sentence<TAB>sentence, or STS-B, stsb_multi_mt or SICK as downloaded"
"""What a user may name."""
_UNNAMED = {3: ["score", "sentence1", "sentence2"]}
_SPLITS = {"SICK_test_annotated": "test", "SICK_trial": "dev", "SICK_train": "train"}
_SETS = {
    "SICK-R": (re.compile(r"(?P<split>SICK_test_annotated|SICK_trial|SICK_train)\.txt"), (1, 2, 3), 1),
    "STS-B": (re.compile(r"sts-(?P<split>train|dev|test)\.csv"), (5, 6, 4), 0),
    "STS-B {}": (re.compile(r"stsb-(?P<language>[A-Za-z-]+)-(?P<split>train|dev|test)\.csv"), (0, 1, 2), 0),
}
"""Names of data sets -> names of their files, the columns of the two sentences and the score, and the lowest score."""


class ScoredSet(NamedTuple):
    """A published file: its data set, split (train, dev or test), language and lowest score (the highest is 5), and the
    line, both sentences and the score of each row, as they are written."""

    name: str
    split: str
    language: str
    lowest: float
    rows: Iterator[tuple[int, list[str]]]


def scored_set(file: Path) -> ScoredSet | None:
    """Return what a file of STS-B, its translations or SICK has; None if its name is of none of them."""
    for template, (pattern, columns, lowest) in _SETS.items():
        if match := pattern.fullmatch(file.name):
            split, language = _SPLITS.get(match["split"], match["split"]), match.groupdict().get("language", "en")
            tabbed = ((line, text.split("\t")) for line, text in read_lines(file))
            lines = read_csv(file, ",") if "{}" in template else tabbed
            found = ((line, cells(file, line, fields, max(columns) + 1)) for line, fields in lines)
            rows = ((line, [fields[column] for column in columns]) for line, fields in found)
            rows = ((line, row) for line, row in rows if row[2] != "relatedness_score")
            return ScoredSet(template.format(canonical(language)), split, canonical(language), lowest, rows)
    return None


def score_of(text: str, scale: tuple[float, float], path: Path, line: int, cure: str = "fetch the file again") -> float:
    """Return a score as a number. Raises UserError if it is none within the scale."""
    try:
        if scale[0] <= (number := float(text)) <= scale[1]:
            return number
    except ValueError:
        pass
    problem = f"{shown(text.strip())} is not a score of {scale[0]:g} to {scale[1]:g}"
    raise UserError(problem, path=path, line=line, cure=cure)


def read_scored_pairs(files: Iterable[TextFile], scale: tuple[float, float], counts: Counter[str]) -> Iterator[Example]:
    """Yield the pairs of files. The label is the score, from 0 for the lowest to 1 for the highest one.

    Args:
        scale: Lowest and highest score of files that are not published sets.
        counts: Counter to which the pairs ``read`` and those left out (``empty``, ``too long``) are added.

    Raises:
        UserError: As ``read_rows``; or a row has one text, or its score is missing, no number or not in the scale; or a
            file beside published sets has no score above 1, as if its scale were another one.
    """
    cure = f"give {SCORED}; `lowest_score` and `highest_score` set the range"
    files = list(files)
    is_published = any(scored_set(file.path) for file in files)
    for file in files:
        known, rows, highest = scored_set(file.path), read_rows(file, _UNNAMED, "score"), 0.0
        least, most = (known.lowest, 5.0) if known else scale
        own = ((row.line, [*row.sentences, row.label], row.language) for row in rows)
        for line, row, language in ((*each, known.language) for each in known.rows) if known else own:
            if len(row) < 3:
                raise UserError("a score and one text, where two are needed", path=file.path, line=line, cure=cure)
            score = score_of(row[2], (least, most), file.path, line, cure)
            label, highest = (score - least) / (most - least), max(highest, score)
            sentences = tuple(" ".join(text.split()) for text in row[:2])
            example = Example(sentences, (language, language), label, file.path, line)
            if is_whole(example, counts):
                yield example
        if is_published and not known and highest <= 1 < most:
            problem = f"scores of at most {highest:g}, beside published ones of up to 5"
            raise UserError(problem, path=file.path, cure=f"set `highest_score`, which is {most:g}")
