"""Sentences in files of records: JSON lines, CSV, Parquet, translation memories (TMX, XLIFF), and zip archives of text.

A record has texts by the names of its fields; in a translation memory these are languages. Records are read one at a
time, and Parquet some at a time.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from xrep.errors import UserError, shortened
from xrep.store.addresses import is_local
from xrep.store.contents import opened
from xrep.text.languages import canonical
from xrep.text.lines import COMPRESSED, MAXIMUM_WORDS, check_length, open_zip, read_lines
from xrep.text.memories import read_memory

Record = dict[str, str]
_code = functools.lru_cache(1024)(canonical)
FORMATS = ("jsonl", "csv", "parquet", "tmx", "xlf", "xliff")
"""Endings of the names of files of records."""
_TEXT_FIELDS = ("text", "sentence")
_PARQUET_ROWS = 1024
_PARQUET_BYTES = 1 << 30
_MOST_MEMBERS = 100_000


def plain_name(path: str | Path) -> str:
    """Return the name of a file without the ending of a compressed one."""
    name = Path(path).name
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def format_of(path: str | Path) -> str | None:
    """Return the format of a file of records, which the ending of its name says; None for lines of text."""
    ending = plain_name(path).rpartition(".")[2].lower()
    return ending if ending in FORMATS else None


def read_records(path: str | Path, *, cut: bool = False) -> Iterator[tuple[int, Record]]:
    """Yield the number (of the line where it begins or, in Parquet, of the row) and the texts of each record. Raises
    UserError as ``read_lines``, and if the file is not of the format that its name says. With ``cut``, texts may have
    any number of words."""
    readers: dict[str, Callable[[str | Path], Iterator[tuple[int, Record]]]] = {
        "jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet,
    }  # fmt: skip
    for number, record in readers.get(format_of(path) or "", read_memory)(path):
        for text in record.values():
            check_length(text, path, number, None if cut else MAXIMUM_WORDS)
            if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                raise UserError("half of a surrogate pair", path=path, line=number, cure="fetch the file again")
        yield number, record


def _read_jsonl(path: str | Path) -> Iterator[tuple[int, Record]]:
    for number, line in read_lines(path, most_words=None):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise UserError("not an object of JSON", path=path, line=number, cure="write one object on a line")
        inner = values.get("translation")  # as Hugging Face's data sets have pairs
        fields = {**values, **(inner if isinstance(inner, dict) else {})}
        yield number, {name: text for name, text in fields.items() if isinstance(text, str)}


def _read_csv(path: str | Path) -> Iterator[tuple[int, Record]]:
    numbered = read_lines(path, most_words=None)
    number, first = next(numbered)
    delimiter = ";" if first.count(";") > first.count(",") else ","

    def every() -> Iterator[str]:
        nonlocal number
        yield f"{first}\n"
        for number, line in numbered:  # noqa: B007 (the number of the last line that was read)
            yield f"{line}\n"

    rows, header = csv.reader(every(), delimiter=delimiter, strict=True), list[str]()
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"not CSV ({error})", path=path, line=number, cure="export it again") from None
        if row is None:
            return
        if not header:
            header = [name.strip() for name in row]
        elif row and len(row) != len(header):
            problem = f"{len(row)} columns, but the first line names {len(header)}"
            raise UserError(problem, path=path, line=number, cure="quote texts that contain the separator")
        elif row:
            yield number, dict(zip(header, row, strict=True))


def _read_parquet(path: str | Path) -> Iterator[tuple[int, Record]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError("a file of Parquet", path=path, cure="pip install 'xrep[parquet]'") from None
    if is_local(path) and not Path(path).is_file():
        what = "not a regular file" if Path(path).exists() else "no such file"
        raise UserError(what, path=path, cure="give a file of Parquet that is not in an archive")
    number = 0
    try:
        with parquet.ParquetFile(Path(path) if is_local(path) else opened(path)) as file:
            names = [field.name for field in file.schema_arrow if pyarrow.types.is_string(field.type)]
            names += [field.name for field in file.schema_arrow if pyarrow.types.is_large_string(field.type)]
            groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
            if any(group.total_byte_size > _PARQUET_BYTES for group in groups):
                raise UserError("a group of rows over 1 GB", path=path, cure="write it with smaller row groups")
            for batch in file.iter_batches(_PARQUET_ROWS, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: text for name, text in row.items() if text is not None}
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError("not a file of Parquet, or a damaged one", path=path, cure="fetch it again") from None


def field_of(record: Record, wanted: str, languages: bool, path: str | Path, number: int) -> str:
    """Return the text of a field of a record, by its name or the code of its language.

    Args:
        languages: Whether a field may be missing, as in a memory that lacks a translation: its text is empty then.

    Raises:
        UserError: The record has no such field.
    """
    if wanted in record:
        return record[wanted]
    code = _code(wanted)
    for name, text in record.items():
        if code in (_code(name), _code(name).partition("-")[0]):
            return text
    if languages:
        return ""
    problem = f"no text {wanted!r} in it; there are {shortened(', '.join(record)) or 'none'}"
    raise UserError(problem, path=path, line=number, cure="name the fields: FILE:FIELD, or for pairs FILE:FIELD,FIELD")


def read_field(
    path: str | Path, field: str | None, lang: str | None, *, cut: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of a field of each record.

    Args:
        field: Its name. None: ``text`` or ``sentence``, that of the language, or the only one.
        cut: As in ``read_records``.

    Raises:
        UserError: As ``read_records``, and if there is no such field, or none of several can be chosen.
    """
    memory, empty = format_of(path) in ("tmx", "xlf", "xliff"), True
    for number, record in read_records(path, cut=cut):
        empty = False
        chosen = field or next((name for name in _TEXT_FIELDS if name in record and not memory), None)
        chosen = chosen or lang or (next(iter(record)) if len(record) == 1 else None)
        if chosen is None:
            some = shortened(", ".join(record)) or "none"
            raise UserError(
                f"which text is meant? There are {some}", path=path, line=number, cure="name it: FILE:FIELD"
            )
        yield number, field_of(record, chosen, memory, path, number)
    if empty:
        raise UserError("no records in it", path=path, cure="give a file with text")


def split_field(path: str | Path) -> tuple[str | Path, str | None]:
    """Return the file and the field of ``FILE:FIELD``; the field is None if there is none."""
    file, colon, field = str(path).rpartition(":")
    if colon and field and not Path(path).exists() and (format_of(file) or file.endswith(".zip")):
        return file, field
    return path, None


def members_of(path: str | Path, languages: Sequence[str | None]) -> list[str]:
    """Return the names of the files of a zip archive that have text in some languages: a file for each, or one file of
    pairs. In OPUS's archives the last part of a name is the language.

    Raises:
        UserError: It is damaged, or its files do not say which of them are meant.
    """
    archive = str(path)
    with open_zip(path) as opened:
        names = [info.filename for info in opened.infolist()[:_MOST_MEMBERS] if not info.is_dir()]
    plain = {name: plain_name(name).removesuffix(".txt") for name in names}
    found = [
        [name for name in names if canonical(plain[name].rpartition(".")[2]) == language] for language in languages
    ]
    if all(len(some) == 1 for some in found):
        return [f"{archive}/{some[0]}" for some in found]
    ending = {name: plain_name(name).rpartition(".")[2].lower() for name in names}
    kinds = (*FORMATS, "tsv", *(("txt",) if len(languages) == 1 else ()))
    others = [
        name for name in names if ending[name] in kinds and not name.rpartition("/")[2].startswith(("README", "LIC"))
    ]
    if len(others) == 1 and not any(found):
        return [f"{archive}/{others[0]}"]
    wanted = " and ".join(str(language) for language in languages if language) or "text"
    problem = f"has not one file of {wanted}, but {shortened(', '.join(names)) or 'none'}"
    raise UserError(problem, path=path, cure=f"name the file in it: {archive}/NAME")
