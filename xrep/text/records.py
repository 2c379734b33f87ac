"""Files of records: JSON lines, CSV, Parquet and translation memories, read one record at a time (Parquet 1,024), and
the data sets of the library ``datasets``.

A record has values by the names of its fields; in a translation memory these are texts by language.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xrep.errors import UserError, abbreviated
from xrep.text.hf_datasets import is_dataset, read_dataset
from xrep.text.languages import canonical
from xrep.text.lines import COMPRESSED, MAXIMUM_CHARACTERS, check_packing, read_lines, unpacked
from xrep.text.tmx import read_memory

Record = dict[str, Any]
_code = functools.lru_cache(1024)(canonical)
_TEXT_FIELDS = ("text", "sentence")
_PARQUET_ROWS, _PARQUET = 1024, "pip install 'xrep[parquet]'"
_DATASET_FIELD = re.compile(r"(hf:[^:]+:[^:\[]+(?:\[[^\]]*\])?):([^:]+)")
_OTHERS = ("json", "xml", "xls", "xlsx", "ods")
"""Endings of further files that have no lines of text."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def plain_name(path: str | Path) -> str:
    """Return the name of a file without the ending of a compressed one."""
    name = Path(path).name
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def ending_of(path: str | Path) -> str:
    """Return what the plain name of a file has after its last dot, in lower case; of a data set ``hf:``."""
    if is_dataset(path):
        return "hf:"
    return plain_name(path).rpartition(".")[2].lower()


def has_records(path: str | Path) -> bool:
    """Return whether the ending of a file's name is one of ``READERS``; otherwise it has lines of text."""
    return ending_of(path) in READERS


def check_format(output: str | Path, written: Sequence[str], usual: str = "tsv") -> None:
    """Raise a UserError if the name of a file to write says that it has other records than those ``written``, or that
    it needs a package that is missing. ``usual`` is the ending of one that has no records."""
    check_packing(output)
    if ending_of(output) in {*READERS, *_OTHERS} - {*written}:
        cure = "write one of " + ", ".join(f".{ending}" for ending in (usual, *written))
        raise UserError("this format is not written", path=output, cure=cure)
    if ending_of(output) == "parquet":
        if (name := plain_name(output)) != Path(output).name:
            raise UserError("a file of Parquet is compressed already", path=output, cure=f"name it {name}")
        if importlib.util.find_spec("pyarrow") is None:
            raise UserError("a file of Parquet", path=output, cure=_PARQUET)


def read_records(path: str | Path) -> Iterator[tuple[int, Record]]:
    """Yield the number and the values of each record. The number is that of its line or, in Parquet and memories, of
    the row or unit. Raises UserError as ``read_lines``, and if the file is not of the format that its name says."""
    return READERS[ending_of(path)](path)


def cells(path: Path, number: int, columns: list[str], least: int) -> list[str]:
    """Return the columns of a line, of which there must be at least ``least``."""
    if len(columns) < least:
        problem = f"{len(columns)} columns where {least} are needed"
        raise UserError(problem, path=path, line=number, cure="separate the columns by tabs")
    return columns


def parse_json(text: str | bytes, path: str | Path, line: int | None = None) -> Any:
    """Return what JSON says. A question mark takes the place of half a surrogate pair, which is in no text."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text)
        if _SURROGATE.search(text):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        problem = f"not JSON ({abbreviated(str(error))})"
        raise UserError(problem, path=path, line=line, cure="fetch the file again, or export it again") from None
    return value


def _read_jsonl(path: str | Path) -> Iterator[tuple[int, Record]]:
    for number, line in read_lines(path):
        if line.strip():
            values = parse_json(line, path, number)
            if not isinstance(values, dict):
                raise UserError("not an object of JSON", path=path, line=number, cure="write one object on a line")
            yield number, _flat(values)


def _flat(values: Record) -> Record:
    """Return the fields of a record, together with those of ``translation``, as Hugging Face's data sets have pairs."""
    inner = values.get("translation")
    return {**values, **inner} if isinstance(inner, dict) else values


def read_csv(path: str | Path, separator: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line and the cells of each row of CSV. Raises UserError as ``read_lines``, and if a
    quote is not closed.

    Args:
        separator: What separates the cells. None: a semicolon if the first line has more of them than commas.
    """
    lines = (line for _, line in read_lines(path))
    first = next(lines)
    separator = separator or (";" if first.count(";") > first.count(",") else ",")
    every = (f"{line}\n" for line in itertools.chain([first], lines))
    csv.field_size_limit(10 * MAXIMUM_CHARACTERS)  # which cleaning leaves out, but an open quote is found
    rows = csv.reader(every, delimiter=separator, strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows if row)
    except csv.Error as error:
        cure = "export it again, with quotes around texts that contain the separator"
        raise UserError(f"not CSV ({error})", path=path, line=rows.line_num, cure=cure) from None


def _read_csv(path: str | Path) -> Iterator[tuple[int, Record]]:
    rows = read_csv(path)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    for number, row in rows:
        if len(row) != len(header):
            problem = f"{len(row)} columns, but the first line names {len(header)}"
            raise UserError(problem, path=path, line=number, cure="quote texts that contain the separator")
        yield number, dict(zip(header, row, strict=True))


def _read_parquet(path: str | Path) -> Iterator[tuple[int, Record]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError("a file of Parquet", path=path, cure=_PARQUET) from None
    with unpacked(path) as stream:
        try:
            batches = parquet.ParquetFile(stream).iter_batches(_PARQUET_ROWS)
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from ((number, _flat(row)) for number, row in enumerate(rows, 1))
        except (pyarrow.ArrowException, ValueError):
            problem, cure = "not a file of Parquet, or a damaged one", "fetch it again"
            raise UserError(problem, path=path, cure=cure) from None


READERS: dict[str, Callable[[str | Path], Iterator[tuple[int, Record]]]] = {
    "jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet,
    "hf:": lambda path: ((number, _flat(row)) for number, row in read_dataset(str(path), _read_parquet)),
    **dict.fromkeys(("tmx", "xlf", "xliff"), read_memory),
}  # fmt: skip
"""What reads a file of records, by the ending of its name."""


def field_of(record: Record, wanted: str, path: str | Path, number: int) -> str:
    """Return the text of a field of a record, by its name (``translation.de``: the field of an inner record) or the
    code of its language; an empty one of a null, also of the inner record, or of a memory that lacks the translation.

    Raises:
        UserError: The record has no such field.
    """
    if isinstance(text := record.get(wanted, False), str | None):
        return text or ""
    outer, _, inner = wanted.partition(".")
    if inner and isinstance(record.get(outer), dict):
        return field_of(record[outer], inner, path, number)
    code = _code(wanted)
    for name, text in record.items():
        if isinstance(text, str | None) and code in (_code(name), _code(name).partition("-")[0]):
            return text or ""
    if READERS[ending_of(path)] is read_memory or None in (record.get(outer, ""), record.get("translation", "")):
        return ""
    problem = f"no text {wanted!r} in it; there are {abbreviated(', '.join(texts_of(record))) or 'none'}"
    raise UserError(problem, path=path, line=number, cure="name the fields: FILE:FIELD, or for pairs FILE:FIELD,FIELD")


def texts_of(record: Record) -> dict[str, str]:
    """Return those values of a record that are texts."""
    return {name: text for name, text in record.items() if isinstance(text, str)}


def read_field(path: str | Path, field: str | None, lang: str | None) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of a field of each record.

    Args:
        field: Its name. None: ``text`` or ``sentence``, that of the language, or the only one.

    Raises:
        UserError: As ``read_records``, and if there is no such field, none of several can be chosen, or no unit of a
            memory has the language, which is known at its end.
    """
    number, is_there, record, chosen = 0, False, Record(), field
    for number, record in read_records(path):
        chosen = field or next((name for name in _TEXT_FIELDS if name in record), lang)
        if chosen is None:
            chosen, *others = texts_of(record) or [None]
            if chosen is None or others:
                problem = f"which text is meant? There are {abbreviated(', '.join(texts_of(record))) or 'none'}"
                raise UserError(problem, path=path, line=number, cure="name it: FILE:FIELD")
        text = field_of(record, chosen, path, number)
        is_there |= bool(text)
        yield number, text
    if number and not is_there:
        refuse_absent(chosen, record, path)
    if not number:
        raise UserError("no records in it", path=path, cure="give a file with text")


def refuse_absent(name: str | None, record: Record, path: str | Path) -> None:
    """Raise a UserError if a file in which no text of this name was found is a memory; ``record`` is its last unit."""
    if READERS[ending_of(path)] is read_memory:
        problem = f"no text {name!r} in it; there are {abbreviated(', '.join(record)) or 'none'}"
        raise UserError(problem, path=path, cure="name another language, or the field: FILE:FIELD")


def split_field(path: str | Path) -> tuple[str | Path, str | None]:
    """Return the file and the field of ``FILE:FIELD``; the field is None if there is none."""
    if is_dataset(path):
        match = _DATASET_FIELD.fullmatch(str(path))
        return (match[1], match[2]) if match else (path, None)
    file, colon, field = str(path).rpartition(":")
    if colon and field and not Path(path).exists() and (has_records(file) or file.endswith(".zip")):
        return file, field
    return path, None
