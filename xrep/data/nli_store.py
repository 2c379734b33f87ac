"""Tokenised natural language inference data on disk: labelled pairs or triplets, in one or several languages.

A directory is built once for the same files and options, in ``$XREP_HOME/nli/``. Its layout is::

    manifest.json                            schema version, languages, rows of each split, counts, sha256 of the arrays
    tokenizer/                               see xrep.text.sides
    {split}.{column}.tokens.npy              uint16 or uint32, sentences concatenated, no special ids
    {split}.{column}.offsets.npy             int64 [n + 1], in tokens
    {split}.languages.npy                    uint8 [n, columns], indices into the manifest's languages
    {split}.labels.npy                       int64 [n], classes; -1 in triplets
    {split}.hashes.npy                       uint64 [n, columns], xrep.text.cleaning.sentence_hash
    training_hashes.npy                      uint64, sorted, distinct

The columns are premise and hypothesis, or anchor, positive and hard negative.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.store import MANIFEST_FILE, TOKENIZER_DIRECTORY, TRAINING_HASHES_FILE, TokenColumn, token_dtype
from xrep.errors import UserError
from xrep.files import build_once, sha256_of
from xrep.text.cleaning import HashSet, sentence_hashes
from xrep.text.corpora import xrep_home
from xrep.text.nli_readers import Example, NliFile, discover_nli, read_nli
from xrep.text.sides import SHARED, Tokenizers, open_tokenizers, save_tokenizers, tokenizer_of
from xrep.text.tokenizer import sample_for_tokenizer, train_tokenizer

SCHEMA = 1
"""Version of the files and of the rules that build them; directories of another version are built again."""
_CHUNK = 8192
_TOKENIZER_SENTENCES = 500_000  # to train SentencePiece on, which needs about 20 bytes of memory per character
_ARRAYS = ("languages", "labels", "hashes")


@dataclass(frozen=True, kw_only=True)
class NliOptions:
    """Options for turning raw text into examples."""

    triplets: bool
    language: str
    """Language of the files whose names do not contain one."""
    cross_lingual: bool = False
    target_languages: list[str] = field(default_factory=list)
    """Languages that the tokenizer of the target side reads."""
    vocabulary_size: int = 16000
    """Number of subwords of the vocabulary that is trained if no tokenizers are given."""

    @property
    def columns(self) -> int:
        return 3 if self.triplets else 2

    def side(self, language: str) -> str:
        return "target" if language in self.target_languages else "source"


@dataclass(frozen=True)
class NliSplit:
    """The n examples of one split: one ``TokenColumn`` per column, ``languages`` [n, columns] (indices into
    ``NliData.languages``), ``labels`` int64 [n], and ``hashes`` uint64 [n, columns]."""

    columns: list[TokenColumn]
    languages: np.ndarray
    labels: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of the examples ``rows``, int64 [N], summed over its sentences."""
        return functools.reduce(np.add, (column.lengths(rows) for column in self.columns))


@dataclass(frozen=True)
class NliData:
    """A directory opened for reading through memory maps."""

    path: Path
    languages: list[str]
    splits: dict[str, NliSplit]
    tokenizers: Tokenizers
    fingerprint: str
    """Digest that changes if any token, any label or the vocabulary changes."""

    @classmethod
    def open(cls, path: Path) -> NliData:
        """Open a directory. Raises UserError if files are missing or damaged."""
        try:
            manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
            splits = {split: _open_split(path, split, manifest["columns"]) for split in manifest["splits"]}
            found = {split: len(data) for split, data in splits.items()}
            if found != manifest["splits"]:
                raise ValueError(f"has {found} examples, not {manifest['splits']}")
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"is damaged: {error}", path=path, cure="remove it; it is made again") from None
        fingerprint = hashlib.sha256(json.dumps(manifest["sha256"], sort_keys=True).encode()).hexdigest()
        return cls(path, manifest["languages"], splits, open_tokenizers(path / TOKENIZER_DIRECTORY), fingerprint)


def _open_split(path: Path, split: str, columns: int) -> NliSplit:
    def load(name: str) -> np.ndarray:
        # Slicing a plain array view of the map takes an eighth of the time that slicing np.memmap takes.
        return np.asarray(np.load(path / f"{split}.{name}.npy", mmap_mode="r", allow_pickle=False))

    arrays = {name: load(name) for name in _ARRAYS}
    tokens = [TokenColumn(load(f"{c}.tokens"), load(f"{c}.offsets")) for c in range(columns)]
    rows = {len(column) for column in tokens} | {len(array) for array in arrays.values()}
    if len(rows) != 1 or any(len(column.tokens) != column.offsets[-1] for column in tokens):
        raise ValueError(f"the arrays of {split} do not fit each other")
    return NliSplit(tokens, **arrays)


def prepare_nli(
    path: str | Path, options: NliOptions, tokenizers: Tokenizers | None, log: Callable[[str], None] = print
) -> NliData:
    """Read and tokenise inference data (layouts: ``xrep.text.nli_readers``) unless this was done before, and open it.

    Args:
        tokenizers: Tokenizers by side; None to train one on the training text.

    Raises:
        UserError: For the same reasons as ``discover_nli`` and ``read_nli``, or if no example is left.
    """
    files = discover_nli(path, options.language)
    cached = xrep_home() / "nli" / _key(files, options, tokenizers)

    def build(folder: Path) -> None:
        log(f"tokenising {path} (once; kept in {cached})")
        _Writer(folder, files, options, log).write(tokenizers)

    build_once(cached, MANIFEST_FILE, build)
    return NliData.open(cached)


def _key(files: dict[str, list[NliFile]], options: NliOptions, tokenizers: Tokenizers | None) -> str:
    """Return a digest of the files to read (path, size, time), the options, the tokenizers and the rules."""
    read = [path for some in files.values() for file in some for path in file.paths]
    stats = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in read]
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizers(tokenizers or {}, Path(folder))
        written = _digests(Path(folder))
    facts = json.dumps([SCHEMA, stats, asdict(options), written])
    return hashlib.sha256(facts.encode()).hexdigest()[:24]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


class _Writer:
    """Writer of the directory ``output``."""

    def __init__(
        self, output: Path, files: dict[str, list[NliFile]], options: NliOptions, log: Callable[[str], None]
    ) -> None:
        self.output, self.files, self.options, self.log = output, files, options, log
        self._places: dict[str, int] = {}

    def write(self, tokenizers: Tokenizers | None) -> None:
        tokenizers = tokenizers or self._train_tokenizer()
        save_tokenizers(tokenizers, self.output / TOKENIZER_DIRECTORY)
        rows = {split: self._write_split(split, tokenizers) for split in self.files}
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "columns": self.options.columns,
            "languages": list(self._places),
            "splits": rows,
            "options": asdict(self.options),
            "sha256": _digests(self.output),
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self.output / MANIFEST_FILE).write_text(text, encoding="utf-8")

    def _read(self, split: str, counts: Counter[str] | None = None) -> Iterator[Example]:
        options = self.options
        triplets, crossed = options.triplets, options.cross_lingual
        return read_nli(self.files[split], triplets=triplets, cross_lingual=crossed, counts=counts)

    def _train_tokenizer(self) -> Tokenizers:
        def sentences() -> Iterator[tuple[str, str]]:
            for example in self._read("train"):
                yield from zip(example.languages, example.sentences, strict=True)

        counts = Counter(language for language, _ in sentences())
        if not counts:
            raise self._nothing("train")
        self.log(f"training a SentencePiece vocabulary of {self.options.vocabulary_size:,} pieces")
        sample = sample_for_tokenizer(sentences(), counts, maximum=_TOKENIZER_SENTENCES)
        return {SHARED: train_tokenizer(sample, self.options.vocabulary_size, self.output / TOKENIZER_DIRECTORY)}

    def _write_split(self, split: str, tokenizers: Tokenizers) -> int:
        counts: Counter[str] = Counter()
        examples, parts = self._read(split, counts), []
        while chunk := list(itertools.islice(examples, _CHUNK)):
            parts.append(self._arrays(chunk, tokenizers))
        if not parts:
            raise self._nothing(split)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for column in range(self.options.columns):
            lengths = arrays.pop(f"{column}.lengths")
            arrays[f"{column}.offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        for name, array in arrays.items():
            np.save(self.output / f"{split}.{name}.npy", array, allow_pickle=False)
        if split == "train":
            hashes = HashSet()
            hashes.add(arrays["hashes"].ravel())
            np.save(self.output / TRAINING_HASHES_FILE, hashes.to_array(), allow_pickle=False)
        rows, what = len(arrays["labels"]), "triplets" if self.options.triplets else "pairs"
        left_out = "".join(f", {count:,} left out ({why})" for why, count in counts.items() if why != "read")
        self.log(f"{split}: {rows:,} {what} of {counts['read']:,} examples{left_out}")
        return rows

    def _arrays(self, chunk: list[Example], tokenizers: Tokenizers) -> dict[str, np.ndarray]:
        dtype = token_dtype(max(tokenizer.vocabulary_size for tokenizer in tokenizers.values()))
        found: dict[str, np.ndarray] = {}
        for column in range(self.options.columns):
            ids = self._encode([e.sentences[column] for e in chunk], [e.languages[column] for e in chunk], tokenizers)
            found[f"{column}.tokens"] = np.fromiter(itertools.chain.from_iterable(ids), dtype)
            found[f"{column}.lengths"] = np.fromiter(map(len, ids), np.int64)
        languages = [[self._places.setdefault(code, len(self._places)) for code in e.languages] for e in chunk]
        found["languages"] = np.array(languages, dtype=np.uint8)
        found["labels"] = np.array([-1 if e.label is None else e.label for e in chunk], dtype=np.int64)
        found["hashes"] = np.stack(
            [sentence_hashes(side) for side in zip(*(e.sentences for e in chunk), strict=True)], 1
        )
        return found

    def _encode(self, sentences: list[str], languages: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        """Return the ids of each sentence, from the tokenizer of the side that its language belongs to."""
        found: list[list[int]] = [[]] * len(sentences)
        sides = [self.options.side(language) for language in languages]
        for side in set(sides):
            rows = [row for row, own in enumerate(sides) if own == side]
            encoded = tokenizer_of(tokenizers, side).encode([sentences[row] for row in rows])
            for row, ids in zip(rows, encoded, strict=True):
                found[row] = ids
        return found

    def _nothing(self, split: str) -> UserError:
        what = (
            "triplet (an entailment and a contradiction of one premise)" if self.options.triplets else "labelled pair"
        )
        return UserError(f"no {what} for {split}", path=self.files[split][0].paths[0], cure="check the files")
