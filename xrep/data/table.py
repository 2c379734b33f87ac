"""Tables on disk: columns of numbers, read through memory maps. All text that is trained on is stored in them.

A directory, such as the one that ``xrep-preprocess`` writes, has tables for each split. A table has n rows in columns.
Each row of a fixed column has one number, or a fixed number of them. A row of a ragged column has any number of values,
such as the tokens of a sentence without special ids. Memory does not grow with the number of rows, neither when a table
is written nor when it is opened::

    manifest.json                          format, schema, kind, the tables of each split, size and sha256 of all files
    tokenizer/                             see xrep.text.sides
    training_hashes.npy                    uint64, sorted, distinct: sentence_hash of every training sentence
    {split}.{table}.{column}               the numbers of all rows, little-endian, one row after the other
    {split}.{table}.{column}.offsets       of a ragged column: int64 [n + 1], where each row begins

Bitext has a table for each language pair, such as de-en, with the columns ``source`` and ``target`` (uint16 or uint32,
ragged) and ``hashes`` (uint64 [n, 2], ``xrep.text.cleaning.sentence_hash``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xrep.data.disk_sort import DiskSort
from xrep.errors import UserError
from xrep.files import digests_of, sha256_of, write_json
from xrep.hashing import hash_bytes
from xrep.text.sides import Tokenizers, open_tokenizers

FORMAT, TABLE_SCHEMA = "xrep-data", 5
MANIFEST_FILE = "manifest.json"
TOKENIZER_DIRECTORY = "tokenizer"
TRAINING_HASHES_FILE = "training_hashes.npy"
BITEXT = "bitext"
"""The kind of directory that ``xrep-preprocess`` writes; the others are caches."""


class ColumnType(NamedTuple):
    """The type of a column.

    Attributes:
        dtype: numpy's name of the type of the numbers, little-endian.
        width: Numbers in each row of a fixed column; rows of one number make an array [n], others an array [n, width].
        ragged: Whether each row has a length of its own.
    """

    dtype: str
    width: int = 1
    ragged: bool = False


Schema = Mapping[str, ColumnType]
"""The columns of a table by their names. The first has a value for each row. A later one may also list some rows of the
table, such as those that another sentence of their document follows, and then has a length of its own."""
HASH = ColumnType("<u8")
Flat = tuple[np.ndarray, np.ndarray]
"""The rows of a ragged column: their values, concatenated, and the length of each row, int64."""


def token_type(vocabulary_size: int) -> ColumnType:
    """Return the type of a column of tokens: the smallest that holds every id."""
    return ColumnType("<u2" if vocabulary_size <= 1 << 16 else "<u4", ragged=True)


def flatten(rows: Sequence[Sequence[int]]) -> Flat:
    """Concatenate rows, such as sentences, each a list of ids."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(chain.from_iterable(rows), np.uint32, lengths.sum()), lengths


@dataclass(frozen=True)
class Column:
    """The n rows of a column.

    Attributes:
        values: The numbers: [n] or [n, width]; of a ragged column, the values of all rows, concatenated.
        offsets: Of a ragged column, the start of each row in ``values``, followed by the total: int64 [n + 1].
    """

    values: np.ndarray
    offsets: np.ndarray | None = None

    @classmethod
    def of(cls, parts: Iterable[Sequence[Sequence[int]]]) -> Column:
        """Return a ragged column in memory with the rows of all parts, each a list of ids."""
        values, lengths = zip(*map(flatten, chain(parts, [[]])), strict=True)  # also of no parts
        return cls(np.concatenate(values), np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """Return the values of a row of a ragged column."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.gather(np.array([row]))[0]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of values of each of some rows of a ragged column: int64 [N] -> int64 [N]."""
        assert self.offsets is not None
        return self.offsets[rows + 1] - self.offsets[rows]

    def gather(self, rows: np.ndarray, limit: int | None = None) -> Flat:
        """Concatenate some rows of a ragged column, int64 [N], each cut to at most ``limit`` values."""
        assert self.offsets is not None
        lengths = self.lengths(rows)
        if limit is not None:
            lengths = np.minimum(lengths, limit)
        shifts = self.offsets[rows] - (np.cumsum(lengths) - lengths)
        return self.values[np.arange(lengths.sum()) + np.repeat(shifts, lengths)], lengths


def gather_ragged(columns: Sequence[Column], numbers: np.ndarray, rows: np.ndarray, limit: int) -> Flat:
    """Concatenate row ``rows[i]`` of ``columns[numbers[i]]`` for each i (int64 [N]), as ``Column.gather`` does."""
    distinct = np.unique(numbers).tolist() or [0]
    parts = [columns[number].gather(rows[numbers == number], limit) for number in distinct]
    values, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    grouped = Column(values, np.concatenate([[0], np.cumsum(lengths)]))
    return grouped.gather(np.argsort(np.argsort(numbers, kind="stable")), limit)


@dataclass(frozen=True)
class Table:
    """The n rows of one language pair, of one language or of other text in one split. ``table["source"]`` is a column.

    Attributes:
        name: Name within the split, such as de-en.
        columns: The columns by their names.
        facts: What the manifest says of the table, such as its ``languages``.
        salt: Number that two tables share only by chance.
    """

    name: str
    columns: Mapping[str, Column]
    facts: Mapping[str, Any] = field(default_factory=dict)
    salt: int = 0

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of a table that has such a fact: those of both sides, or the only one."""
        return tuple(self.facts["languages"])

    @property
    def hashes(self) -> np.ndarray:
        """The hashes of the sentences, uint64 [n, S] or [n]."""
        return self.columns["hashes"].values

    def __getitem__(self, column: str) -> Column:
        return self.columns[column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of some rows, summed over the ragged columns: int64 [N] -> int64 [N]."""
        ragged = (column for column in self.columns.values() if column.offsets is not None)
        return sum((column.lengths(rows) for column in ragged), np.zeros(len(rows), np.int64))


class TableWriter(ExitStack):
    """Context manager that appends rows to the files of a table. Memory holds only the rows of one ``append``.

    Args:
        folder: Where the files are written.
        name: How their names begin: ``{split}.{table}``.
        schema: The columns.

    Attributes:
        rows: Number of rows so far.
    """

    def __init__(self, folder: Path, name: str, schema: Schema) -> None:
        super().__init__()
        self.rows, self._schema = 0, dict(schema)
        self._totals = {column: 0 for column, kind in schema.items() if kind.ragged}
        names = [*schema, *(f"{column}.offsets" for column in self._totals)]
        self._files = {file: self.enter_context((folder / f"{name}.{file}").open("xb")) for file in names}
        for column in self._totals:
            self._files[f"{column}.offsets"].write(bytes(8))

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest says of the table: its rows, the tokens of each ragged column, and the columns."""
        return {"rows": self.rows, "tokens": dict(self._totals), "columns": self._schema}

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add rows to each column: ``Flat`` to ragged ones, an array [N] or [N, width] to others."""
        for name, kind in self._schema.items():
            values = columns[name]
            if kind.ragged:
                values, lengths = values
                ends = self._totals[name] + np.cumsum(lengths)
                self._files[f"{name}.offsets"].write(ends.astype("<i8").tobytes())
                self._totals[name] += len(values)
            self._files[name].write(np.asarray(values).astype(kind.dtype).tobytes())
        first = next(iter(self._schema))
        self.rows += len(columns[first][1] if self._schema[first].ragged else columns[first])


def open_table(name: str, facts: Mapping[str, Any], place: Callable[[str], Path | str], salt: int = 0) -> Table:
    """Open a table that a ``TableWriter`` has written.

    Args:
        facts: ``TableWriter.facts``, and whatever else ``Table.facts`` has.
        place: Function that returns the path of a file, given the part of its name after ``{split}.{table}.``.
    """
    columns = dict[str, Column]()
    for column, (dtype, width, ragged) in facts["columns"].items():
        if ragged:
            columns[column] = Column(_mapped(place(column), dtype), _mapped(place(f"{column}.offsets"), "<i8"))
        else:
            values = _mapped(place(column), dtype)
            columns[column] = Column(values if width == 1 else values.reshape(-1, width))
    return Table(name, columns, facts, salt)


def _mapped(path: Path | str, dtype: str) -> np.ndarray:
    # An empty file cannot be mapped. Slicing a plain array view of the map takes an eighth of the time that slicing
    # np.memmap takes.
    return np.asarray(np.memmap(path, dtype, mode="r")) if Path(path).stat().st_size else np.empty(0, dtype)


class DataDirectory:
    """A directory of tables, opened for reading. ``splits`` is ``{"train": [Table, ...], ...}``.

    The size of every file is checked against the manifest.

    Args:
        kind: What the tables are about.

    Raises:
        UserError: This is not a directory of this kind or has another schema, a file is missing or has another size
            (for example because a copy is incomplete), or the tokenizer is not the one that made the tokens.
    """

    def __init__(self, path: str | Path, kind: str = BITEXT) -> None:
        self.path = Path(path)
        self._cure = "run xrep-preprocess again" if kind == BITEXT else "remove its directory; it is made again"
        self.manifest = self._read_manifest(kind)
        self._files: dict[str, dict[str, Any]] = self.manifest["files"]
        for name, file in self._files.items():
            self._check_file(name, file["bytes"], file["sha256"])
        self.splits = {
            split: [self._table(split, facts) for facts in tables] for split, tables in self.manifest["splits"].items()
        }

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers by side: ``shared``, or ``source`` and ``target``."""
        return open_tokenizers(self.path / TOKENIZER_DIRECTORY)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that changes if any byte of a file changes."""
        files = {name: file["sha256"] for name, file in self._files.items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    @property
    def training_hashes(self) -> Path:
        """The file of the hashes of the training sentences: sorted uint64, ``.npy``."""
        return self.path / TRAINING_HASHES_FILE

    def _table(self, split: str, facts: dict[str, Any]) -> Table:
        stem = f"{split}.{facts['name']}"
        salt = hash_bytes(f"{self.fingerprint} {stem}".encode())
        return open_table(facts["name"], facts, lambda name: self.path / f"{stem}.{name}", salt)

    def _read_manifest(self, kind: str) -> dict[str, Any]:
        file = self.path / MANIFEST_FILE
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            problem = "not a data directory (no manifest.json)"
            raise UserError(problem, path=self.path, cure="see xrep-preprocess") from None
        except ValueError:
            manifest = None
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            cure = "name a folder of text, or a directory that xrep-preprocess wrote"
            raise UserError("the manifest is not of an xrep data directory", path=file, cure=cure)
        if (manifest.get("schema"), manifest.get("kind")) != (TABLE_SCHEMA, kind):
            problem = f"data schema {manifest.get('schema')!r:.20}, but this xrep reads {TABLE_SCHEMA}"
            raise UserError(problem, path=file, cure=self._cure)
        return manifest

    def _check_file(self, name: str, expected: int, digest: str) -> None:
        path = self.path / name
        if not path.is_file():
            raise UserError("missing file of a data directory", path=path, cure=self._cure)
        if (size := path.stat().st_size) != expected:
            cure = f"copy it again or {self._cure}"
            raise UserError(f"{size} bytes, but the manifest says {expected}", path=path, cure=cure)
        if name.startswith(f"{TOKENIZER_DIRECTORY}/") and sha256_of(path) != digest:
            raise UserError("not the tokenizer that made these tokens", path=path, cure=self._cure)


def is_data_directory(path: str | Path) -> bool:
    """Return whether ``path`` is a folder with a manifest; only ``DataDirectory`` checks that it is complete."""
    return (Path(path) / MANIFEST_FILE).is_file()


def write_manifest(
    folder: Path,
    kind: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    training: DiskSort | None,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the last files of a directory: the hashes of the training sentences, unless they are there, and the
    manifest, which is returned.

    Args:
        splits: The facts of the tables of each split: ``TableWriter.facts``, the ``name``, and anything else.
        facts: What else the manifest says.
    """
    if training:
        training.save_distinct(folder / TRAINING_HASHES_FILE)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest} for name, digest in digests_of(folder).items()
    }
    manifest = {"format": FORMAT, "schema": TABLE_SCHEMA, "kind": kind, "splits": splits, **facts, "files": files}
    write_json(folder / MANIFEST_FILE, manifest)
    return manifest


def vocabulary_size(tokenizers: Tokenizers) -> int:
    """Return the size of the larger vocabulary."""
    return max(tokenizer.vocabulary_size for tokenizer in tokenizers.values())
