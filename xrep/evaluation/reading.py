"""What the readers of several evaluations need: the choice of languages, files in subfolders, and parallel sentences
of the Tatoeba test, in which every language is paired only with English, or of files whose names differ only in the
language: ``newstest2012.{lang}``, ``test-{lang}.tsv`` of XNLI and PAWS-X."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples
from xrep.store.addresses import is_local
from xrep.text import examples as text_readers
from xrep.text.find import Bitext, parse_bitext
from xrep.text.languages import canonical, refuse_pair
from xrep.text.records import cells

SHOWN = ("de", "en", "es", "fr", "ja", "ko", "zh")
"""The languages of PAWS-X, which are also those of figure 2 in "Universal Sentence Representation Learning with
Conditional Masked Language Model"."""
_CODE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z]+)?")


def named(text: str, option: str) -> list[str]:
    """Return the names in the value of an option, which commas separate, each once."""
    if names := [name for name in map(str.strip, text.split(",")) if name]:
        return list(dict.fromkeys(names))
    raise UserError(f"`{option}` {text!r} names nothing", cure="give names, separated by commas")


def choose_names(
    names: Collection[str], known: Collection[str], data: str, path: str | Path | None = None
) -> list[str]:
    """Return which of the ``known`` names are among ``names``, of which ``all`` stands for all of them. They are in the
    order of ``known``, on which the draws of the bootstrap depend. ``data`` and ``path`` say in messages what there is
    of a name (``STS data for``), and where."""
    if missing := [name for name in names if name not in {"all", *known}]:
        raise UserError(f"no {data} {' '.join(missing)}", path=path, cure=f"the data has {','.join(known)}")
    return [name for name in known if name in names or "all" in names]


def named_languages(text: str, groups: Mapping[str, list[str]], known: Collection[str] = ()) -> list[str]:
    """Return the canonical codes in the value of ``langs``, each once. They are given as ``de`` or ``deu``, or by the
    name of one of the ``groups``; ``all`` stays as it is."""
    languages = list[str]()
    for code in named(text, "langs"):
        refuse_pair(code, "langs", known)
        languages += groups.get(code, [code if code == "all" else canonical(code)])
    return list(dict.fromkeys(languages))


def choose_languages(
    text: str, known: Collection[str], data: str, path: str | Path | None = None, groups: Mapping[str, list[str]] = {}
) -> list[str]:
    """Return the languages that the value of ``langs`` names, as ``named_languages`` and ``choose_names`` do."""
    return choose_names(named_languages(text, groups, known), known, data, path)


def existing_folder(path: str | Path, cure: str) -> Path:
    _refuse_store(str(path))
    if not Path(path).is_dir():
        raise UserError("no such folder", path=path, cure=cure)
    return Path(path)


def folders_with(folder: Path, pattern: str = ".*") -> dict[Path, list[str]]:
    """Return the folders, up to four levels deep, that have files whose whole name matches a regular expression: folder
    -> their names. Four are enough for SentEval/data/downstream/SST/binary."""
    matching: dict[Path, list[str]] = {}
    for path, folders, names in os.walk(folder):
        folders.sort()
        if len(Path(path).relative_to(folder).parts) >= 4:
            folders.clear()
        if found := sorted(name for name in names if re.fullmatch(pattern, name) and Path(path, name).is_file()):
            matching[Path(path)] = found
    return matching


@dataclass(kw_only=True)
class ParallelOptions:
    """Options of every evaluation that reads parallel sentences in several languages."""

    data: str
    """Folder of the Tatoeba test, or path with {lang} in place of the language."""
    langs: str | None = None
    """Language codes (de,fr or deu,fra) or all. The default is those of de en es fr ja ko zh that are there, or all if
    fewer than two are."""
    column: Count = 1
    """Column of the sentence in .tsv files, counted from 1."""


def read_texts(options: ParallelOptions) -> list[Examples]:
    """Read parallel sentences: one table with a column for each language, or with Tatoeba one table for each language,
    whose second column is English. Rows with a blank or repeated side, and rows with all sides equal, are left out, and
    so are rows in which a side is ``NS``, with which PAWS-X marks a sentence that has no translation."""
    data, langs = options.data, options.langs
    codes = {} if "{lang}" in data else available(data)
    files = files_of_pattern(data) if "{lang}" in data else dict[str, list[Path]]()
    known, hub = sorted({*files, *codes, "en"} if codes else files), {"en"} if codes else set()
    if langs is None:
        shown = [language for language in SHOWN if language in known]
        langs = ",".join(shown) if len(shown) > 1 else "all"
    chosen = sorted(hub.union(choose_languages(langs, known, "sentences of", data)))
    if len(chosen) < 2:
        cure = "name files of several languages, with {lang} in their place"
        raise UserError("sentences of fewer than 2 languages", path=data, cure=cure)
    if codes:
        return [_clean(read_tatoeba(data, codes[language])) for language in chosen if language != "en"]
    return [_clean(read_columns(" ".join(chosen), only_files(files, chosen), options.column))]


def available(folder: str | Path) -> dict[str, str]:
    """Return the languages of a folder in LASER's layout: canonical code -> code in the file names. Raises UserError if
    there are none, or two of one language."""
    cure = "name the folder of LASER's Tatoeba test, which holds tatoeba.deu-eng.deu and its like"
    folder = existing_folder(folder, cure)
    codes = {file.name.split(".")[1].removesuffix("-eng") for file in folder.glob("tatoeba.*-eng.*")}
    if not codes:
        raise UserError("no file tatoeba.{xxx}-eng.{xxx} in it", path=folder, cure=cure)
    found = dict[str, str]()
    for code in sorted(codes):
        if (other := found.setdefault(canonical(code), code)) != code:
            raise UserError(f"{other} and {code} are the same language", path=folder, cure="keep the files of one")
    return found


def read_tatoeba(folder: str | Path, code: str) -> Examples:
    """Read the Tatoeba test of one language: its own sentences and their English translations. Rows with a blank side,
    which the published files have not, are left out."""
    foreign, english = (Path(folder) / f"tatoeba.{code}-eng.{side}" for side in (code, "eng"))
    examples = read_columns(canonical(code), {canonical(code): foreign, "en": english})
    return examples.only(np.array([all(map(str.strip, row)) for row in zip(*examples.columns, strict=True)], bool))


def read_columns(name: str, files: Mapping[str, Path], column: int = 1) -> Examples:
    """Read files, by their languages, whose line i translates line i of the others; of .tsv files one column."""
    paths, columns = tuple(files.values()), tuple(list[str]() for _ in files)
    for number, lines in text_readers.read_parallel(paths):
        for path, line, texts in zip(paths, lines, columns, strict=True):
            texts.append(cells(path, number, line.split("\t"), column)[column - 1] if ".tsv" in path.suffixes else line)
    return Examples(name, tuple(files), columns, files=paths)


def read_bitext(data: str) -> tuple[Bitext, Iterator[tuple[str, str]]]:
    """Return parallel text, which is named as for xrep-preprocess, and its pairs without those that have a blank side.
    A line on stderr says if its columns are in another order than its name says."""
    bitext = parse_bitext(data)
    if bitext.sample is not None:
        raise UserError("pairs are not sampled here", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")
    bitext, note = text_readers.orient(bitext)
    if note:
        print(note, file=sys.stderr)
    rows = text_readers.read_pairs(bitext)
    return bitext, ((source, target) for _, source, target in rows if source.strip() and target.strip())


def files_of_pattern(pattern: str) -> dict[str, list[Path]]:
    """Find the files that match a path with ``{lang}`` in place of the language: canonical language -> its files, of
    which there are several if they differ in the script or region (zho_Hans, zho_Hant)."""
    _refuse_store(pattern)
    before, *others = pattern.split("{lang}")
    if len(others) != 1:
        problem = f"{{lang}} occurs {'more than once' if others else 'nowhere'}"
        raise UserError(problem, path=pattern, cure="write it once, in place of the language")
    names = sorted(glob.glob(f"{glob.escape(before)}*{glob.escape(others[0])}"))
    files = dict[str, list[Path]]()
    for file in names:
        if _CODE.fullmatch(code := file[len(before) : len(file) - len(others[0])]):
            files.setdefault(canonical(code), []).append(Path(file))
    if not files:
        raise UserError("no such files", path=pattern, cure="{lang} stands for the language")
    return files


def only_files(files: Mapping[str, Sequence[Path]], languages: Sequence[str]) -> dict[str, Path]:
    """Return the file of each of these languages; a UserError says that one has several."""
    for language in languages:
        if len(files[language]) > 1:
            problem = f"is of the same language as {files[language][0]}"
            cure = f"leave {language} out of `langs`, or keep one of them in this folder"
            raise UserError(problem, path=files[language][1], cure=cure)
    return {language: files[language][0] for language in languages}


def languages_of(tables: Sequence[Examples]) -> list[str]:
    """Return the languages of several tables in alphabetical order."""
    return sorted({language for examples in tables for language in examples.languages})


def _refuse_store(path: str) -> None:
    if not is_local(path):
        problem, cure = "the data of this test is found in folders of this machine", "copy it from the store"
        raise UserError(problem, path=path, cure=cure)


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
