"""Parallel sentences in several languages, of the Tatoeba test, in which every language is paired only with English, or
of files whose names differ only in the language: ``newstest2012.{lang}``, ``test-{lang}.tsv`` of XNLI and PAWS-X."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.evaluation.reading import check_least, check_parallel, choose_languages, existing_folder, read_column
from xrep.text.languages import canonical

SHOWN = ("de", "en", "es", "fr", "ja", "ko", "zh")
"""The languages of PAWS-X, which are also those of figure 2 in "Universal Sentence Representation Learning with
Conditional Masked Language Model"."""
_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z]+)?")


@dataclass(kw_only=True)
class TextOptions:
    """Options of every evaluation that reads parallel sentences in several languages."""

    data: str
    """Folder of the Tatoeba test, or path with {lang} in place of the language."""
    langs: str | None = None
    """Language codes (de,fr or deu,fra) or all. The default is those of de en es fr ja ko zh that are there, or all if
    fewer than two are."""
    column: int = 1
    """Column of the sentence in .tsv files, counted from 1."""


def read_texts(options: TextOptions) -> list[Examples]:
    """Read parallel sentences: one table with a column for each language, or with Tatoeba one table for each language,
    whose second column is English.

    Rows with a blank or repeated side, and rows with all sides equal, are left out, and so are rows in which a side is
    ``NS``, with which PAWS-X marks a sentence that has no translation.
    """
    data, langs = options.data, options.langs
    check_least(options, column=1)
    codes = {} if "{lang}" in data else available(data)
    files = files_of_pattern(data) if "{lang}" in data else {}
    known, hub = sorted({*files, *codes, "en"} if codes else files), {"en"} if codes else set()
    if langs is None:
        shown = [language for language in SHOWN if language in known]
        langs = ",".join(shown) if len(shown) > 1 else "all"
    chosen = sorted(hub.union(choose_languages(langs, known, "sentences of", data)))
    if len(chosen) < 2:
        cure = "name files of several languages, with {lang} in their place"
        raise UserError("sentences of fewer than 2 languages", path=data, cure=cure)
    if codes:
        return [_clean(read_pairs(data, codes[language])) for language in chosen if language != "en"]
    return [_clean(read_parallel(" ".join(chosen), {language: files[language] for language in chosen}, options.column))]


def available(folder: str | Path) -> dict[str, str]:
    """Return the languages of a folder in LASER's layout: canonical code -> code in the file names."""
    cure = "name the folder of LASER's Tatoeba test, which holds tatoeba.deu-eng.deu and its like"
    folder = existing_folder(folder, cure)
    codes = {file.name.split(".")[1].removesuffix("-eng") for file in folder.glob("tatoeba.*-eng.*")}
    if not codes:
        raise UserError("no file tatoeba.{xxx}-eng.{xxx} in it", path=folder, cure=cure)
    return {canonical(code): code for code in sorted(codes)}


def read_pairs(folder: str | Path, code: str) -> Examples:
    """Read the Tatoeba test of one language: its own sentences and their English translations."""
    own, english = (Path(folder) / f"tatoeba.{code}-eng.{side}" for side in (code, "eng"))
    return read_parallel(canonical(code), {canonical(code): own, "en": english})


def read_parallel(name: str, files: Mapping[str, Path], column: int = 1) -> Examples:
    """Read files, by their languages, whose line i translates line i of the others; of .tsv files one column."""
    columns = tuple(read_column(path, column) for path in files.values())
    check_parallel(columns, list(files.values()))
    return Examples(name, tuple(files), columns, files=tuple(files.values()))


def files_of_pattern(pattern: str) -> dict[str, Path]:
    """Find the files that match a path with ``{lang}`` in place of the language: canonical language -> file."""
    before, *others = pattern.split("{lang}")
    if len(others) != 1:
        problem = f"{{lang}} occurs {'more than once' if others else 'nowhere'}"
        raise UserError(problem, path=pattern, cure="write it once, in place of the language")
    names = sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(others[0])}"))
    codes = {name[len(before) : len(name) - len(others[0])]: Path(name) for name in names}
    files = {canonical(code): file for code, file in codes.items() if _CODE.fullmatch(code)}
    if not files:
        raise UserError("no such files", path=pattern, cure="{lang} stands for the language")
    return files


def languages_of(tables: Sequence[Examples]) -> list[str]:
    """Return the languages of several tables in alphabetical order."""
    return sorted({language for examples in tables for language in examples.languages})


def _clean(examples: Examples) -> Examples:
    kept, seen = list[bool](), set[tuple[int, str]]()
    for row in zip(*examples.columns, strict=True):
        sides = set(enumerate(row))
        blank = any(side.strip() in ("", "NS") for side in row)
        kept.append(not blank and len(set(row)) > 1 and not sides & seen)
        seen |= sides if kept[-1] else set()
    if sum(kept) < 2:
        problem = f"{sum(kept)} different sentences with a translation"
        raise UserError(problem, path=examples.files[0], cure="give at least 2 lines of text")
    return examples.only(np.array(kept))
