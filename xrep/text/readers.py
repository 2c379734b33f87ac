"""Readers of raw text: lines of a file, text of one language, parallel text, and the text in a folder.

A pair of languages is (source, target). If one of them is English, it is the target (``de-en``), whichever was named
first.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from xrep.errors import UserError
from xrep.files import is_stream
from xrep.text.languages import canonical, count_english_words
from xrep.text.lines import MAXIMUM_CHARACTERS, MAXIMUM_WORDS, read_lines
from xrep.text.records import (
    field_of,
    format_of,
    members_of,
    plain_name,
    read_field,
    read_records,
    split_field,
)

LANGUAGE_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Z][a-z]{3})?"
"""Pattern of a language code in file names: de, deu, zh-Hans."""
_PAIR = re.compile(rf"({LANGUAGE_CODE})-({LANGUAGE_CODE})")
_SPEC = re.compile(rf"{_PAIR.pattern}=(.+?)(?:@([0-9]{{1,15}}))?")
_COLUMNS = re.compile(r"(.+):([0-9]{1,6}),([0-9]{1,6})")
_FIELDS = re.compile(r"(.+):([^,:/]+),([^,:/]+)")
_SPEC_CURE = "write de-en=FILE.tsv, de-en=FILE.tsv:2,1 (columns of de and en) or de-en=FILE.de,FILE.en"
SPLITS = {"train": "train", **dict.fromkeys(("valid", "val", "dev", "validation"), "valid"), "test": "test"}
"""The words in file names that mean a split."""
_NO_LANGUAGE = frozenset(
    "bak bin bpe bz2 csv gz idx log md npy out png py sgm sh spm src tgt tmp tmx tsv txt xlf xml xz zip zst".split()
)
_TEXT_SPEC = re.compile(rf"({LANGUAGE_CODE})=(.+)")
_TEXT_LAYOUTS = (
    "expected news.de, train.de or de.txt (each also .gz, .bz2, .xz or .zst; valid.* likewise), or de=FILE,en=FILE "
    "instead"
)
_LAYOUTS = (
    "expected train.de-en.de + train.de-en.en, or train.de + train.en, or train.de-en.tsv, or deu-eng.tsv "
    "(also .jsonl, .csv, .parquet, .tmx, .xlf and .zip; each also .gz, .bz2, .xz or .zst; valid.* and test.* likewise)"
)


@dataclass(frozen=True)
class Bitext:
    """Parallel text of one language pair: two line-aligned files, or two columns of one TSV file.

    Attributes:
        languages: (source, target) as canonical codes.
        paths: Source file and target file, or one TSV file.
        columns: TSV columns of source and target, counted from 0; None for two files, records and archives.
        columns_given: Whether the user named the columns, so that ``orient`` does not change them.
        sample: Largest number of pairs to keep; None leaves it to the cleaning options.
        fields: Names of source and target in records; None: their languages.
    """

    languages: tuple[str, str]
    paths: tuple[str, ...]
    columns: tuple[int, int] | None = None
    columns_given: bool = False
    sample: int | None = None
    fields: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The language pair, ``de-en``."""
        return "-".join(self.languages)


def read_text(
    path: str | Path,
    lang: str | None = None,
    *,
    allow_empty: bool = False,
    most_words: int | None = MAXIMUM_WORDS,
    cut: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each sentence of a file of lines, of records or of an archive with such a file.

    Args:
        path: The file; of records also ``FILE:FIELD``; ``-`` is standard input, which has lines.
        lang: Language of the text, by which translation memories, fields and files of archives are chosen.
        allow_empty, most_words, cut: As in ``read_lines``.

    Raises:
        UserError: As ``read_lines``, ``read_field`` and ``members_of``.
    """
    path, field = split_field("/dev/stdin" if str(path) == "-" else path)
    if str(path).endswith(".zip") and Path(path).is_file():
        path = members_of(path, [lang and canonical(lang)])[0]
    if format_of(path) is None:
        return read_lines(path, allow_empty=allow_empty, most_words=most_words, cut=cut)
    return read_field(path, field, lang, cut=cut)


def parse_bitext(spec: str) -> Bitext:
    """Parse the command line's notation for parallel text. No file is opened.

    The forms are ``de-en=FILE`` for records and archives, with ``:FIELD,FIELD`` if the fields have other names than the
    languages, ``de-en=deu-eng.tsv``, ``de-en=x.tsv:2,1`` (columns of de and en, counted from 1) and
    ``fr-en=train.fr,train.en``; ``@N`` after the files samples N of their pairs. If English is named first, the sides
    are swapped. Raises UserError if the text has another form, or names the same language twice.

    >>> parse_bitext("en-de=x.tsv:1,2")
    Bitext(languages=('de', 'en'), paths=('x.tsv',), columns=(1, 0), columns_given=True, sample=None, fields=None)
    """
    match = _SPEC.fullmatch(spec)
    if not match:
        raise UserError(f"cannot read the parallel text {spec!r}", cure=_SPEC_CURE)
    languages = canonical(match[1]), canonical(match[2])
    if languages[0] == languages[1]:
        raise UserError(f"{spec!r} names {languages[0]} twice", cure=_SPEC_CURE)
    sample = int(match[4]) if match[4] else None
    if sample == 0:
        raise UserError(f"{spec!r} asks for a sample of 0 pairs", cure="give at least 1, or leave @N out")
    if columns := _COLUMNS.fullmatch(match[3]):
        first, second = int(columns[2]) - 1, int(columns[3]) - 1
        if first == second or min(first, second) < 0:
            raise UserError(f"{spec!r} needs two different columns, counted from 1", cure=_SPEC_CURE)
        return _english_last(Bitext(languages, (columns[1],), (first, second), columns_given=True, sample=sample))
    fields = _FIELDS.fullmatch(match[3])
    if fields and format_of(fields[1]):
        named = (fields[2], fields[3])
        return _english_last(Bitext(languages, (fields[1],), fields=named, sample=sample))
    paths = tuple(match[3].split(","))
    if len(paths) > 2 or not all(paths):
        raise UserError(f"{spec!r} names {len(paths)} files", cure=_SPEC_CURE)
    columns = (0, 1) if len(paths) == 1 and not _has_records(paths[0]) else None
    return _english_last(Bitext(languages, paths, columns, sample=sample))


def _has_records(path: str | Path) -> bool:
    """Return whether a file has records, or is an archive, so that its pairs are found by language."""
    return format_of(path) is not None or str(path).endswith(".zip")


def _english_last(bitext: Bitext) -> Bitext:
    if bitext.languages[0] != "en":
        return bitext
    fields = bitext.fields and (bitext.fields[1], bitext.fields[0])
    turned = replace(bitext, languages=bitext.languages[::-1], paths=bitext.paths[::-1], fields=fields)
    return _swap_columns(turned)


def _swap_columns(bitext: Bitext) -> Bitext:
    return replace(bitext, columns=bitext.columns and (bitext.columns[1], bitext.columns[0]))


def orient(bitext: Bitext) -> tuple[Bitext, str | None]:
    """Choose the files of an archive, and swap the columns of a TSV file if they are in the opposite order to the
    languages in its name.

    ``deu-eng.tsv`` of manythings.org, for example, has English first. The columns are swapped only if one language is
    English and the first 1,000 rows show clearly that it is in the other column. Columns given by the user are kept.

    Raises:
        UserError: As ``read_pairs``, and if the file is a pipe or device, which cannot be read again.

    Returns:
        The bitext to read, and one line of text for the user if the columns were swapped (else None).
    """
    if len(bitext.paths) == 1 and bitext.paths[0].endswith(".zip"):
        members = tuple(members_of(bitext.paths[0], bitext.languages))
        bitext = replace(
            bitext, paths=members, columns=None if len(members) == 2 or _has_records(members[0]) else (0, 1)
        )
    if bitext.columns is None or bitext.columns_given or bitext.languages[1] != "en":
        return bitext, None
    if is_stream(bitext.paths[0]):
        problem = "its columns cannot be recognised, because a pipe or device is read only once"
        raise UserError(problem, path=bitext.paths[0], cure="name the columns (FILE:2,1), or copy it to a file")
    rows = list(itertools.islice(read_pairs(bitext, cut=True), 1000))
    in_source, words = count_english_words(source for _, source, _ in rows)
    in_target, others = count_english_words(target for _, _, target in rows)
    share = in_source / max(1, words)
    if in_source < 3 or share < 0.02 or share < 4 * in_target / max(1, others):
        return bitext, None
    english, other = bitext.columns[0] + 1, bitext.columns[1] + 1
    note = f"{bitext.paths[0]}: column {english} is English, so column {other} is read as {bitext.languages[0]}"
    return _swap_columns(bitext), note


def read_pairs(bitext: Bitext, *, cut: bool = False) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line number, source, target)`` of each pair, as written; a blank line of a TSV file gives empty sides.
    Raises UserError as ``read_lines``, and if a TSV row has too few columns or two files have unequal line counts.

    Args:
        cut: As in ``read_lines``. A row of a TSV file that is too long is both sides of its pair.
    """
    if len(bitext.paths) == 1 and bitext.paths[0].endswith(".zip"):
        bitext = orient(bitext)[0]
    if bitext.columns is None and len(bitext.paths) == 1:
        path = bitext.paths[0]
        memory = format_of(path) in ("tmx", "xlf", "xliff")
        for number, record in read_records(path, cut=cut):
            source, target = (
                field_of(record, name, memory, path, number) for name in bitext.fields or bitext.languages
            )
            yield number, source, target
        return
    if bitext.columns is None:
        for number, (source, target) in read_parallel(bitext.paths, bitext.languages, cut=cut):
            yield number, source, target
        return
    path, columns = bitext.paths[0], bitext.columns
    width = max(columns) + 1
    for number, line in read_lines(path, cut=cut):
        row = [line] * width if len(line) > MAXIMUM_CHARACTERS else line.split("\t")
        if len(row) < width:
            if line.strip():
                need = "two columns" if width == 2 else f"{width} columns"
                have = f"{len(row)} column{'s' if len(row) > 1 else ''}"
                cure = "separate source and target by a tab"
                raise UserError(f"{have} where {need} are needed", path=path, line=number, cure=cure)
            yield number, "", ""
        else:
            yield number, row[columns[0]], row[columns[1]]


def read_parallel(
    paths: Sequence[str | Path], languages: Sequence[str] | None = None, *, cut: bool = False
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the texts of each line of files whose lines belong together; with ``languages`` the files
    may be any that ``read_text`` reads; ``cut`` is that of ``read_lines``.

    Raises:
        UserError: As ``read_lines``, and if the files have unequal line counts.
    """
    if languages is None:
        sides = map(partial(read_lines, cut=cut), paths)
    else:
        sides = (read_text(path, language, cut=cut) for path, language in zip(paths, languages, strict=True))
    rows = itertools.zip_longest(*sides)
    for count, row in enumerate(rows):
        if None in row:
            shorter, longer = row.index(None), next(place for place, line in enumerate(row) if line is not None)
            counts = {shorter: count, longer: count + 1 + sum(rest[longer] is not None for rest in rows)}
            first, other = sorted(counts)
            problem = f"{counts[first]:,} lines, but {paths[other]} has {counts[other]:,}"
            raise UserError(problem, path=paths[first], line=count + 1, cure="align the files line by line")
        yield count + 1, tuple(text for _, text in row)


def read_csv(path: str | Path, width: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line and the fields of each row of a table whose fields are separated by commas.
    Raises UserError as ``read_lines``, and if a row has not ``width`` fields or a quote is not closed."""
    reader = csv.reader((f"{line}\n" for _, line in read_lines(path)), strict=True)
    try:
        for fields in reader:
            if len(fields) != width:
                problem = f"{len(fields)} columns, not {width}"
                raise UserError(problem, path=path, line=reader.line_num, cure="fetch the file again")
            yield reader.line_num, fields
    except csv.Error as error:
        raise UserError(str(error), path=path, line=reader.line_num, cure="fetch the file again") from None


def discover_bitext(directory: str | Path) -> dict[str, list[Bitext]]:
    """Find the parallel text in a folder by file names and return ``{"train": [...], "valid": [...], "test": [...]}``.

    Splits without text are left out. ``val``, ``dev`` and ``validation`` mean valid. These names are recognised, each
    also with ``.gz``, ``.bz2``, ``.xz`` or ``.zst``:

    - ``{split}.{xx}-{yy}.{xx}`` beside ``{split}.{xx}-{yy}.{yy}``;
    - ``{split}.{xx}`` beside ``{split}.en``: every language is paired with English (without English there must be
      exactly two languages);
    - ``{split}.{xx}-{yy}.tsv``;
    - any other ``*{xx}-{yy}*.tsv``, which is training text unless a word in its name is a split; and the same with
      ``.jsonl``, ``.csv``, ``.parquet``, ``.tmx``, ``.xlf``, ``.xliff`` or ``.zip``, where languages tell the sides.

    Raises:
        UserError: If there is no training text (the message names the layouts), or a side is missing or there twice.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UserError("no such folder", path=directory, cure="check the name")
    splits: dict[str, list[Bitext]] = {split: [] for split in ("train", "valid", "test")}
    sides: dict[tuple[str, tuple[str, str] | None], dict[str, str]] = {}
    for file in sorted(directory.iterdir()):
        parts = plain_name(file).split(".")
        if file.name.startswith(".") or not file.is_file() or len(parts) < 2:
            continue
        languages = _pair_of(parts[:-1])
        if languages and (parts[-1] == "tsv" or _has_records(plain_name(file))):
            columns = (0, 1) if parts[-1] == "tsv" else None
            splits[split_in(file.name) or "train"].append(_english_last(Bitext(languages, (str(file),), columns)))
        elif parts[0] in SPLITS and len(parts) == (3 if languages else 2) and _is_language(parts[-1]):
            files = sides.setdefault((SPLITS[parts[0]], languages), {})
            language = canonical(parts[-1])
            if language in files:
                problem = f"a second {language} side beside {files[language]}"
                raise UserError(problem, path=file, cure="remove one of the two")
            files[language] = str(file)
    for (split, languages), files in sides.items():
        splits[split] += _pair_sides(directory, split, languages, files)
    if not splits["train"]:
        raise UserError("no parallel training text found", path=directory, cure=_LAYOUTS)
    return {split: bitexts for split, bitexts in splits.items() if bitexts}


def _pair_of(parts: list[str]) -> tuple[str, str] | None:
    """Return the language pair in the first part that names two languages (``dev-de`` names a split and a language)."""
    for pair in filter(None, map(_PAIR.fullmatch, parts)):
        languages = canonical(pair[1]), canonical(pair[2])
        if languages[0] != languages[1] and pair[1] not in SPLITS:
            return languages
    return None


def _is_language(code: str) -> bool:
    return re.fullmatch(LANGUAGE_CODE, code) is not None and code.lower() not in _NO_LANGUAGE


def split_in(name: str) -> str | None:
    """Return the split that a file name contains (``news_test2016.de-en.tsv``: test), or None."""
    return next((SPLITS[word] for word in re.findall(r"[a-z]+", name.lower()) if word in SPLITS), None)


def _pair_sides(directory: Path, split: str, languages: tuple[str, str] | None, files: dict[str, str]) -> list[Bitext]:
    """Pair the sides of one split: as their names say, every language with English, or the only two languages."""
    if languages is None and "en" in files and len(files) > 1:
        return [Bitext((other, "en"), (files[other], files["en"])) for other in files if other != "en"]
    wanted = languages or tuple(files)
    if set(files) != set(wanted) or len(wanted) != 2:
        raise UserError(f"{split} has {', '.join(sorted(files))}, which makes no pairs", path=directory, cure=_LAYOUTS)
    return [_english_last(Bitext((wanted[0], wanted[1]), (files[wanted[0]], files[wanted[1]])))]


@dataclass(frozen=True)
class TextFile:
    """A file of sentences in one language, one sentence per line; a blank line ends a document."""

    language: str
    path: Path


def find_text(data: str | Path) -> dict[str, list[TextFile]]:
    """Find the text files by split: ``{"train": [...], "valid": [...]}``, without ``valid`` if there is none.

    Args:
        data: Either ``de=FILE,en=FILE``, all of it training text, where a language may occur more than once; or a
            folder. In a folder, the last part of a file's name must be a language (``news.2012.de``, ``de.txt``,
            ``train.de.gz``). A file is training text unless its name contains another split. Other files, and those of
            the split test, are ignored.

    Raises:
        UserError: If ``data`` has another form, or the folder does not exist or has no training text.
    """
    specs = [_TEXT_SPEC.fullmatch(spec) for spec in re.split(rf",(?={LANGUAGE_CODE}=)", str(data))]
    if all(specs) and not Path(data).exists():
        files = [TextFile(canonical(spec[1]), Path(spec[2])) for spec in specs if spec]
        for file in files:
            if file.path.exists() and not file.path.is_file() and not file.path.is_dir():
                problem = "a pipe or device, but the text is read several times"
                raise UserError(problem, path=file.path, cure="copy it to a file")
        return {"train": files}
    folder = Path(data)
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure=f"check the name; {_TEXT_LAYOUTS}")
    splits: dict[str, list[TextFile]] = {"train": [], "valid": [], "test": []}
    for path in sorted(folder.iterdir()):
        name = plain_name(path)
        name = name.rpartition(".")[0] if format_of(path) or name.endswith((".txt", ".zip")) else name
        language = name.rpartition(".")[2]
        if path.is_file() and not name.startswith(".") and _is_language(language):
            splits[split_in(name) or "train"].append(TextFile(canonical(language), path))
    if not splits["train"]:
        raise UserError("no training text found", path=folder, cure=_TEXT_LAYOUTS)
    return {split: files for split, files in splits.items() if files and split != "test"}


def read_sentences(file: TextFile) -> Iterator[tuple[str, bool]]:
    """Yield each sentence, with single spaces, and whether it is the first of a document; raises as ``read_lines``, but
    for lines that are too long: the caller drops them (``is_too_long``)."""
    first = True
    for _, line in read_text(file.path, file.language, cut=True):
        if sentence := " ".join(line.split()):
            yield sentence, first
        first = not sentence
