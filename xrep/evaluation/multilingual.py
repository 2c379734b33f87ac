"""Parallel sentences in several languages, for analyses of the embedding space that the languages share.

They are read from the Tatoeba test (a folder in which every language is paired only with English), or from files whose
names differ only in the language and in which line i of one translates line i of the others, such as
``newstest2012.{lang}`` or ``test-{lang}.tsv`` of XNLI and PAWS-X.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError
from xrep.evaluation import tatoeba
from xrep.text.languages import canonical
from xrep.text.readers import read_lines

SHOWN = ("de", "en", "es", "fr", "ja", "ko", "zh")
"""The languages of PAWS-X, which are also those of figure 2 in "Universal Sentence Representation Learning with
Conditional Masked Language Model"."""
_PLACE = "{lang}"
_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z]+)?")

Group = dict[str, list[str]]
"""Sentences by canonical language; sentence i of one language translates sentence i of the others."""


@dataclass(frozen=True)
class Texts:
    """Groups of parallel sentences, each in two or more languages, and the files from which they were read."""

    groups: list[Group]
    files: list[Path]

    @property
    def languages(self) -> list[str]:
        """Language codes in alphabetical order."""
        return sorted({language for group in self.groups for language in group})


def read_texts(data: str, languages: str | None = None, column: int = 1) -> Texts:
    """Read parallel sentences. Rows with a blank or repeated side, and rows with all sides equal, are left out.

    Args:
        data: Folder of the Tatoeba test, or a path with ``{lang}`` in place of the language.
        languages: ``all``, or codes separated by commas; with Tatoeba, English is always included. None selects the
            available languages of ``SHOWN``, or all languages if fewer than two of these are available.
        column: Column of the sentences in ``.tsv`` files, counted from 1; other files have one sentence per line.

    Raises:
        UserError: The files do not exist, a language is not available, one side is missing or shorter, or there are
            fewer than two languages.
    """
    if _PLACE in data:
        found = files_of_pattern(data)
        chosen = _chosen(languages, set(found), data)
        columns = {language: _read(found[language], column) for language in chosen}
        groups, files = [_clean(columns, [found[language] for language in chosen])], [found[c] for c in chosen]
    else:
        codes = tatoeba.available(data)
        chosen = [language for language in _chosen(languages, {*codes, "en"}, data) if language != "en"]
        pools = [tatoeba.read_pool(data, codes[language]) for language in chosen]
        files = [file for language in chosen for file in tatoeba.files_of(data, codes[language])]
        columns = [{pool.language: pool.sentences, "en": pool.english} for pool in pools]
        groups = [_clean(group, files) for group in columns]
    return Texts(groups, files)


def files_of_pattern(pattern: str) -> dict[str, Path]:
    """Find the files that match a path with ``{lang}`` in place of the language: canonical language -> file.

    Raises:
        UserError: ``{lang}`` occurs more than once or not at all, or two files have the same language.
    """
    before, *others = pattern.split(_PLACE)
    if len(others) != 1:
        problem = f"{_PLACE} stands {'more than once' if others else 'nowhere'}"
        raise UserError(problem, path=pattern, cure="name the one place of the language")
    found: dict[str, Path] = {}
    for name in sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(others[0])}")):
        code = name[len(before) : len(name) - len(others[0])]
        if _CODE.fullmatch(code):
            if canonical(code) in found:
                problem = f"{found[canonical(code)]} is of the same language"
                raise UserError(problem, path=name, cure="move one of the two elsewhere")
            found[canonical(code)] = Path(name)
    return found


def _chosen(languages: str | None, found: set[str], data: str) -> list[str]:
    wanted = {canonical(code.strip()) for code in (languages or "").split(",") if code.strip()}
    if languages == "all":
        wanted = found
    elif languages is None:
        wanted = found & set(SHOWN)
        wanted = wanted if len(wanted) > 1 else found
    if missing := sorted(wanted - found):
        there = f"it holds {','.join(sorted(found))}" if found else f"{_PLACE} stands for the language"
        raise UserError(f"no sentences of {' '.join(missing)}", path=data, cure=there)
    if _PLACE not in data:
        wanted = wanted | {"en"}
    if len(wanted) < 2:
        problem = "sentences of fewer than 2 languages"
        raise UserError(problem, path=data, cure=f"name files of several languages, with {_PLACE} in their place")
    return sorted(wanted)


def _read(path: Path, column: int) -> list[str]:
    if ".tsv" not in path.suffixes:
        return [line for _, line in read_lines(path)]
    if column < 1:
        raise UserError(f"--column {column}", cure="columns are counted from 1")
    sentences = []
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) < column:
            problem = f"{len(fields)} columns, but --column {column}"
            raise UserError(problem, path=path, line=number, cure="separate the columns by tabs")
        sentences.append(fields[column - 1])
    return sentences


def _clean(group: Group, files: list[Path]) -> Group:
    lengths = [len(sentences) for sentences in group.values()]
    if len(set(lengths)) > 1:
        short = lengths.index(min(lengths))
        other = lengths.index(max(lengths))
        problem = f"{lengths[short]} lines, but {files[other].name} has {lengths[other]}"
        cure = "line i of one must translate line i of the other"
        raise UserError(problem, path=files[short], line=lengths[short] + 1, cure=cure)
    rows = list(_distinct(zip(*group.values(), strict=True)))
    if len(rows) < 2:
        problem = f"{len(rows)} different sentences with a translation"
        raise UserError(problem, path=files[0], cure="give at least 2 lines of text")
    return dict(zip(group, map(list, zip(*rows, strict=True)), strict=True))


def _distinct(rows: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    seen: set[tuple[int, str]] = set()
    for row in rows:
        sides = set(enumerate(row))
        if all(side.strip() for side in row) and len(set(row)) > 1 and not sides & seen:
            seen |= sides
            yield row
