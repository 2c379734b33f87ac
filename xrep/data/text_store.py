"""Tokenised monolingual text on disk, read through memory maps: the sentences of documents, by language.

A directory is built once for the same files and options, in ``$XREP_HOME/text/``. Its layout is::

    manifest.json                    schema version, rows and tokens of each language of each split, size and sha256
    tokenizer/                       see xrep.text.sides
    {split}.{lang}.tokens, .offsets  see xrep.data.store
    {split}.{lang}.hashes            uint64 [n], xrep.text.cleaning.sentence_hash
    {split}.{lang}.followed          int64, rows whose next row is the next sentence of their document, sorted
    training_hashes.npy              uint64, sorted, distinct

While a directory is built, memory grows only by the hashes of the training sentences.
"""

from __future__ import annotations

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

from xrep.data.store import (
    MANIFEST_FILE,
    TOKENIZER_DIRECTORY,
    TRAINING_HASHES_FILE,
    ColumnWriter,
    TokenColumn,
    token_dtype,
)
from xrep.errors import UserError
from xrep.files import build_once, sha256_of
from xrep.text.cleaning import HashSet, load_exclusion, sentence_hashes
from xrep.text.corpora import xrep_home
from xrep.text.sides import SHARED, open_tokenizers
from xrep.text.text_files import TextFile, find_text, read_sentences
from xrep.text.tokenizer import Tokenizer, sample_for_tokenizer, train_tokenizer

SCHEMA = 1
"""Version of the files and of the rules that build them; directories of another version are built again."""
_CHUNK = 8192
# Maximum size of the text to train SentencePiece on, which needs about 20 bytes of memory per character and 90 per
# sentence.
_TOKENIZER_CHARACTERS, _TOKENIZER_SENTENCES = 32_000_000, 2_000_000


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options for turning raw text into a directory."""

    vocabulary_size: int = 16000
    """Number of subwords of the vocabulary that is trained if no tokenizer is given."""
    vocabulary_alpha: float = 0.3
    """A language with n sentences has the weight n ** vocabulary_alpha in the text used to train the vocabulary."""
    exclude: list[str] = field(default_factory=list)
    """Files or folders of evaluation sets, whose sentences are dropped from the training text."""


@dataclass(frozen=True)
class TextSplit:
    """The n sentences of one language of one split, with ``hashes``, uint64 [n]. ``followed``, int64 and sorted, lists
    the sentences that have a next sentence in their document."""

    language: str
    sentences: TokenColumn
    hashes: np.ndarray
    followed: np.ndarray

    def __len__(self) -> int:
        return len(self.sentences)


@dataclass(frozen=True)
class TextData:
    """A directory opened for reading."""

    path: Path
    splits: dict[str, list[TextSplit]]
    tokenizer: Tokenizer
    fingerprint: str
    """Digest that changes if any token or the vocabulary changes."""

    @classmethod
    def open(cls, path: Path) -> TextData:
        """Open a directory. Raises UserError if files are missing or damaged."""
        try:
            manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
            for name, file in manifest["files"].items():
                if (path / name).stat().st_size != file["bytes"]:
                    raise ValueError(f"{name} is not of {file['bytes']} bytes")
            dtype = np.dtype(manifest["dtype"])
            splits = {
                split: [_map_split(path, split, language, dtype) for language in languages]
                for split, languages in manifest["splits"].items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"is damaged: {error}", path=path, cure="remove it; it is made again") from None
        digests = json.dumps({name: file["sha256"] for name, file in manifest["files"].items()}, sort_keys=True)
        tokenizer = open_tokenizers(path / TOKENIZER_DIRECTORY)[SHARED]
        return cls(path, splits, tokenizer, hashlib.sha256(digests.encode()).hexdigest())


def _map_split(path: Path, split: str, language: str, dtype: np.dtype) -> TextSplit:
    def load(suffix: str, kind: np.dtype | str) -> np.ndarray:
        file = path / f"{split}.{language}.{suffix}"
        if not file.stat().st_size:
            return np.empty(0, kind)  # an empty file cannot be mapped
        # Slicing a plain array view of the map takes an eighth of the time that slicing np.memmap takes.
        return np.asarray(np.memmap(file, kind, mode="r"))

    column = TokenColumn(load("tokens", dtype), load("offsets", "<i8"))
    return TextSplit(language, column, load("hashes", "<u8"), load("followed", "<i8"))


def prepare_text(
    data: str | Path, options: TextOptions, tokenizer: Tokenizer | None, log: Callable[[str], None] = print
) -> TextData:
    """Read and tokenise text unless this was done before, and open the result.

    Args:
        data: Specification of the text, see ``xrep.text.text_files.find_text``.
        tokenizer: None to train one on the training text.

    Raises:
        UserError: For the same reasons as ``find_text`` and ``read_sentences``, or if no training sentence is left.
    """
    files = find_text(data)
    cached = xrep_home() / "text" / _key(files, options, tokenizer)

    def build(folder: Path) -> None:
        log(f"tokenising {data} (once; kept in {cached})")
        _Writer(folder, files, options, log).write(tokenizer)

    build_once(cached, MANIFEST_FILE, build)
    return TextData.open(cached)


def _key(files: dict[str, list[TextFile]], options: TextOptions, tokenizer: Tokenizer | None) -> str:
    """Return a digest of the files to read (path, size, time), the options, the tokenizer and the rules."""
    read = {split: [(file.language, *_facts(file.path)) for file in some] for split, some in files.items()}
    named = [Path(name) for name in options.exclude]
    excluded = [_facts(path) for name in named for path in ([name] if name.is_file() else sorted(name.rglob("*")))]
    with tempfile.TemporaryDirectory() as folder:
        if tokenizer is not None:
            tokenizer.save(folder)
        written = {path.name: sha256_of(path) for path in sorted(Path(folder).iterdir())}
    facts = json.dumps([SCHEMA, read, excluded, asdict(options), written])
    return hashlib.sha256(facts.encode()).hexdigest()[:24]


def _facts(path: Path) -> tuple[str, int, int]:
    if not path.exists():
        raise UserError("no such file", path=path, cure="check the name")
    return str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns


class _Writer:
    """Writer of the directory ``output``."""

    def __init__(
        self, output: Path, files: dict[str, list[TextFile]], options: TextOptions, log: Callable[[str], None]
    ) -> None:
        self.output, self.files, self.options, self.log = output, files, options, log

    def write(self, tokenizer: Tokenizer | None) -> None:
        dropped = load_exclusion(self.options.exclude)
        for file in self.files.get("valid", []):
            for chunk in _chunks(read_sentences(file)):
                dropped.add(sentence_hashes(sentence for sentence, _ in chunk))
        if tokenizer is None:
            tokenizer = self._train_tokenizer()
        else:
            tokenizer.save(self.output / TOKENIZER_DIRECTORY)
        training, splits = HashSet(), {}
        for split in self.files:
            languages = sorted({file.language for file in self.files[split]})
            rules = (dropped, training) if split == "train" else (HashSet(), HashSet())
            counts = {language: self._write_language(split, language, tokenizer, *rules) for language in languages}
            splits[split] = [language for language, count in counts.items() if count]
        if not splits["train"]:
            path = self.files["train"][0].path
            raise UserError("no training sentence is left", path=path, cure="check the text and `exclude`")
        np.save(self.output / TRAINING_HASHES_FILE, training.to_array(), allow_pickle=False)
        written = sorted(path for path in self.output.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.output)): path for path in written}
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "splits": splits,
            "dtype": token_dtype(tokenizer.vocabulary_size).str,
            "options": asdict(self.options),
            "files": {name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for name, p in names.items()},
        }
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (self.output / MANIFEST_FILE).write_text(text, encoding="utf-8")

    def _train_tokenizer(self) -> Tokenizer:
        def sentences() -> Iterator[tuple[str, str]]:
            return ((file.language, text) for file in self.files["train"] for text, _ in read_sentences(file))

        counts, characters = Counter[str](), Counter[str]()
        for language, text in sentences():
            counts[language] += 1
            characters[language] += len(text)
        self.log(f"training a SentencePiece vocabulary of {self.options.vocabulary_size:,} pieces")
        longest = max(characters[language] / counts[language] for language in counts) if counts else 1.0
        maximum = min(int(_TOKENIZER_CHARACTERS / longest), _TOKENIZER_SENTENCES)
        sample = sample_for_tokenizer(sentences(), counts, exponent=self.options.vocabulary_alpha, maximum=maximum)
        return train_tokenizer(sample, self.options.vocabulary_size, self.output / TOKENIZER_DIRECTORY)

    def _write_language(
        self, split: str, language: str, tokenizer: Tokenizer, dropped: HashSet, training: HashSet
    ) -> int:
        """Tokenise all text of a language and return the number of sentences kept."""
        stem, before, read, pairs = f"{split}.{language}", False, 0, 0
        with (
            ColumnWriter(self.output, stem, tokenizer.vocabulary_size) as column,
            (self.output / f"{stem}.hashes").open("xb") as hash_file,
            (self.output / f"{stem}.followed").open("xb") as followed_file,
        ):
            own = (file for file in self.files[split] if file.language == language)
            for chunk in _chunks(itertools.chain.from_iterable(map(read_sentences, own))):
                hashes = sentence_hashes(sentence for sentence, _ in chunk)
                keep, first = ~dropped.contains(hashes), np.array([first for _, first in chunk])
                follows = keep & np.append(before, keep[:-1]) & ~first
                followed = (column.rows + np.cumsum(keep) - 2)[follows]  # the row before the sentence that follows
                column.append(tokenizer.encode([chunk[i][0] for i in np.flatnonzero(keep)]))
                training.add(hashes[keep])
                hash_file.write(hashes[keep].astype("<u8").tobytes())
                followed_file.write(followed.astype("<i8").tobytes())
                before, read, pairs = keep[-1], read + len(chunk), pairs + len(followed)
        left_out = f" of {read:,}" if read > column.rows else ""
        self.log(f"{split} {language}: {column.rows:,} sentences{left_out}, {pairs:,} followed by another")
        return column.rows


def _chunks(sentences: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    while chunk := list(itertools.islice(sentences, _CHUNK)):
        yield chunk
