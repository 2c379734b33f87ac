"""Sentences of evaluation sets, which are left out of training text.

A file is read as training and evaluation read it, whatever published set it belongs to. Its layout is found out from
its name and its first lines.
"""

from __future__ import annotations

import csv
import html
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile
from xrep.text.cleaning import NO_KEY, HashSet, sentence_hashes
from xrep.text.labelled_readers import columns_of, read_rows
from xrep.text.lines import Unpacked, open_zip, read_latin1, read_lines
from xrep.text.question_readers import is_questions, read_questions
from xrep.text.records import format_of, plain_name, read_records
from xrep.text.tagged_readers import read_tagged

_UNREAD = re.compile(
    r"[._].*|__MACOSX|(?:readme|licen[cs]e|copying|changelog|cc-by)\b.*|labels\.\w+|STS\.gs\..*|.*\.(?:md|html?|pdf|gold)",
    re.IGNORECASE,
)
"""Names of files and folders beside the text of an evaluation set: what describes it, its labels and its answers."""
_LATIN = re.compile(r"(?:rt-polarity|subj|custrev|mpqa|sentiment-|stsa|train_5500|TREC).*")
"""Names of files of SentEval that are published in latin-1."""
_UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
_TAG = re.compile(rf"O|[BIESLU]-\S+|{'|'.join(_UPOS)}")
_LABELLED_LINE = re.compile(r"(?:[A-Z]{2,5}:\w+|[0-4]) +(\S.*)")
"""A line of TREC, such as ``NUM:dist How far is it``, or of SST, such as ``3 A good film``."""
_HEADER = frozenset("label gold_label sentence sentence1 text premise sent0 pair_ID Quality score".split())
_ENTAILMENT = frozenset(("entailment", "neutral", "contradiction", "contradictory"))
_FIRST_LINES, _WIDE = 1000, 3


def load_exclusion(paths: Iterable[str | Path]) -> HashSet:
    """Return the hashes of the sentences of evaluation sets: files, and all files in folders and zip archives.

    - A line of text is a sentence; in a table (tabs, or a ``.csv``) each cell is one, but for columns of numbers,
      identifiers and labels. If the header names the texts, only these columns are read.
    - Of records (JSON lines, Parquet, TMX, XLIFF) all texts are sentences, such as the translations in
      ``{"translation": {"de": ..., "en": ...}}``, or those that the keys of labelled data name.
    - Of SQuAD's JSON questions and contexts are read, of other JSON all strings.
    - The words of a tagged sentence (CoNLL-U, or lines of a word and its tag) are joined by spaces.
    - Of XML and SGML the text between two tags is a sentence; of the Amazon reviews, each review.
    - Hidden files, ``__MACOSX``, and what describes a set (README, LICENSE, ...) are left out.

    Raises:
        UserError: A file cannot be read, a folder has no files, or no text could be read of one of the paths.
    """
    excluded = HashSet()
    for path in paths:
        texts = itertools.chain.from_iterable(map(_texts, _files_below(Path(path))))
        is_empty = True
        while len(hashes := sentence_hashes(itertools.islice(texts, 1 << 16))):
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
        with open_zip(path) as opened:
            names = [info.filename for info in opened.infolist() if not info.is_dir()]
        yield from (path / name for name in names if not _is_unread(Path(name)))
    else:
        yield path


def _is_unread(path: Path) -> bool:
    return any(map(_UNREAD.fullmatch, path.parts))


def _texts(path: Path) -> Iterator[str]:
    """Yield the sentences of a file."""
    name, ending = plain_name(path), plain_name(path).rpartition(".")[2].lower()
    file = AnnotatedFile(path, None, "und")
    if ending == "json":
        if is_questions(path):
            for question in read_questions(file):
                yield from question.texts
        else:
            yield from _json_texts(_content(path), path, 1)
    elif ending == "jsonl":
        for number, line in read_lines(path, allow_empty=True, most_words=None):
            yield from _json_texts(line, path, number) if line.strip() else ()
    elif ending == "review":
        yield from (text for _, texts, _, _ in read_rows(path) for text in texts)
    elif ending in ("xml", "sgm", "sgml"):
        yield from re.split(r"\s*\n\s*", html.unescape(re.sub(r"<[^>]*>", "\n", _content(path))))
    elif format_of(path) not in (None, "csv"):
        yield from (text for _, record in read_records(path, cut=True) for text in record.values())
    else:
        first = list(itertools.islice(_lines(path), _FIRST_LINES))
        if ending == "conllu" or _is_tagged(first):
            yield from (sentence.text for sentence in read_tagged(file))
        elif ending == "csv" and first and "\t" not in first[0]:  # the .csv of STS-B are separated by tabs
            yield from _table_texts(_csv_rows(path, first[0]))
        elif all("\t" in line for line in first if line.strip()):
            yield from _table_texts(line.split("\t") for line in _lines(path) if line.strip())
        else:
            labelled = _LATIN.fullmatch(name) and all(map(_LABELLED_LINE.fullmatch, first))
            for line in _lines(path):
                match = _LABELLED_LINE.fullmatch(line) if labelled else None
                yield match[1] if match else line
                yield from line.split("\t") if "\t" in line else ()


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, of which those of SentEval may be in latin-1."""
    read = read_latin1 if _LATIN.fullmatch(plain_name(path)) else read_lines
    return (line for _, line in read(path, allow_empty=True, cut=True))


def _bytes(path: Path) -> bytes:
    with Unpacked(path) as stream:
        return stream.read(-1, 1)


def _content(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        cure = "convert the file, for example: iconv -f latin1 -t utf-8"
        raise UserError("invalid UTF-8", path=path, cure=cure) from None


def _is_tagged(lines: list[str]) -> bool:
    """Return whether lines are words with their tags: the tags are known, or no word and no tag has a space and there
    are blank lines between sentences."""
    rows = [line.split("\t") if "\t" in line else line.rsplit(" ", 1) for line in lines if line.strip()]
    if not rows or min(map(len, rows)) < 2:
        return False
    are_words = not any(" " in line or "\t" not in line for line in lines if line.strip())
    return all(_TAG.fullmatch(row[-1].strip()) for row in rows) or are_words and not all(map(str.strip, lines[:-1]))


def _csv_rows(path: Path, first: str) -> Iterator[list[str]]:
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader((f"{line}\n" for line in _lines(path)), delimiter=delimiter, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        cure = "quote texts that contain the separator, or give it another ending than .csv"
        raise UserError(f"not CSV ({error})", path=path, line=reader.line_num, cure=cure) from None


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


def _json_texts(content: str, path: Path, number: int) -> Iterator[str]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError("not JSON", path=path, line=number, cure="write one object on a line of a .jsonl") from None
    names = columns_of(values) if isinstance(values, dict) else None
    for text in _strings([values[name] for name in names[1:]] if names else values):
        if not _is_mark([text]):
            yield text.encode("utf-8", "replace").decode()  # half of a surrogate pair is in no training text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
