"""The building of cached directories of tables: whatever the text is, it is read and tokenised once."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xrep.data.disk_sort import DiskSort
from xrep.data.table import (
    MANIFEST_FILE,
    TABLE_SCHEMA,
    TOKENIZER_DIRECTORY,
    DataDirectory,
    Schema,
    TableWriter,
    write_manifest,
)
from xrep.errors import UserError
from xrep.files import build_once, digests_of
from xrep.jobs.outputs import states_of
from xrep.text.cleaning import NO_KEY, HashSet
from xrep.text.exclusion import load_exclusion
from xrep.text.resources import xrep_home
from xrep.text.sides import SHARED, Tokenizers, save_tokenizers
from xrep.text.tokenizer import Tokenizer
from xrep.text.train_tokenizer import USUAL_VOCABULARY, sample_for_tokenizer, train_tokenizer

# Maximum size of the text to train SentencePiece on, which needs about 20 bytes of memory per character and 90 per
# sentence.
_TOKENIZER_CHARACTERS, _TOKENIZER_SENTENCES = 32_000_000, 2_000_000
_CHUNK = 2048

T = TypeVar("T")


@dataclass
class Builder:
    """A directory of tables that is being filled.

    Attributes:
        folder: The empty folder that becomes the directory.
        tokenizers: The tokenizers of the text, by side.
        excluded: Hashes of sentences that the training text must not have.
        training: Hashes of the training sentences; ``allow`` adds them.
        facts: What the manifest says besides the tables.
    """

    folder: Path
    tokenizers: Tokenizers
    excluded: HashSet
    training: DiskSort
    facts: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @contextmanager
    def table(self, split: str, name: str, schema: Schema, **facts: Any) -> Iterator[TableWriter]:
        """Context manager that yields the writer of a table, which is listed in the manifest if it has a row."""
        with TableWriter(self.folder, f"{split}.{name}", schema) as writer:
            yield writer
        if writer.rows:
            self.splits.setdefault(split, []).append({"name": name, **facts, **writer.facts})

    def allow(self, split: str, hashes: np.ndarray, counts: Sequence[int] | None = None) -> np.ndarray:
        """Return which rows the split may have, bool [N], given the hashes of their sentences, uint64 [N, S] or [N]; or
        the hashes of all sentences and, as ``counts`` [N], the number of sentences of each row.

        Training rows must not have an excluded sentence. The sentences of those that they may have are noted.
        """
        if split != "train":
            return np.ones(len(hashes if counts is None else counts), dtype=bool)
        excluded = self.excluded.contains(hashes)
        if counts is not None:
            owners = np.repeat(np.arange(len(counts)), counts)
            allowed = np.bincount(owners, excluded, len(counts)) == 0
            self.training.add(hashes[allowed[owners] & (hashes != NO_KEY)])
            return allowed
        allowed = np.logical_not(excluded.any(axis=1) if hashes.ndim == 2 else excluded)
        self.training.add(hashes[allowed].ravel())
        return allowed


def build(
    kind: str,
    facts: Any,
    files: Iterable[Path],
    fill: Callable[[Builder], object],
    tokenizers: Tokenizers,
    sentences: Callable[[], Iterator[tuple[str, str]]],
    *,
    title: str,
    vocabulary_size: int | None = None,
    exponent: float = 0.5,
    exclude: Sequence[str] = (),
) -> DataDirectory:
    """Open a directory in ``$XREP_HOME/tables/``, which is built unless it was built before from the same things.

    Args:
        kind: Kind of the directory.
        facts: What it depends on besides what the other arguments say; anything that JSON can express.
        files: Files that are read, also ``ARCHIVE.zip/NAME`` and ``FILE:FIELD``; path, size and time of those on disk
            count.
        fill: Function that writes the tables, of which there must be one of training text.
        tokenizers: Tokenizers by side; empty to train one that all sides share.
        sentences: Function that returns (language, sentence) of the training text, to train a vocabulary on.
        title: What is read, for the message.
        vocabulary_size, exponent: As in ``train_vocabulary``.
        exclude: Files or folders of evaluation sets, whose sentences the training text must not have.

    Raises:
        UserError: A file does not exist, there is no training text, or anything that ``fill`` and ``sentences`` raise.
    """
    options = [vocabulary_size, exponent] if not tokenizers else []

    def write(folder: Path) -> None:
        print(f"tokenising {title} (once; kept in {directory})")
        saved = folder / TOKENIZER_DIRECTORY
        save_tokenizers(tokenizers, saved)
        nothing = UserError("no training text is left", path=title, cure="check the text and `exclude`")
        if not tokenizers and next(sentences(), None) is None:
            raise nothing
        used = tokenizers or {SHARED: train_vocabulary(sentences, vocabulary_size, saved, print, exponent=exponent)}
        builder = Builder(folder, used, load_exclusion(exclude), DiskSort(folder))
        fill(builder)
        if "train" not in builder.splits:
            raise nothing
        write_manifest(folder, kind, builder.splits, builder.training, builder.facts)

    read, depends_on = [*files, *files_in(exclude)], [kind, facts, options, list(exclude)]
    directory = cached_at("tables", depends_on, read, tokenizers)
    build_once(directory, MANIFEST_FILE, write)
    return DataDirectory(directory, kind)


def cached_at(folder: str, facts: Any, files: Iterable[str | Path], tokenizers: Tokenizers | None = None) -> Path:
    """Return the directory in ``$XREP_HOME/{folder}/`` of what is built from these things, built or not.

    Args:
        facts: What the directory depends on besides the files and tokenizers; anything that JSON can express.
        files: As in ``build``.

    Raises:
        UserError: A file does not exist.
    """
    read = states_of(sorted({str(file) for file in files}))
    with tempfile.TemporaryDirectory() as temporary:
        save_tokenizers(tokenizers or {}, Path(temporary))
        digests = digests_of(Path(temporary))
    key = hashlib.sha256(json.dumps([TABLE_SCHEMA, facts, read, digests]).encode()).hexdigest()[:24]
    return xrep_home() / folder / key


def chunks(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of some thousand rows each, so that memory holds only one of them."""
    rest = iter(rows)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def files_in(paths: Iterable[str | Path]) -> list[Path]:
    """Return the given paths and, of those that are folders, all files below them."""
    return [file for path in map(Path, paths) for file in (path, *filter(Path.is_file, path.rglob("*")))]


def train_vocabulary(
    read: Callable[[], Iterator[tuple[str, str]]],
    size: int | None,
    directory: Path,
    log: Callable[[str], None],
    *,
    exponent: float = 0.5,
    side: str | None = None,
) -> Tokenizer:
    """Train a SentencePiece vocabulary of ``size`` pieces (on a sample if the text is large) and save it.

    None: of 16,000 pieces, or as many as the text allows if it is too small for that.

    Args:
        read: Function that returns (language, sentence) of all training text; it is called twice.
        exponent: A language with n sentences has the weight n ** exponent.
        side: Side that the vocabulary is for, if not for both.
    """
    counts, characters = Counter[str](), Counter[str]()
    for language, text in read():
        counts[language] += 1
        characters[language] += len(text)
    owner = f" of the {side} side" if side else ""
    log(f"training a SentencePiece vocabulary{owner} of {size or USUAL_VOCABULARY:,} pieces")
    longest = max((characters[language] / counts[language] for language in counts), default=1.0)
    maximum = min(int(_TOKENIZER_CHARACTERS / longest), _TOKENIZER_SENTENCES)
    sample = sample_for_tokenizer(read(), counts, exponent=exponent, maximum=maximum)
    tokenizer = train_tokenizer(sample, size, directory)
    if tokenizer.vocabulary_size < (size or USUAL_VOCABULARY):
        log(f"the text is enough for {tokenizer.vocabulary_size:,} pieces")
    return tokenizer
