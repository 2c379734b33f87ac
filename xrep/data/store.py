"""Directories of tokenised text, read through memory maps, such as the data directory that ``xrep-preprocess`` writes.

A directory has the following files. The columns of a data directory are languages, such as de and en, and sentence i of
``train.de-en.de`` translates sentence i of ``train.de-en.en``. Memory does not grow with a directory that is written or
opened; it grows with what readers derive from all rows (``text_store.packed``, ``negatives.NegativeStore``)::

    manifest.json                  format, schema, type of the tokens, columns, size and sha256 of every other file
    tokenizer/                     see xrep.text.sides
    training_hashes.npy            uint64, sorted, distinct: sentence_hash of every training sentence
    {split}.{columns}.{column}.tokens   uint16 or uint32, little-endian, sentences concatenated, without special ids
    {split}.{columns}.{column}.offsets  int64 [n + 1], in tokens
    {split}.{columns}.hashes       uint64 [n, columns], xrep.text.cleaning.sentence_hash
    {split}.{columns}.{array}      other arrays, see ``_ARRAYS``
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.hash_runs import HashRuns
from xrep.errors import UserError
from xrep.files import digests_of, sha256_of, write_json
from xrep.hashing import hash_bytes
from xrep.text.sides import SIDES, Tokenizers, open_tokenizers

MANIFEST_FILE = "manifest.json"
TOKENIZER_DIRECTORY = "tokenizer"
TRAINING_HASHES_FILE = "training_hashes.npy"
_ARRAYS = {"hashes": "<u8", "languages": "u1", "labels": "<i8", "followed": "<i8", "pairs": "<u8"}
"""Types of the arrays. The first two have as many columns as there are of sentences."""
_WIDE = ("hashes", "languages")


@dataclass(frozen=True)
class Kind:
    """A kind of directory: what it holds, and what the user can do if one is damaged."""

    format: str
    schema: int
    """Version of the files and of the rules that write them."""
    cure: str
    columns: str = "languages"
    """Key of the manifest under which the columns of a part of a split are listed."""
    arrays: tuple[str, ...] = ("hashes",)


PAIRS = Kind("xrep-data", 3, "run xrep-preprocess again")


class TokenColumn:
    """The tokenised sentences of one side: ``column[i]`` are the ids of sentence i, without special ids.

    Args:
        tokens: Ids of all sentences, concatenated: uint16 or uint32 [total].
        offsets: Start of each sentence in ``tokens``, followed by the total: int64 [n + 1].
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray) -> None:
        self.tokens, self.offsets = tokens, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return self.gather(np.array([index]), len(self.tokens))[0]

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of the sentences ``indices``: int64 [N] -> int64 [N]."""
        return self.offsets[indices + 1] - self.offsets[indices]

    def gather(self, indices: np.ndarray, maximum_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Concatenate the sentences ``indices`` (int64 [N]), each cut to ``maximum_length`` tokens.

        Returns:
            The ids, [sum of lengths], and the lengths, int64 [N].
        """
        lengths = np.minimum(self.lengths(indices), maximum_length)
        shifts = self.offsets[indices] - (np.cumsum(lengths) - lengths)
        return self.tokens[np.arange(lengths.sum()) + np.repeat(shifts, lengths)], lengths

    def runs(self, starts: np.ndarray) -> TokenColumn:
        """Return a column whose row i has the sentences from ``starts[i]`` to ``starts[i + 1]`` (int64 [M], from 0)."""
        return TokenColumn(self.tokens, np.append(self.offsets[starts], self.offsets[-1]))


def gather_rows(
    columns: Sequence[TokenColumn], corpora: np.ndarray, rows: np.ndarray, maximum_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate sentence ``rows[i]`` of ``columns[corpora[i]]`` for each i, as ``TokenColumn.gather`` does."""
    distinct = np.unique(corpora).tolist() or [0]
    parts = [columns[corpus].gather(rows[corpora == corpus], maximum_length) for corpus in distinct]
    ids, lengths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    grouped = TokenColumn(ids, np.concatenate([[0], np.cumsum(lengths)]))
    return grouped.gather(np.argsort(np.argsort(corpora, kind="stable")), maximum_length)


@dataclass(frozen=True)
class Corpus:
    """The n rows of one language pair, of one language, or of other data with the same columns, in one split.

    Attributes:
        names: Names of the columns, which are the languages of translations and of monolingual text.
        columns: Tokenised sentences, n in each column.
        arrays: Arrays by name, such as ``hashes``, uint64 [n, columns].
        salt: Number that two corpora share only by chance.
    """

    names: tuple[str, ...]
    columns: tuple[TokenColumn, ...]
    arrays: dict[str, np.ndarray]
    salt: int = 0

    @property
    def name(self) -> str:
        return "-".join(self.names)

    @property
    def languages(self) -> tuple[str, str]:
        """The languages of translations: (source, target)."""
        return self.names[0], self.names[1]

    @property
    def source(self) -> TokenColumn:
        return self.columns[0]

    @property
    def target(self) -> TokenColumn:
        return self.columns[1]

    @property
    def hashes(self) -> np.ndarray:
        return self.arrays["hashes"]

    def __len__(self) -> int:
        return len(self.columns[0])

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of some rows, summed over the columns: int64 [N] -> int64 [N]."""
        return sum((column.lengths(rows) for column in self.columns), np.zeros(len(rows), np.int64))


class DataDirectory:
    """A directory of tokenised text, opened for reading. ``splits`` is ``{"train": [Corpus, ...], ...}``.

    The manifest and the size of every file are checked.

    Raises:
        UserError: This is not a directory of this kind or has another schema, a file is missing or has another size
            (for example because a copy is incomplete), or the tokenizer is not the one that made the tokens.
    """

    def __init__(self, path: str | Path, kind: Kind = PAIRS) -> None:
        self.path, self.kind, self.manifest = Path(path), kind, _read_manifest(Path(path), kind)
        self._files: dict[str, dict[str, Any]] = self.manifest["files"]
        for name, file in self._files.items():
            self._check_file(name, file["bytes"], file["sha256"])
        self.splits = {
            split: [self._corpus(split, tuple(row[kind.columns]), row["rows"]) for row in rows]
            for split, rows in self.manifest["splits"].items()
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

    def copy_training_hashes(self, path: Path) -> None:
        """Copy the hashes of the training sentences to ``path``. Raises UserError if they are damaged."""
        shutil.copyfile(self.path / TRAINING_HASHES_FILE, path)
        if sha256_of(path) != self._files[TRAINING_HASHES_FILE]["sha256"]:
            path.unlink()
            raise self._damaged("has other bytes than the manifest says", TRAINING_HASHES_FILE)

    def check_below(self, corpus: Corpus, array: str, limit: int) -> None:
        """Raise UserError if an array of a corpus has a number outside of [-1, limit)."""
        numbers = corpus.arrays[array]
        if numbers.max(initial=0) >= limit or numbers.min(initial=0) < -1:
            raise self._damaged(f"has {array} that are not below {limit}", corpus.name)

    def _corpus(self, split: str, names: tuple[str, ...], rows: int) -> Corpus:
        stem = f"{split}.{'-'.join(names)}"
        if not names or self.kind == PAIRS and len(names) != len(SIDES):
            raise self._damaged(f"the manifest has {len(names)} columns in {stem!r}")
        columns = tuple(self._column(f"{stem}.{name}") for name in names)
        arrays = {
            name: self._array(f"{stem}.{name}", _ARRAYS[name], len(names) if name in _WIDE else 0)
            for name in self.kind.arrays
        }
        per_row = [array for name, array in arrays.items() if name != "followed"]
        if any(len(each) != rows for each in (*columns, *per_row)):
            raise self._damaged(f"the files of {stem!r} do not have {rows} rows")
        return Corpus(names, columns, arrays, hash_bytes(f"{self.fingerprint} {stem}".encode()))

    def _column(self, stem: str) -> TokenColumn:
        tokens, offsets = self._array(f"{stem}.tokens", self.manifest["dtype"]), self._array(f"{stem}.offsets", "<i8")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(tokens):
            raise self._damaged("the offsets do not fit the tokens", stem)
        return TokenColumn(tokens, offsets)

    def _array(self, name: str, dtype: str, width: int = 0) -> np.ndarray:
        """Map a file: an array [n] or, with ``width``, [n, width]."""
        if name not in self._files:
            raise self._damaged(f"the manifest lacks the file {name!r}")
        size = self._files[name]["bytes"]
        if size % (np.dtype(dtype).itemsize * max(1, width)):
            raise self._damaged("ends within a row", name)
        # An empty file cannot be mapped. Slicing a plain array view of the map takes an eighth of the time that slicing
        # np.memmap takes.
        array = np.asarray(np.memmap(self.path / name, dtype, mode="r")) if size else np.empty(0, dtype)
        return array.reshape(-1, width) if width else array

    def _check_file(self, name: str, expected: int, digest: str) -> None:
        if not (self.path / name).is_file():
            raise self._damaged("missing file of a data directory", name)
        size = (self.path / name).stat().st_size
        if size != expected:
            cure = f"copy it again or {self.kind.cure}"
            raise UserError(f"{size} bytes, but the manifest says {expected}", path=self.path / name, cure=cure)
        if name.startswith(f"{TOKENIZER_DIRECTORY}/") and sha256_of(self.path / name) != digest:
            raise self._damaged("not the tokenizer that made these tokens", name)

    def _damaged(self, problem: str, file: str = MANIFEST_FILE) -> UserError:
        return UserError(problem, path=self.path / file, cure=self.kind.cure)


def is_data_directory(path: str | Path) -> bool:
    """Return whether ``path`` is a folder with a manifest; only ``DataDirectory`` checks that it is complete."""
    return (Path(path) / MANIFEST_FILE).is_file()


def _read_manifest(path: Path, kind: Kind) -> dict[str, Any]:
    file = path / MANIFEST_FILE
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("not a data directory (no manifest.json)", path=path, cure="see xrep-preprocess") from None
    except (ValueError, RecursionError):
        raise UserError("the manifest is no JSON", path=file, cure=kind.cure) from None
    if not isinstance(manifest, dict) or manifest.get("format") != kind.format:
        cure = "name a folder of text, or a directory that xrep-preprocess wrote"
        raise UserError("the manifest is not of an xrep data directory", path=file, cure=cure)
    if manifest.get("schema") != kind.schema:
        problem = f"data schema {manifest.get('schema')!r:.20}, but this xrep reads {kind.schema}"
        raise UserError(problem, path=file, cure=kind.cure)
    size = {"bytes": int, "sha256": str}
    corpora = [{kind.columns: [str], "rows": int}]
    files, splits = {TRAINING_HASHES_FILE: size, str: size}, {"train": corpora, str: corpora}
    if problem := misfit("manifest", manifest, {"dtype": str, "files": files, "splits": splits}):
        raise UserError(f"the manifest {problem}", path=file, cure=kind.cure)
    if manifest["dtype"] not in ("<u2", "<u4"):
        raise UserError("the manifest has no type of tokens", path=file, cure=kind.cure)
    return manifest


def misfit(name: str, value: Any, shape: Any) -> str | None:
    """Return what is wrong with a value of JSON that should have a certain shape, or None.

    A shape is a type (``int``: from 0 to 2**63 - 1), ``[shape]`` for a list of such values, or an object's keys with
    their shapes, which must be there; the key ``str`` stands for any further ones.
    """
    kind = shape if isinstance(shape, type) else type(shape)
    if type(value) is not kind or (kind is int and not 0 <= value < 1 << 63):
        return f"has a wrong {name!r:.60}"
    items: list[tuple[str, Any, Any]] = []
    if isinstance(shape, list):
        items = [(name, item, shape[0]) for item in value]
    elif isinstance(shape, dict):
        if lacking := [key for key in shape if key is not str and key not in value]:
            return f"lacks {lacking[0]!r}"
        items = [(key, value[key], shape.get(key, shape.get(str))) for key in value if key in shape or str in shape]
    return next(filter(None, (misfit(*item) for item in items)), None)


Joined = tuple[np.ndarray, np.ndarray]
"""The ids of sentences, without special ids, concatenated, and the length of each sentence."""


def joined(sentences: Sequence[Sequence[int]]) -> Joined:
    """Concatenate sentences, each a list of ids."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.uint32, lengths.sum()), lengths


class DirectoryWriter(ExitStack):
    """Context manager that appends the rows of a corpus to its files: tokenised sentences, and arrays.

    It holds only the rows of one ``append`` in memory. Attribute: ``rows``, their number so far.

    Args:
        columns: Names of the columns.
        arrays: Names of the arrays.
    """

    def __init__(
        self, directory: Path, split: str, columns: Sequence[str], arrays: Sequence[str], vocabulary_size: int
    ) -> None:
        super().__init__()
        self._dtype, self._stem = _token_dtype(vocabulary_size), f"{split}.{'-'.join(columns)}"
        names = [f"{column}.{ending}" for column in columns for ending in ("tokens", "offsets")]
        self._files = {
            name: self.enter_context((directory / f"{self._stem}.{name}").open("xb")) for name in [*names, *arrays]
        }
        self.rows, self._tokens = 0, dict.fromkeys(columns, 0)
        for column in columns:
            self._files[f"{column}.offsets"].write(bytes(8))

    @property
    def facts(self) -> dict[str, Any]:
        """The numbers of rows and of tokens by column, for the manifest."""
        return {"rows": self.rows, "tokens": self._tokens}

    def append(self, columns: Sequence[Joined], arrays: Mapping[str, np.ndarray]) -> None:
        """Add sentences to each column, and rows to the arrays."""
        for name, (ids, lengths) in zip(self._tokens, columns, strict=True):
            self._files[f"{name}.tokens"].write(ids.astype(self._dtype).tobytes())
            self._files[f"{name}.offsets"].write((self._tokens[name] + np.cumsum(lengths)).astype("<i8").tobytes())
            self._tokens[name] += len(ids)
        self.rows += len(columns[0][1])
        for name, array in arrays.items():
            self._files[name].write(array.astype(_ARRAYS[name]).tobytes())


def write_manifest(
    directory: Path, kind: Kind, tokenizers: Tokenizers, training: HashRuns | None, facts: dict[str, Any]
) -> dict[str, Any]:
    """Write the last files of a directory: the hashes of the training sentences, unless they are there, and the
    manifest, which is returned."""
    if training:
        training.save_distinct(directory / TRAINING_HASHES_FILE)
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in digests_of(directory).items()
    }
    dtype = _token_dtype(vocabulary_size(tokenizers)).str
    manifest = {"format": kind.format, "schema": kind.schema, "dtype": dtype, **facts, "files": files}
    write_json(directory / MANIFEST_FILE, manifest)
    return manifest


def vocabulary_size(tokenizers: Tokenizers) -> int:
    """Return the size of the larger vocabulary."""
    return max(tokenizer.vocabulary_size for tokenizer in tokenizers.values())


def _token_dtype(vocabulary_size: int) -> np.dtype:
    """Return the smallest little-endian unsigned type that holds every id."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
