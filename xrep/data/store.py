"""Directories of tokenised text, read through memory maps, and the data directory that ``xrep-preprocess`` writes.

Every directory of tokenised text has these files besides those of its sentences::

    manifest.json               format, schema version, type of the tokens, size and sha256 of every other file
    tokenizer/                  see xrep.text.sides
    training_hashes.npy         uint64, sorted, distinct: xrep.text.cleaning.sentence_hash of every training sentence
    {column}.tokens             uint16 or uint32, little-endian, sentences concatenated, without special ids
    {column}.offsets            int64 [n + 1], in tokens

The columns of a data directory are ``{split}.{xx}-{yy}.{lang}``; sentence i of the source translates sentence i of the
target. ``{split}.{xx}-{yy}.hashes`` has the hashes of both sides, uint64 [n, 2]. Only the files grow with the corpus,
not the memory used.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xrep.errors import UserError
from xrep.files import digests_of, sha256_of, write_json
from xrep.text.sides import Tokenizers, open_tokenizers

MANIFEST_FILE = "manifest.json"
TOKENIZER_DIRECTORY = "tokenizer"
TRAINING_HASHES_FILE = "training_hashes.npy"


@dataclass(frozen=True)
class Kind:
    """A kind of directory: what its manifest says, and what the user can do if a directory is damaged."""

    format: str
    schema: int
    """Version of the files and of the rules that write them."""
    cure: str


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
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self, indices: np.ndarray | None = None) -> np.ndarray:
        """Return the number of tokens, int64 [N], of each of the sentences ``indices`` (int64 [N]; None: all)."""
        if indices is None:
            return np.diff(self.offsets)
        return self.offsets[np.asarray(indices) + 1] - self.offsets[indices]

    def gather(self, indices: np.ndarray, maximum_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Concatenate the sentences ``indices`` (int64 [N]), each cut to ``maximum_length`` tokens.

        Returns:
            The ids, [sum of lengths], and the lengths, int64 [N].
        """
        starts = self.offsets[indices]
        lengths = np.minimum(self.offsets[np.asarray(indices) + 1] - starts, maximum_length)
        shifts = starts - (np.cumsum(lengths) - lengths)
        return self.tokens[np.arange(lengths.sum()) + np.repeat(shifts, lengths)], lengths


@dataclass(frozen=True)
class PairSplit:
    """One language pair of one split. ``languages`` is (source, target); ``hashes`` is uint64 [n, 2]."""

    languages: tuple[str, str]
    source: TokenColumn
    target: TokenColumn
    hashes: np.ndarray

    @property
    def name(self) -> str:
        return "-".join(self.languages)

    def __len__(self) -> int:
        return len(self.source)


_Directory = TypeVar("_Directory", bound="TokenDirectory")


class TokenDirectory(ABC):
    """A directory of tokenised text, opened for reading.

    The manifest and the size of every file are checked.

    Raises:
        UserError: This is not a directory of this kind or has another schema, a file is missing or has another size
            (for example because a copy is incomplete), or the tokenizer is not the one that made the tokens.
    """

    kind: Kind

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, read_manifest(path, self.kind)
        self.training_hashes_path = path / TRAINING_HASHES_FILE
        try:
            self._dtype = np.dtype(self.manifest["dtype"])
            for name, expected in self.manifest["files"].items():
                self._check_file(name, expected["bytes"], expected["sha256"])
            self._open_splits()
        except (KeyError, TypeError, AttributeError) as error:
            raise _foreign(path, f"lacks {error}", self.kind.cure) from None

    @classmethod
    def open(cls: type[_Directory], path: str | Path) -> _Directory:
        return cls(Path(path))

    @abstractmethod
    def _open_splits(self) -> None:
        """Open the columns that the manifest lists."""

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers by side: ``shared``, or ``source`` and ``target``."""
        return open_tokenizers(self.path / TOKENIZER_DIRECTORY)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that changes if any byte of a file changes."""
        files = {name: file["sha256"] for name, file in self.manifest["files"].items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    def _array(self, name: str, dtype: np.dtype | str, columns: int = 0) -> np.ndarray:
        """Map a file: an array [n] or, with ``columns``, [n, columns]."""
        if self.manifest["files"][name]["bytes"] == 0:
            array = np.empty(0, dtype)  # an empty file cannot be mapped
        else:
            # Slicing a plain array view of the map takes an eighth of the time that slicing np.memmap takes.
            array = np.asarray(np.memmap(self.path / name, dtype, mode="r"))
        return array.reshape(-1, columns) if columns else array

    def _column(self, stem: str) -> TokenColumn:
        column = TokenColumn(self._array(f"{stem}.tokens", self._dtype), self._array(f"{stem}.offsets", "<i8"))
        if not len(column.offsets) or column.offsets[0] != 0 or column.offsets[-1] != len(column.tokens):
            raise UserError("offsets do not fit the tokens", path=self.path / f"{stem}.offsets", cure=self.kind.cure)
        return column

    def _check_file(self, name: str, expected: int, digest: str) -> None:
        file = self.path / name
        try:
            size = file.stat().st_size
        except FileNotFoundError:
            raise UserError("missing file of a data directory", path=file, cure=self.kind.cure) from None
        if size != expected:
            problem = f"{size} bytes, but the manifest says {expected}"
            raise UserError(problem, path=file, cure=f"copy it again or {self.kind.cure}")
        if name.startswith(f"{TOKENIZER_DIRECTORY}/") and sha256_of(file) != digest:
            raise UserError("not the tokenizer that made these tokens", path=file, cure=self.kind.cure)


class DataDirectory(TokenDirectory):
    """A data directory opened for reading. ``splits`` is ``{"train": [PairSplit, ...], ...}``."""

    kind = PAIRS

    def _open_splits(self) -> None:
        self.splits = {
            split: [self._pair(split, (row["languages"][0], row["languages"][1])) for row in rows]
            for split, rows in self.manifest["splits"].items()
        }

    def _pair(self, split: str, languages: tuple[str, str]) -> PairSplit:
        source, target = (self._column(column_stem(split, languages, language)) for language in languages)
        return PairSplit(languages, source, target, self._array(hashes_name(split, languages), "<u8", columns=2))


def is_data_directory(path: str | Path) -> bool:
    """Return whether ``path`` is a folder with a manifest; only ``DataDirectory.open`` checks that it is complete."""
    return (Path(path) / MANIFEST_FILE).is_file()


def read_manifest(path: Path, kind: Kind) -> dict[str, Any]:
    """Return the manifest of a directory. Raises UserError if there is none or it has another schema."""
    file = path / MANIFEST_FILE
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("not a data directory (no manifest.json)", path=path, cure="see xrep-preprocess") from None
    except ValueError:
        raise _foreign(path, "is no JSON", kind.cure) from None
    if not isinstance(manifest, dict) or manifest.get("format") != kind.format:
        raise _foreign(path, "is not of an xrep data directory", kind.cure)
    if manifest.get("schema") != kind.schema:
        problem = f"data schema {manifest.get('schema')}, but this xrep reads {kind.schema}"
        raise UserError(problem, path=file, cure=kind.cure)
    return manifest


def write_manifest(directory: Path, kind: Kind, vocabulary_size: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the manifest of a directory, which has all other files already; return it."""
    files = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": digest}
        for name, digest in digests_of(directory).items()
    }
    dtype = token_dtype(vocabulary_size).str
    manifest = {"format": kind.format, "schema": kind.schema, "dtype": dtype, **facts, "files": files}
    write_json(directory / MANIFEST_FILE, manifest)
    return manifest


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Return the smallest little-endian unsigned type that holds every id."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def column_stem(split: str, languages: Sequence[str], language: str) -> str:
    """Return ``{split}.{xx}-{yy}.{lang}``, the file name without ``.tokens`` or ``.offsets``."""
    return f"{split}.{'-'.join(languages)}.{language}"


def hashes_name(split: str, languages: Sequence[str]) -> str:
    return f"{split}.{'-'.join(languages)}.hashes"


class ColumnWriter:
    """Context manager that appends tokenised sentences to ``{stem}.tokens`` and ``{stem}.offsets``.

    It holds only the sentences of one ``append`` in memory. Attributes: ``rows`` and ``tokens`` (both counts so far).
    """

    def __init__(self, directory: Path, stem: str, vocabulary_size: int) -> None:
        self._dtype = token_dtype(vocabulary_size)
        self._tokens_file = (directory / f"{stem}.tokens").open("xb")
        self._offsets_file = (directory / f"{stem}.offsets").open("xb")
        self._offsets_file.write(np.zeros(1, "<i8").tobytes())
        self.rows = self.tokens = 0

    def append(self, sentences: Sequence[Sequence[int]]) -> None:
        """Add sentences, each a list of ids without special ids."""
        if not sentences:
            return
        lengths = np.fromiter(map(len, sentences), "<i8", len(sentences))
        ids = np.concatenate([np.asarray(sentence, dtype=self._dtype) for sentence in sentences])
        self._tokens_file.write(ids.tobytes())
        self._offsets_file.write((self.tokens + np.cumsum(lengths)).astype("<i8").tobytes())
        self.rows += len(sentences)
        self.tokens += len(ids)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._tokens_file.close()
        self._offsets_file.close()


def _foreign(path: Path, why: str, cure: str) -> UserError:
    return UserError(f"the manifest {why}", path=path / MANIFEST_FILE, cure=cure)
