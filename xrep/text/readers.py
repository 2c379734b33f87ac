"""Readers of raw text: lines of a file, text of one language, parallel text, and the text in a folder.

A pair of languages is (source, target). If one of them is English, it is the target (``de-en``), whichever was named
first.
"""

from __future__ import annotations

import gzip
import itertools
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path

from xrep.errors import UserError
from xrep.files import is_stream
from xrep.text.languages import canonical, count_english_words

MAXIMUM_WORDS = 10_000
MAXIMUM_CHARACTERS = 1_000_000
_MAXIMUM_BYTES = 4 * MAXIMUM_CHARACTERS
LANGUAGE_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Z][a-z]{3})?"
"""Pattern of a language code in file names: de, deu, zh-Hans."""
_PAIR = re.compile(rf"({LANGUAGE_CODE})-({LANGUAGE_CODE})")
_SPEC = re.compile(rf"{_PAIR.pattern}=(.+?)(?:@([0-9]{{1,15}}))?")
_COLUMNS = re.compile(r"(.+):([0-9]{1,6}),([0-9]{1,6})")
_SPEC_CURE = "write de-en=FILE.tsv, de-en=FILE.tsv:2,1 (columns of de and en) or de-en=FILE.de,FILE.en"
SPLITS = {"train": "train", **dict.fromkeys(("valid", "val", "dev", "validation"), "valid"), "test": "test"}
"""The words in file names that mean a split."""
_NO_LANGUAGE = frozenset(
    "bak bin bpe bz2 csv gz idx log md npy out png py sgm sh spm src tgt tmp tsv txt xml xz zip".split()
)
_TEXT_SPEC = re.compile(rf"({LANGUAGE_CODE})=(.+)")
_TEXT_LAYOUTS = (
    "expected news.de, train.de or de.txt (each also .gz or .xz; valid.* likewise), or de=FILE,en=FILE instead"
)
_LAYOUTS = (
    "expected train.de-en.de + train.de-en.en, or train.de + train.en, or train.de-en.tsv, or deu-eng.tsv "
    "(each also .gz or .xz; valid.* and test.* likewise)"
)
_Stream = BufferedReader | gzip.GzipFile | lzma.LZMAFile


@dataclass(frozen=True)
class Bitext:
    """Parallel text of one language pair: two line-aligned files, or two columns of one TSV file.

    Attributes:
        languages: (source, target) as canonical codes.
        paths: Source file and target file, or one TSV file.
        columns: TSV columns of source and target, counted from 0; None for two files.
        columns_given: Whether the user named the columns, so that ``orient`` does not change them.
        sample: Largest number of pairs to keep; None leaves it to the cleaning options.
    """

    languages: tuple[str, str]
    paths: tuple[str, ...]
    columns: tuple[int, int] | None = None
    columns_given: bool = False
    sample: int | None = None

    @property
    def name(self) -> str:
        """The language pair, ``de-en``."""
        return "-".join(self.languages)


def read_lines(
    path: str | Path, *, allow_empty: bool = False, most_words: int | None = MAXIMUM_WORDS
) -> Iterator[tuple[int, str]]:
    r"""Yield the number (from 1) and the text of each line of a UTF-8 file, without its line ending.

    Gzip and xz are recognised by their content, and a byte order mark is dropped. Only ``\n`` and ``\r\n`` end a line.
    Memory does not grow with the size of the file.

    Args:
        allow_empty: Accept a file without lines.
        most_words: Largest number of words in a line; None for readers that shorten lines themselves.

    Raises:
        UserError: If the file is missing, a folder, empty (unless ``allow_empty``), damaged or invalid UTF-8, or a line
            has more than ``most_words`` words or 1,000,000 characters. The message names file and line.
    """
    number = 0
    with _open(path) as file:
        stream = _unpacked(file)
        while line := _next_line(stream, path, number + 1):
            number += 1
            yield number, _decode(line, path, number, most_words)
    if number == 0 and not allow_empty:
        raise UserError("the file is empty", path=path, cure="give a file with text")


def _open(path: str | Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("no such file", path=path, cure="check the name") from None
    except IsADirectoryError:
        raise UserError("a folder, not a file", path=path, cure="name a file in it") from None


def _unpacked(file: BufferedReader) -> _Stream:
    """Return a stream of the decompressed content of ``file``; closing a decompressing stream leaves ``file`` open."""
    magic = file.peek(6)[:6]
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file) if magic == b"\xfd7zXZ\x00" else file


def _next_line(stream: _Stream, path: str | Path, number: int) -> bytes:
    try:
        line = stream.readline(_MAXIMUM_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError):
        kind = "gzip" if isinstance(stream, gzip.GzipFile) else "xz"
        raise UserError(f"damaged or truncated {kind} file", path=path, line=number, cure="fetch it again") from None
    if len(line) > _MAXIMUM_BYTES:
        raise _too_long(f"more than {MAXIMUM_CHARACTERS:,} characters", path, number)
    return line


def _decode(line: bytes, path: str | Path, number: int, most_words: int | None) -> str:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        problem = f"invalid UTF-8 (byte {error.start + 1} of the line)"
        cure = "convert the file, for example: iconv -f latin1 -t utf-8"
        raise UserError(problem, path=path, line=number, cure=cure) from None
    text = text.removesuffix("\n").removesuffix("\r")
    if len(text) > MAXIMUM_CHARACTERS:
        raise _too_long(f"{len(text):,} characters", path, number)
    if most_words is not None and len(text) > 2 * most_words and (words := len(text.split())) > most_words:
        raise _too_long(f"{words:,} words", path, number)
    return text


def _too_long(size: str, path: str | Path, number: int) -> UserError:
    cure = "put one sentence on a line, or remove the line"
    return UserError(f"a line of {size}, too long for a sentence", path=path, line=number, cure=cure)


def parse_bitext(spec: str) -> Bitext:
    """Parse the command line's notation for parallel text. No file is opened.

    The forms are ``de-en=deu-eng.tsv``, ``de-en=x.tsv:2,1`` (columns of de and en, counted from 1) and
    ``fr-en=train.fr,train.en``; ``@N`` after the files samples N of their pairs. If English is named first, the sides
    are swapped. Raises UserError if the text has another form, or names the same language twice.

    >>> parse_bitext("en-de=x.tsv:1,2")
    Bitext(languages=('de', 'en'), paths=('x.tsv',), columns=(1, 0), columns_given=True, sample=None)
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
    paths = tuple(match[3].split(","))
    if len(paths) > 2 or not all(paths):
        raise UserError(f"{spec!r} names {len(paths)} files", cure=_SPEC_CURE)
    return _english_last(Bitext(languages, paths, (0, 1) if len(paths) == 1 else None, sample=sample))


def _english_last(bitext: Bitext) -> Bitext:
    if bitext.languages[0] != "en":
        return bitext
    return _swap_columns(replace(bitext, languages=bitext.languages[::-1], paths=bitext.paths[::-1]))


def _swap_columns(bitext: Bitext) -> Bitext:
    return replace(bitext, columns=bitext.columns and (bitext.columns[1], bitext.columns[0]))


def orient(bitext: Bitext) -> tuple[Bitext, str | None]:
    """Swap the columns of a TSV file if they are in the opposite order to the languages in its name.

    ``deu-eng.tsv`` of manythings.org, for example, has English first. The columns are swapped only if one language is
    English and the first 1,000 rows show clearly that it is in the other column. Columns given by the user are kept.

    Raises:
        UserError: As ``read_pairs``, and if the file is a pipe or device, which cannot be read again.

    Returns:
        The bitext to read, and one line of text for the user if the columns were swapped (else None).
    """
    if bitext.columns is None or bitext.columns_given or bitext.languages[1] != "en":
        return bitext, None
    if is_stream(bitext.paths[0]):
        problem = "its columns cannot be recognised, because a pipe or device is read only once"
        raise UserError(problem, path=bitext.paths[0], cure="name the columns (FILE:2,1), or copy it to a file")
    rows = list(itertools.islice(read_pairs(bitext), 1000))
    in_source, words = count_english_words(source for _, source, _ in rows)
    in_target, others = count_english_words(target for _, _, target in rows)
    share = in_source / max(1, words)
    if in_source < 3 or share < 0.02 or share < 4 * in_target / max(1, others):
        return bitext, None
    english, other = bitext.columns[0] + 1, bitext.columns[1] + 1
    note = f"{bitext.paths[0]}: column {english} is English, so column {other} is read as {bitext.languages[0]}"
    return _swap_columns(bitext), note


def read_pairs(bitext: Bitext) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line number, source, target)`` of each pair, as written; a blank line of a TSV file gives empty sides.

    Raises:
        UserError: As ``read_lines``, and if a TSV row has too few columns or two files have unequal line counts.
    """
    if bitext.columns is None:
        for number, (source, target) in read_parallel(bitext.paths):
            yield number, source, target
        return
    path, columns = bitext.paths[0], bitext.columns
    width = max(columns) + 1
    for number, line in read_lines(path):
        row = line.split("\t")
        if len(row) < width:
            if line.strip():
                need = "two columns" if width == 2 else f"{width} columns"
                have = f"{len(row)} column{'s' if len(row) > 1 else ''}"
                cure = "separate source and target by a tab"
                raise UserError(f"{have} where {need} are needed", path=path, line=number, cure=cure)
            yield number, "", ""
        else:
            yield number, row[columns[0]], row[columns[1]]


def read_parallel(paths: Sequence[str | Path]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the texts of each line of files whose lines belong together.

    Raises:
        UserError: As ``read_lines``, and if the files have unequal line counts.
    """
    rows = itertools.zip_longest(*map(read_lines, paths))
    for count, row in enumerate(rows):
        if None in row:
            shorter, longer = row.index(None), next(place for place, line in enumerate(row) if line is not None)
            counts = {shorter: count, longer: count + 1 + sum(rest[longer] is not None for rest in rows)}
            first, other = sorted(counts)
            problem = f"{counts[first]:,} lines, but {paths[other]} has {counts[other]:,}"
            raise UserError(problem, path=paths[first], line=count + 1, cure="align the files line by line")
        yield count + 1, tuple(text for _, text in row)


def discover_bitext(directory: str | Path) -> dict[str, list[Bitext]]:
    """Find the parallel text in a folder by file names and return ``{"train": [...], "valid": [...], "test": [...]}``.

    Splits without text are left out. ``val``, ``dev`` and ``validation`` mean valid. These names are recognised, each
    also with ``.gz`` or ``.xz``:

    - ``{split}.{xx}-{yy}.{xx}`` beside ``{split}.{xx}-{yy}.{yy}``;
    - ``{split}.{xx}`` beside ``{split}.en``: every language is paired with English (without English there must be
      exactly two languages);
    - ``{split}.{xx}-{yy}.tsv``;
    - any other ``*{xx}-{yy}*.tsv``, which is training text unless a word in its name is a split.

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
        if parts[-1] == "tsv" and languages:
            splits[split_in(file.name) or "train"].append(_english_last(Bitext(languages, (str(file),), (0, 1))))
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


def plain_name(path: Path) -> str:
    """Return the name of a file without the ending of a compressed one."""
    return path.name.removesuffix(".gz").removesuffix(".xz")


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
        name = plain_name(path).removesuffix(".txt")
        language = name.rpartition(".")[2]
        if path.is_file() and not name.startswith(".") and _is_language(language):
            splits[split_in(name) or "train"].append(TextFile(canonical(language), path))
    if not splits["train"]:
        raise UserError("no training text found", path=folder, cure=_TEXT_LAYOUTS)
    return {split: files for split, files in splits.items() if files and split != "test"}


def read_sentences(file: TextFile) -> Iterator[tuple[str, bool]]:
    """Yield each sentence, with single spaces, and whether it is the first of a document; raises as ``read_lines``."""
    first = True
    for _, line in read_lines(file.path):
        if sentence := " ".join(line.split()):
            yield sentence, first
        first = not sentence
