"""The data directory that ``xrep-preprocess`` writes: tokenised parallel text, read through memory maps.

Layout of a data directory::

    manifest.json                                schema version, splits, counts, options, sha256 of every file
    tokenizer/                                   see xrep.text.sides
    {split}.{xx}-{yy}.{lang}.tokens              uint16 or uint32, little-endian, sentences concatenated, no special ids
    {split}.{xx}-{yy}.{lang}.offsets             int64 [n + 1], in tokens
    {split}.{xx}-{yy}.hashes                     uint64 [n, 2], xrep.text.cleaning.sentence_hash of both sides
    training_hashes.npy                          uint64, sorted, distinct: every training sentence of either side

Sentence i of the source translates sentence i of the target. Only the files grow with the corpus, not the memory used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.text.sides import Tokenizers, open_tokenizers

FORMAT, SCHEMA = "xrep-data", 2
MANIFEST_FILE = "manifest.json"
TOKENIZER_DIRECTORY = "tokenizer"
TRAINING_HASHES_FILE = "training_hashes.npy"
_AGAIN = "run xrep-preprocess again"


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


class DataDirectory:
    """A data directory opened for reading.

    Attributes: ``path``, ``manifest`` (the parsed JSON), ``splits`` (``{"train": [PairSplit, ...], ...}``),
    ``tokenizers``, ``training_hashes_path``.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], splits: dict[str, list[PairSplit]]) -> None:
        self.path, self.manifest, self.splits = path, manifest, splits
        self.training_hashes_path = path / TRAINING_HASHES_FILE

    @classmethod
    def open(cls, path: str | Path) -> DataDirectory:
        """Map the files of a data directory, after checking the manifest and the size of every file.

        Raises:
            UserError: This is not a data directory or has another schema, a file is missing or has another size (for
                example because a copy is incomplete), or the tokenizer is not the one that made the tokens.
        """
        path = Path(path)
        manifest = read_manifest(path)
        try:
            for name, expected in manifest["files"].items():
                _check_size(path / name, expected["bytes"])
            rows = manifest["splits"].items()
            splits = {split: [_map_pair(path, split, pair) for pair in pairs] for split, pairs in rows}
        except (KeyError, TypeError, AttributeError) as error:
            raise _foreign(path, f"lacks {error}") from None
        directory = cls(path, manifest, splits)
        directory._check_tokenizer()
        return directory

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """Tokenizers by side: ``shared``, or ``source`` and ``target``."""
        return open_tokenizers(self.path / TOKENIZER_DIRECTORY)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest that changes if any byte of the tokens, the vocabulary or the hashes changes."""
        files = {name: file["sha256"] for name, file in self.manifest["files"].items()}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    def _check_tokenizer(self) -> None:
        for name, expected in self.manifest["files"].items():
            if name.startswith(f"{TOKENIZER_DIRECTORY}/") and sha256_of(self.path / name) != expected["sha256"]:
                raise UserError("not the tokenizer that made these tokens", path=self.path / name, cure=_AGAIN)


def is_data_directory(path: str | Path) -> bool:
    """Return whether ``path`` is a folder with a manifest; only ``DataDirectory.open`` checks that it is complete."""
    return (Path(path) / MANIFEST_FILE).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a data directory. Raises UserError if there is none or it has another schema."""
    file = path / MANIFEST_FILE
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError("not a data directory (no manifest.json)", path=path, cure="see xrep-preprocess") from None
    except ValueError:
        raise _foreign(path, "is no JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _foreign(path, "is not of an xrep data directory")
    if manifest.get("schema") != SCHEMA:
        raise UserError(f"data schema {manifest.get('schema')}, but this xrep reads {SCHEMA}", path=file, cure=_AGAIN)
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


def _map_pair(path: Path, split: str, row: dict[str, Any]) -> PairSplit:
    languages = (row["languages"][0], row["languages"][1])
    rows, dtype = row["rows"], np.dtype(row["dtype"])
    columns = []
    for language in languages:
        stem, total = column_stem(split, languages, language), row["tokens"][language]
        offsets = _map(path / f"{stem}.offsets", np.dtype("<i8"), (rows + 1,))
        if offsets[0] != 0 or offsets[-1] != total:
            raise UserError("offsets do not fit the tokens", path=path / f"{stem}.offsets", cure=_AGAIN)
        columns.append(TokenColumn(_map(path / f"{stem}.tokens", dtype, (total,)), offsets))
    hashes = _map(path / hashes_name(split, languages), np.dtype("<u8"), (rows, 2))
    return PairSplit(languages, columns[0], columns[1], hashes)


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    _check_size(path, size * dtype.itemsize)
    if size == 0:
        return np.empty(shape, dtype)  # an empty file cannot be mapped
    # Slicing a plain array view of the map takes an eighth of the time that slicing np.memmap takes.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=shape))


def _check_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UserError("missing file of a data directory", path=path, cure=_AGAIN) from None
    if size != expected:
        raise UserError(f"{size} bytes, but the manifest says {expected}", path=path, cure=f"copy it again or {_AGAIN}")


def _foreign(path: Path, why: str) -> UserError:
    return UserError(f"the manifest {why}", path=path / MANIFEST_FILE, cure="give a folder made by xrep-preprocess")
