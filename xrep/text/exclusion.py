"""Sentences of evaluation sets, which are left out of training text.

A file is read as training and evaluation read it, whatever published set it belongs to. Its layout is found out from
its name and its first lines.
"""

from __future__ import annotations

import html
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.registry import FORMATS
from xrep.text.cleaning import NO_KEY, HashSet, sentence_hashes
from xrep.text.examples import columns_of, read_rows
from xrep.text.find import TextFile
from xrep.text.lines import names_in_zip, read_bytes, read_latin1, read_lines
from xrep.text.records import ending_of, has_records, parse_json, plain_name, read_csv, read_records

_UNREAD = re.compile(
    r"[._].*|__MACOSX|(?:readme|licen[cs]e|copying|changelog|cc-by)\b.*|labels\.\w+|STS\.gs\..*|.*\.(?:md|html?|pdf|gold)",
    re.IGNORECASE,
)
"""Names of files and folders beside the text of an evaluation set: what describes it, its labels and its answers."""
_LATIN = re.compile(r"(?:rt-polarity|subj|custrev|mpqa|sentiment-|stsa|train_5500|TREC).*")
"""Names of files of SentEval that are published in latin-1."""
_LABELLED_LINE = re.compile(r"(?:[A-Z]{2,5}:\w+|[0-4]) +(\S.*)")
"""A line of TREC, such as ``NUM:dist How far is it``, or of SST, such as ``3 A good film``."""
_HEADER = frozenset("label gold_label sentence sentence1 text premise sent0 pair_ID Quality score".split())
_ENTAILMENT = frozenset(("entailment", "neutral", "contradiction", "contradictory"))
_FIRST_LINES, _WIDE = 1000, 3


class TextFormat(ABC):
    """A form in which text is published. Plugins register more of them, as the kind ``format``."""

    @staticmethod
    @abstractmethod
    def accepts(path: Path) -> bool:
        """Return whether a file has this form. This is asked of every file of lines, every table and every file of
        JSON."""

    @staticmethod
    @abstractmethod
    def texts(file: TextFile) -> Iterator[str]:
        """Yield the sentences of a file. Raises UserError if it is damaged."""


def load_exclusion(paths: Iterable[str | Path]) -> HashSet:
    """Return the hashes of the sentences of evaluation sets: files, and all files in folders and zip archives.

    - A line of text is a sentence; in a table (tabs, or a ``.csv``) each cell is one, but for columns of numbers,
      identifiers and labels. If the header names the texts, only these columns are read.
    - Of records (JSON lines, Parquet, TMX, XLIFF) all texts are sentences, such as the translations in
      ``{"translation": {"de": ..., "en": ...}}``, or those that the keys of labelled data name.
    - All strings of other JSON are sentences. A file in a registered ``TextFormat`` is read by its class, such as
      tagged words or questions in SQuAD's JSON.
    - Of XML and SGML the text between two tags is a sentence; of the Amazon reviews, each review.
    - Hidden files, ``__MACOSX``, and what describes a set (README, LICENSE, ...) are left out.

    Raises:
        UserError: A file cannot be read, a folder has no files, or no text could be read of one of the paths.
    """
    excluded = HashSet()
    for path in paths:
        texts = itertools.chain.from_iterable(map(_texts, _files_below(Path(path))))
        is_empty = True
        while len(hashes := sentence_hashes(itertools.islice(texts, 1 << 20))):
            is_empty = is_empty and bool((hashes == NO_KEY).all())
            excluded.add(hashes)
        if is_empty:
            cure = "name a file or folder with the sentences of an evaluation set"
            raise UserError("no text could be read from it, so it would exclude nothing", path=path, cure=cure)
    return excluded


def _files_below(path: Path) -> Iterator[Path]:
    """Yield the files of a path: itself, or those in a folder or zip archive, also of archives in folders."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        inside = [file for file in files if not _is_unread(file.relative_to(path))]
        if not inside:
            raise UserError("a folder without files", path=path, cure="name the folder of the evaluation set")
        yield from itertools.chain.from_iterable(map(_files_below, inside))
    elif path.suffix == ".zip":
        yield from (path / name for name in names_in_zip(path) if not _is_unread(Path(name)))
    else:
        yield path


def _is_unread(path: Path) -> bool:
    return any(map(_UNREAD.fullmatch, path.parts))


def _texts(path: Path) -> Iterator[str]:
    """Yield the sentences of a file."""
    ending, file = ending_of(path), TextFile("und", path)
    if ending == "review":
        yield from (text for example in read_rows(file) for text in example.sentences)
    elif ending in ("xml", "sgm", "sgml"):
        content = "\n".join(line for _, line in read_lines(path))
        yield from re.split(r"\s*\n\s*", html.unescape(re.sub(r"<[^>]*>", "\n", content)))
    elif has_records(path) and ending != "csv":
        for _, record in read_records(path):
            yield from _json_texts(record)
    elif own := _format_of(path):
        yield from own.texts(file)
    elif ending == "json":
        yield from _json_texts(parse_json(read_bytes(path), path))
    else:
        yield from _texts_of_lines(path)


def _format_of(path: Path) -> Any:
    return next((own for own in map(FORMATS.load, FORMATS.names()) if own.accepts(path)), None)


def _texts_of_lines(path: Path) -> Iterator[str]:
    """Yield the sentences of a file of lines or a table; its first lines show which it is."""
    first = list(itertools.islice(_lines(path), _FIRST_LINES))
    if ending_of(path) == "csv" and first and "\t" not in first[0]:  # the .csv of STS-B are separated by tabs
        yield from _table_texts(row for _, row in read_csv(path))
    elif all("\t" in line for line in first if line.strip()):
        yield from _table_texts(line.split("\t") for line in _lines(path) if line.strip())
    else:
        labelled = _LATIN.fullmatch(plain_name(path)) and all(map(_LABELLED_LINE.fullmatch, first))
        for line in _lines(path):
            match = _LABELLED_LINE.fullmatch(line) if labelled else None
            yield match[1] if match else line
            yield from line.split("\t") if "\t" in line else ()


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, of which those of SentEval may be in latin-1."""
    is_latin = _LATIN.fullmatch(plain_name(path))
    return (line for _, line in (read_latin1(path) if is_latin else read_lines(path, allow_empty=True)))


def _table_texts(rows: Iterator[list[str]]) -> Iterator[str]:
    """Yield the cells of those columns that hold text."""
    first = list(itertools.islice(rows, _FIRST_LINES))
    names = columns_of(first[0]) if first else None
    header = first.pop(0) if first and not _HEADER.isdisjoint(first[0]) else []
    width = max(map(len, first), default=0)
    columns = [column for column in range(width) if not _is_mark([r[column] for r in first if column < len(r)], width)]
    if names:
        columns = [header.index(name) for name in names[1:]]
    for row in itertools.chain(first, rows):
        yield from (row[column] for column in columns if column < len(row))


def _is_mark(cells: list[str], width: int = 1) -> bool:
    """Return whether the cells of a column are numbers, identifiers or labels: ASCII words that have a digit or are
    labels of inference data, or any in a table of many columns, such as the genres of STS-B."""
    words = [cell.strip() for cell in cells]
    are_words = all(word.isascii() and " " not in word for word in words)
    known = (any(map(str.isdigit, word)) or word.casefold() in _ENTAILMENT for word in words if word)
    return are_words and (width > _WIDE or all(known))


def _json_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of JSON: those that the keys of labelled data name, or all but marks."""
    if isinstance(value, dict):
        names = columns_of(value)
        for inner in [value[name] for name in names[1:]] if names else value.values():
            yield from _json_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _json_texts(inner)
    elif isinstance(value, str) and not _is_mark([value]):
        yield value
