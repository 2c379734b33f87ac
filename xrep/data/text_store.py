"""Tokenised monolingual text on disk, read through memory maps: the sentences of documents, by language.

A directory is built once for the same files and options, in ``$XREP_HOME/text/``. Besides the files of every directory
of tokenised text (``xrep.data.store``), it has::

    {split}.{lang}.tokens, .offsets  the sentences
    {split}.{lang}.hashes            uint64 [n], xrep.text.cleaning.sentence_hash
    {split}.{lang}.followed          int64, rows whose next row is the next sentence of their document, sorted

While a directory is built, memory grows only by the hashes of the training sentences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from xrep.data.building import build_cached, files_in, train_vocabulary
from xrep.data.store import (
    TOKENIZER_DIRECTORY,
    TRAINING_HASHES_FILE,
    ColumnWriter,
    Kind,
    TokenColumn,
    TokenDirectory,
    write_manifest,
)
from xrep.errors import UserError
from xrep.text.cleaning import HashSet, load_exclusion, sentence_hashes
from xrep.text.readers import TextFile, find_text, read_sentences
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer

TEXT = Kind("xrep-text", 2, "remove its directory; it is made again")
_CHUNK = 8192


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


class TextData(TokenDirectory):
    """A directory opened for reading. ``splits`` is ``{"train": [TextSplit, ...], ...}``."""

    kind = TEXT

    def _open_splits(self) -> None:
        self.splits = {
            split: [self._split(split, language) for language in languages]
            for split, languages in self.manifest["splits"].items()
        }

    def _split(self, split: str, language: str) -> TextSplit:
        stem = f"{split}.{language}"
        hashes, followed = self._array(f"{stem}.hashes", "<u8"), self._array(f"{stem}.followed", "<i8")
        return TextSplit(language, self._column(stem), hashes, followed)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizers[SHARED]


def prepare_text(
    data: str | Path, options: TextOptions, tokenizer: Tokenizer | None, log: Callable[[str], None] = print
) -> TextData:
    """Read and tokenise text unless this was done before, and open the result.

    Args:
        data: Specification of the text, see ``xrep.text.readers.find_text``.
        tokenizer: None to train one on the training text.

    Raises:
        UserError: For the same reasons as ``find_text`` and ``read_sentences``, or if no training sentence is left.
    """
    files = find_text(data)

    def build(folder: Path, place: Path) -> None:
        log(f"tokenising {data} (once; kept in {place})")
        _Writer(folder, files, options, log).write(tokenizer)

    read = [file.path for some in files.values() for file in some] + files_in(options.exclude)
    languages = {split: [(file.language, str(file.path)) for file in some] for split, some in files.items()}
    tokenizers = {SHARED: tokenizer} if tokenizer else {}
    return TextData.open(build_cached("text", TEXT, [languages, asdict(options)], read, build, tokenizers))


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
        facts = {"splits": splits, "options": asdict(self.options)}
        write_manifest(self.output, TEXT, tokenizer.vocabulary_size, facts)

    def _train_tokenizer(self) -> Tokenizer:
        def sentences() -> Iterator[tuple[str, str]]:
            return ((file.language, text) for file in self.files["train"] for text, _ in read_sentences(file))

        options, place = self.options, self.output / TOKENIZER_DIRECTORY
        return train_vocabulary(sentences, options.vocabulary_size, place, self.log, exponent=options.vocabulary_alpha)

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
